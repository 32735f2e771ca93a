// The first view: what is wrong, how much, the picture, the plots, the parts, and what happened.

import { html, useState } from "./vendor/preact.js";
import { brief, byCondition, clock, count, figuresOf, lasting, local, moment, needsOf, rate } from "./model.js";
import { order } from "./live.js";
import { Flow, hrefOf } from "./flow.js";
import { Plot } from "./plots.js";
import { Sign } from "./signs.js";

const MOST_EVENTS = 20;

function Need({ one, now }) {
  const name = one.name ?? (one.part ? one.part.key : "engine");
  const href = one.href ?? (one.part && hrefOf(one.part));
  const more = [
    one.since ? lasting(now - one.since) : "",
    one.waiting ? `${one.waitingText ?? count(one.waiting)} waiting` : "",
  ].filter(Boolean);
  return html`<li>
    <${Sign} level=${one.level} />
    <span>${href ? html`<a href=${href}>${name}</a>` : name}</span>
    <div><strong class=${one.level}>${one.what}</strong>${more.map((text) => ` · ${text}`)}${one.why && html`<span class="why"> ${one.why}</span>`}</div>
  </li>`;
}

function Needs({ needs, paused, now }) {
  const failing = needs.some((one) => one.level === "failing");
  return html`<section aria-labelledby="needs">
    <div class="head"><h2 id="needs">${needs.length ? `${needs.length} need${needs.length > 1 ? "" : "s"} you` : "Nothing needs you"}</h2></div>
    ${needs.length
      ? html`<ul class=${`needs ${failing ? "" : "mild"}`}>${needs.map((one) => html`<${Need} key=${`${one.part?.key} ${one.name} ${one.what}`} one=${one} now=${now} />`)}</ul>`
      : html`<p class="well"><${Sign} level="ok" /> All parts work.</p>`}
    ${paused.length > 0 && html`<p class="quiet"><${Sign} level="paused" /> Paused: ${paused.join(", ")}</p>`}
  </section>`;
}

