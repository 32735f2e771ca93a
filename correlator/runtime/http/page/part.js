// One receiver, sender, context or pipeline: condition, what may be done with it, all its figures, what happened to it.

import { html, useState } from "./vendor/preact.js";
import { brief, bytes, count, lasting, local, moment, quantile, rate } from "./model.js";
import { order } from "./live.js";
import { Closed, Section, utc } from "./blocks.js";
import { Log } from "./overview.js";
import { Sign } from "./signs.js";

const TIMEOUT_S = 60;
const MOST_PATHS = 20;
const HIDDEN = new Set(["status", "error", "since", "last_error", "last_error_at", "paused"]);

function shown(name, value) {
  if (name === "backlog") return value && (value.messages ?? null) !== null ? `${count(value.messages)} messages` : bytes(value.size);
  if (name === "latency") return value.confirmed ? `p50 ${brief(quantile(0.5, value))}, p95 ${brief(quantile(0.95, value))}` : "none";
  if (Array.isArray(value)) return value.join(", ") || "none";
  if (typeof value === "number") return name.endsWith("_s") ? lasting(value) : count(value);
  return String(value);
}

export function Acts({ acts, commands }) {
  const [told, setTold] = useState("");
  const [busy, setBusy] = useState("");
  const run = async (act) => {
    setBusy(act.name);
    setTold("");
    try {
      setTold(act.done(await order(act.order)));
    } catch (error) {
      setTold(error.message);
    }
    setBusy("");
  };
  if (!commands.length) {
    return html`<p class="quiet"><${Closed} /> By command: ${acts.map((one, at) => html`${at ? ", " : ""}<code>${one.command}</code>`)}</p>`;
  }
  return html`<div class="acts">
    ${acts.map((act) => html`<button type="button" key=${act.name} disabled=${busy !== ""} title=${act.title} onClick=${() => run(act)}>${act.name}</button>`)}
    <span role="status">${busy ? `${busy} …` : told}</span>
  </div>`;
}

const actsOf = (kind, id, paused) => {
  const act = (name, command, title, done, more = {}) => ({
    name, title, done, command: `correlator ${kind} FILE ${id} ${command}`, order: { command, kind, part: id, ...more },
  });
  return [
    paused
      ? act("Resume", "resume", "It goes on where it was.", () => "It goes on.")
      : act("Pause", "pause", "It begins no further batch until it is resumed, or the engine ends.", () => "It is paused."),
    act("Drain", "drain", kind === "receiver" ? "It pauses, and finishes what it has taken." : "Waits until every message is confirmed.", () => "It has nothing left to do.", { timeout: TIMEOUT_S }),
  ];
};

function Promises({ paths }) {
  if (!paths?.length) return null;
  return html`<${Section} id="promises" title="What its paths promise">
    <ul class="log paths">${paths.slice(0, MOST_PATHS).map((one) => html`<li key=${`${one.receiver} ${one.through} ${one.sender}`}><span>${[one.receiver, one.through, one.sender ?? "no sender"].join(" → ")}</span><span>${one.guarantee} <span class="quiet">Weakest link: ${one.weakest}: ${one.why}.</span></span></li>`)}</ul>
    ${paths.length > MOST_PATHS && html`<p class="quiet">${paths.length - MOST_PATHS} more: <code>correlator explain FILE</code></p>`}
  <//>`;
}

export function Part({ live, status, parts, kind, id, commands, paths }) {
  const one = parts.find((part) => part.kind === kind && part.id === id);
  if (!one) return html`<section><h2>There is no ${kind} ${id}</h2><p><a href="#/">All parts</a></p></section>`;
  const { part, condition } = one;
  const rows = Object.entries({ ...part, ...(status.pipelines[id] && kind === "pipeline" ? status.pipelines[id] : {}) }).filter(([name, value]) => !HIDDEN.has(name) && value !== null && value !== undefined);
  const controlled = kind === "receiver" || kind === "sender";
  const events = live.events.filter((event) => event[kind] === id);
  return html`
    <${Section} id="part" title="${kind} ${id}" more=${html`<a href="#/">All parts</a>`}>
      <p><span class=${condition.level}><${Sign} level=${condition.level} /> <strong>${condition.word}</strong></span>${one.since ? html` for ${lasting(status.time - one.since)}, <span title=${`local time ${local(one.since)}`}>since ${moment(one.since)}</span>` : ""}${one.rate === undefined ? "" : ` · ${rate(one.rate)}`}</p>
      ${one.why && html`<p>${one.why}</p>`}
      ${part.last_error && part.last_error !== part.error && html`<p class="quiet">Last error, ${moment(part.last_error_at)}: ${part.last_error}</p>`}
    <//>
    ${controlled && html`<section aria-label="Control"><${Acts} key=${one.key} acts=${actsOf(kind, id, part.paused)} commands=${commands} /></section>`}
    <${Section} id="numbers" title="Figures since the start">
      <dl class="facts">${rows.map(([name, value]) => html`<div key=${name}><dt>${name.replace(/_s$/, "").replaceAll("_", " ")}</dt><dd>${shown(name, value)}</dd></div>`)}</dl>
    <//>
    <${Section} id="events" title="What happened to it" more=${utc()}>
      ${events.length ? html`<${Log} events=${events} />` : html`<p class="quiet">Nothing that the engine still remembers.</p>`}
    <//>
    <${Promises} paths=${paths} />`;
}
