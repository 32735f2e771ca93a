// The first view: what is wrong, how much, the picture, the plots, the parts, and what happened.

import { html, useState } from "./vendor/preact.js";
import { brief, byCondition, clock, count, deadLetters, figuresOf, lasting, needsOf, rate, whole } from "./model.js";
import { order } from "./live.js";
import { Flow, hrefOf } from "./flow.js";
import { Plot, seriesOf } from "./plots.js";
import { Sign } from "./signs.js";
import { Cell, Closed, Section, Table, utc } from "./blocks.js";

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
  return html`<${Section} id="needs" title=${needs.length ? `${needs.length} need${needs.length > 1 ? "" : "s"} you` : "Nothing needs you"}>
    ${needs.length
      ? html`<ul class=${`needs ${failing ? "" : "mild"}`}>${needs.map((one) => html`<${Need} key=${`${one.part?.key} ${one.name} ${one.what}`} one=${one} now=${now} />`)}</ul>`
      : html`<p class="well"><${Sign} level="ok" /> All parts work.</p>`}
    ${paused.length > 0 && html`<p class="quiet"><${Sign} level="paused" /> Paused: ${paused.join(", ")}</p>`}
  <//>`;
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

const PLOTS = [
  { title: "Messages/s", lines: [["in", "in"], ["out", "out"]], text: rate },
  { title: "Waiting", lines: [["queued", "queued"], ["unsent", "unconfirmed"]], text: count },
  { title: "Oldest waiting", lines: [["oldest", "age in s"]], text: lasting, colors: "c" },
  { title: "Latency in s", lines: [["p50", "p50"], ["p95", "p95"]], text: brief },
  { title: "Duplicate detection", lines: [["ids", "ids"]], text: count, colors: "c" },
  { title: "Checkpoint", href: "#/checkpoints", lines: [["checkpoint", "last, ms"]], text: (ms) => ms.toFixed(1), colors: "d" },
];

function Plots({ status, history, theme }) {
  const now = figuresOf(status, history);
  return html`<${Section} id="plots" title="The last 15 minutes"><div class="plots">
    ${PLOTS.map(({ title, href, lines, text, colors }) => html`<${Plot} key=${title} theme=${theme} history=${history} title=${title} href=${href} series=${seriesOf(lines, now, text, colors)} />`)}
  </div><//>`;
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
  const columns = COLUMNS.map(([by, name, , numeric]) => [html`<button type="button" onClick=${() => turn(by, numeric)}>${name}</button>`, numeric, order.by !== by ? "none" : order.down ? "descending" : "ascending"]);
  return html`<${Table} caption="The parts of the engine, with their conditions and figures" columns=${[...columns, ["Why"]]}>
    ${sorted(parts, order).map((one) => html`<tr key=${one.key} role="row" class=${one.condition.level === "failing" ? "alarm" : ""}>
      <${Cell}><span class="kind">${one.kind}</span> <a href=${hrefOf(one)}>${one.id}</a><//>
      <${Cell} kind="condition"><span class=${one.condition.level}><${Sign} level=${one.condition.level} /> ${one.condition.word}</span><//>
      <${Cell} kind="t" name="for" title=${one.since ? `since ${whole(one.since)}` : undefined}>${one.since ? lasting(now - one.since) : ""}<//>
      ${[["rate", rate(one.rate)], ["waiting", one.waitingText ?? count(one.waiting)], ["oldest", one.oldest ? lasting(one.oldest) : ""], ["dead letters", count(one.dead)]].map(([name, text]) => html`<${Cell} key=${name} kind="n" name=${name}>${text}<//>`)}
      <${Cell} kind="why">${one.why}<//>
    </tr>`)}
  <//>`;
}

// Pauses or resumes all receivers, one after the other, after a question. It names those that were not.
function All({ parts, commands }) {
  const [asked, setAsked] = useState(null);
  const [told, setTold] = useState("");
  const receivers = parts.filter((one) => one.kind === "receiver");
  if (!commands.length) return html`<span class="quiet"><${Closed} /></span>`;
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
    dead_letters: () => `${deadLetters(values.count)}: ${values.reason}`,
    replayed: () => `${deadLetters(values.count)} brought back`,
    discarded: () => `${deadLetters(values.count)} discarded`,
    unhandled: () => `${count(values.count)} messages that no monitor listens for, the last a ${values.last}`,
    handler_failed: () => `a handler failed (${values.policy}): ${values.error}`,
    log_level: () => `the log shows lines from ${values.level}${values.logger ? ` of ${values.logger}` : ""}, before from ${values.before}`,
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
    return html`<li key=${event.id}><time datetime=${new Date(event.time * 1000).toISOString()} title=${whole(event.time)}>${clock(event.time)}</time><span>${about}</span><span>${text}</span></li>`;
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
    <${Section} id="flow" title="Flow" more=${html`<label><span class="hidden">Filter of picture and table: </span><input type="search" placeholder="Filter: name, connection, condition" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>`}>
      <${Flow} status=${status} parts=${shown} history=${history} filter=${filter} setFilter=${setFilter} />
    <//>
    <${Plots} status=${status} history=${history} theme=${theme} />
    <${Section} id="parts" title="Parts" more=${html`<span class="quiet">${shown.length < parts.length ? `${shown.length} of ${parts.length}` : parts.length}</span><${All} parts=${parts} commands=${commands} />`}>
      <${Parts} parts=${shown} now=${status.time} />
    <//>
    <${Section} id="events" title="What happened" more=${utc()}>
      ${happened.length ? html`<${Log} events=${happened} />` : html`<p class="quiet">Nothing yet.</p>`}
    <//>`;
}