function Figures({ status, history, letters }) {
  const now = figuresOf(status, history);
  const all = [
    ["In", rate(now.in) || "…", "messages from brokers, mean of 10 s"],
    ["Out", rate(now.out) || "…", "messages that brokers have confirmed, mean of 10 s"],
    ["Oldest waiting", now.oldest ? lasting(now.oldest) : "none", "in a queue or an outbox"],
    ["Latency p95", brief(now.p95), "from a handler to the confirm of the broker, 95 % of the messages of 10 s"],
    ["Queued events", count(now.queued), "in the queues of all contexts"],
    ["Unconfirmed", count(now.unsent), "messages of all senders"],
    ["Last checkpoint", status.checkpoints.taken ? `${now.checkpoint < 10 ? now.checkpoint.toFixed(1) : Math.round(now.checkpoint)} ms` : "none", `${count(status.checkpoints.taken)} since the start`],
    letters ? ["Dead letters", count(letters.reduce((sum, one) => sum + one.count, 0)), "in the store"] : ["Dead letters", count(now.dead), "since the start"],
  ];
  return html`<section aria-label="Figures"><dl class="figures">
    ${all.map(([name, value, title]) => html`<div key=${name} title=${title}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl></section>`;
}

function Plots({ status, history, theme }) {
  const now = figuresOf(status, history);
  return html`<section aria-labelledby="plots">
    <div class="head"><h2 id="plots">The last 15 minutes</h2></div>
    <div class="plots">
      <${Plot} theme=${theme} history=${history} title="Messages/s" series=${[
        { values: "in", label: "in", text: rate(now.in), stroke: "--plot-a" },
        { values: "out", label: "out", text: rate(now.out), stroke: "--plot-b", dash: [5, 3] },
      ]} />
      <${Plot} theme=${theme} history=${history} title="Waiting" series=${[
        { values: "queued", label: "queued", text: count(now.queued), stroke: "--plot-a" },
        { values: "unsent", label: "unconfirmed", text: count(now.unsent), stroke: "--plot-b", dash: [5, 3] },
      ]} />
      <${Plot} theme=${theme} history=${history} title="Oldest waiting" series=${[{ values: "oldest", label: "age in s", text: lasting(now.oldest), stroke: "--plot-c" }]} />
      <${Plot} theme=${theme} history=${history} title="Latency in s" series=${[
        { values: "p50", label: "p50", text: brief(now.p50), stroke: "--plot-a" },
        { values: "p95", label: "p95", text: brief(now.p95), stroke: "--plot-b", dash: [5, 3] },
      ]} />
      <${Plot} theme=${theme} history=${history} title="Duplicate detection" series=${[{ values: "ids", label: "ids", text: count(now.ids), stroke: "--plot-c" }]} />
      <${Plot} theme=${theme} history=${history} title="Checkpoint" href="#/checkpoints" series=${[{ values: "checkpoint", label: "last, ms", text: now.checkpoint.toFixed(1), stroke: "--plot-d" }]} />
    </div>
  </section>`;
}

const COLUMNS = [
  ["part", "Part", (one) => one.key],
  ["condition", "Condition", null],
  ["since", "For", (one) => -(one.since ?? Infinity)],
  ["rate", "Rate", (one) => one.rate ?? -1, true],
  ["waiting", "Waiting", (one) => one.waiting ?? -1, true],
  ["oldest", "Oldest", (one) => one.oldest ?? -1, true],
  ["dead", "Dead letters", (one) => one.dead ?? -1, true],
];

function sorted(parts, { by, down }) {
  const value = COLUMNS.find(([name]) => name === by)[2];
  const compare = value
    ? (one, other) => (typeof value(one) === "string" ? value(one).localeCompare(value(other)) : value(one) - value(other)) || byCondition(one, other)
    : byCondition;
  return [...parts].sort((one, other) => (down ? -compare(one, other) : compare(one, other)));
}

function Parts({ parts, now }) {
  const [order, setOrder] = useState({ by: "condition", down: false });
  const turn = (by, numeric) => setOrder(order.by === by ? { by, down: !order.down } : { by, down: Boolean(numeric) });
  return html`<table class="parts" role="table">
    <caption class="hidden">The parts of the engine, with their conditions and figures</caption>
    <thead role="rowgroup"><tr role="row">
      ${COLUMNS.map(([by, name, , numeric]) => html`<th key=${by} role="columnheader" scope="col" class=${numeric ? "n" : ""} aria-sort=${order.by === by ? (order.down ? "descending" : "ascending") : "none"}>
        <button type="button" onClick=${() => turn(by, numeric)}>${name}</button></th>`)}
      <th role="columnheader" scope="col">Why</th>
    </tr></thead>
    <tbody role="rowgroup">
      ${sorted(parts, order).map((one) => html`<tr key=${one.key} role="row" class=${one.condition.level === "failing" ? "alarm" : ""}>
        <td role="cell"><span class="kind">${one.kind}</span> <a href=${hrefOf(one)}>${one.id}</a></td>
        <td role="cell" class="condition"><span class=${one.condition.level}><${Sign} level=${one.condition.level} /> ${one.condition.word}</span></td>
        <td role="cell" class="t" data-name="for" title=${one.since ? `since ${moment(one.since)}, local time ${local(one.since)}` : undefined}>${one.since ? lasting(now - one.since) : ""}</td>
        <td role="cell" class="n" data-name="rate">${rate(one.rate)}</td>
        <td role="cell" class="n" data-name="waiting">${one.waitingText ?? count(one.waiting)}</td>
        <td role="cell" class="n" data-name="oldest">${one.oldest ? lasting(one.oldest) : ""}</td>
        <td role="cell" class="n" data-name="dead letters">${count(one.dead)}</td>
        <td role="cell" class="why">${one.why}</td>
      </tr>`)}
    </tbody>
  </table>`;
}

// Pauses or resumes all receivers, one after the other, after a question. It names those that were not.
function All({ parts, commands }) {
  const [asked, setAsked] = useState(null);
  const [told, setTold] = useState("");
  const receivers = parts.filter((one) => one.kind === "receiver");
  if (!commands.length) return html`<span class="quiet">Only with <code>http.token</code> in the file of the engine can it be changed from here.</span>`;
  if (receivers.length < 2) return null;
  const ask = (command, word) => {
    setAsked({ command, word, ids: receivers.filter((one) => one.part.paused === (command === "resume")).map((one) => one.id) });
    setTold("");
  };
  const act = async ({ command, word, ids }) => {
    const left = [];
    setAsked(null);
    setTold("…");
    for (const id of ids) await order({ command, kind: "receiver", part: id }).catch((error) => left.push(`${id}: ${error.message}`));
    setTold([`${ids.length - left.length} ${word}.`, ...left].join(" "));
  };
  const name = (command) => (command === "pause" ? "Pause" : "Resume");
  return html`<span class="acts">${asked
    ? html`<span>${name(asked.command)} ${count(asked.ids.length)} receiver${asked.ids.length > 1 ? "s" : ""}?</span>
      <button type="button" onClick=${() => act(asked)}>${name(asked.command)} ${count(asked.ids.length)}</button><button type="button" onClick=${() => setAsked(null)}>Cancel</button>`
    : html`<button type="button" disabled=${receivers.every((one) => one.part.paused)} onClick=${() => ask("pause", "paused")}>Pause all receivers …</button>
      <button type="button" disabled=${!receivers.some((one) => one.part.paused)} onClick=${() => ask("resume", "resumed")}>Resume all …</button>`}
    <span role="status">${told}</span></span>`;
}

export function textOf(event) {
  const { id, time, event: name, ...values } = event;
  const kind = ["receiver", "sender", "connection", "pipeline"].find((one) => one in values);
  const about = kind ? `${kind} ${values[kind]}` : "engine";
  if (kind) delete values[kind];
  const text = {
    phase: () => values.phase,
    status: () => [values.status, values.error].filter(Boolean).join(": "),
    checkpoint: () => `checkpoint ${values.number}, ${(values.seconds * 1000).toFixed(1)} ms`,
    dead_letters: () => `${count(values.count)} dead letter${values.count > 1 ? "s" : ""}: ${values.reason}`,
    replayed: () => `${count(values.count)} dead letter${values.count > 1 ? "s" : ""} brought back`,
    discarded: () => `${count(values.count)} dead letter${values.count > 1 ? "s" : ""} discarded`,
    unhandled: () => `${count(values.count)} messages that no monitor listens for, the last a ${values.last}`,
    handler_failed: () => `a handler failed (${values.policy}): ${values.error}`,
    failed: () => `the engine stops: ${values.error}`,
  }[name];
  return { about, text: text ? text() : [name, ...Object.entries(values).map(([key, value]) => `${key}: ${value}`)].join(" ") };
}

// Dead letters of one part, one after the other, as one event.
function gathered(events) {
  const found = [];
  for (const one of events) {
    const last = found.at(-1);
    const same = one.event === "dead_letters" && last?.event === one.event && textOf(last).about === textOf(one).about;
    if (same) found[found.length - 1] = { ...last, count: last.count + one.count };
    else found.push(one);
  }
  return found;
}

export function Log({ events }) {
  return html`<ul class="log">${events.map((event) => {
    const { about, text } = textOf(event);
    return html`<li key=${event.id}><time datetime=${new Date(event.time * 1000).toISOString()} title=${`${moment(event.time)}, local time ${local(event.time)}`}>${clock(event.time)}</time><span>${about}</span><span>${text}</span></li>`;
  })}</ul>`;
}

export function Overview({ live, status, parts, history, theme, letters, commands }) {
  const [filter, setFilter] = useState("");
  const wanted = filter.toLowerCase();
  const shown = wanted
    ? parts.filter((one) => [one.key, one.part.connection, one.part.destination, one.condition.word].some((text) => text?.toLowerCase().includes(wanted)))
    : parts;
  const happened = gathered(live.events.filter((one) => one.event !== "checkpoint")).slice(0, MOST_EVENTS);
  return html`
    <${Needs} needs=${needsOf(status, parts, live.events, letters)} paused=${status.paused} now=${status.time} />
    <${Figures} status=${status} history=${history} letters=${letters} />
    <section aria-labelledby="flow">
      <div class="head"><h2 id="flow">Flow</h2>
        <label><span class="hidden">Filter of picture and table: </span><input type="search" placeholder="Filter: name, connection, condition" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>
      </div>
      <${Flow} status=${status} parts=${shown} history=${history} filter=${filter} setFilter=${setFilter} />
    </section>
    <${Plots} status=${status} history=${history} theme=${theme} />
    <section aria-labelledby="parts">
      <div class="head"><h2 id="parts">Parts</h2><span class="quiet">${shown.length < parts.length ? `${shown.length} of ${parts.length}` : parts.length}</span><${All} parts=${parts} commands=${commands} /></div>
      <${Parts} parts=${shown} now=${status.time} />
    </section>
    <section aria-labelledby="events">
      <div class="head"><h2 id="events">What happened</h2><span class="quiet">times in UTC</span></div>
      ${happened.length ? html`<${Log} events=${happened} />` : html`<p class="quiet">Nothing yet.</p>`}
    </section>`;
}
