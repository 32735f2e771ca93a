// What the page says about the engine, made of its status. No part of this touches the page.

const RATE_S = 10;
export const PLOT_S = 900;

const integer = new Intl.NumberFormat("en");
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (value) => (value === undefined || value === null ? "" : integer.format(value));
export const deadLetters = (number) => `${count(number)} dead letter${number > 1 ? "s" : ""}`;
export const rate = (value) => (value === undefined ? "" : `${value < 10 ? tenth.format(value) : integer.format(Math.round(value))}/s`);

export function lasting(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return seconds < 10 ? `${tenth.format(Math.max(0, seconds))} s` : `${Math.floor(seconds)} s`;
}

// A duration of which milliseconds matter.
export const brief = (seconds) => (seconds === undefined ? "none" : seconds < 1 ? `${(seconds * 1000).toPrecision(seconds < 0.001 ? 1 : 2) * 1} ms` : lasting(seconds));

export const bytes = (size) => {
  for (const [unit, limit] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (size >= limit) return `${tenth.format(size / limit)} ${unit}`;
  return `${size} bytes`;
};

export const clock = (seconds) => `${new Date(seconds * 1000).toISOString().slice(11, 19)}Z`;
export const moment = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").replace(/\.\d+/, "");
export const local = (seconds) => new Date(seconds * 1000).toLocaleString();
export const whole = (seconds) => `${moment(seconds)}, local time ${local(seconds)}`;

// The conditions, from the worst. `word` is that of `correlator status`, where it has one.
const ORDER = ["failing", "slow", "paused", "ok"];
const STATUSES = {
  OK: ["ok", "OK"],
  CONNECTING: ["slow", "CONNECTING"],
  ERROR: ["failing", "ERROR"],
  BLOCKED: ["failing", "BLOCKED"],
  DESTINATION_NOT_FOUND: ["failing", "NO DESTINATION"],
  FATAL_ERROR: ["failing", "FATAL ERROR"],
};

function conditionOf(part, awaited) {
  const [level, word] = STATUSES[part.status] ?? ["failing", part.status];
  if (level !== "ok") return { level, word: part.paused ? `${word}, PAUSED` : word };
  if (part.paused) return { level: "paused", word: "PAUSED" };
  if (part.state === "ended") return { level: "paused", word: "ENDED" };
  if (awaited) return { level: "slow", word: "FULL" };
  if (part.waits_for && part.waits_for !== "window") return { level: "slow", word: "WAITS" };
  return { level, word };
}

function whyOf(part) {
  if (part.error) return part.error;
  return part.waits_for && part.waits_for !== "pause" ? `waits for ${part.waits_for}` : "";
}

function waitingAt(receiver) {
  const held = receiver.backlog;
  if (!held) return {};
  return held.messages === null || held.messages === undefined ? { waiting: held.size, waitingText: bytes(held.size) } : { waiting: held.messages };
}

// All parts in the order receivers, contexts, senders; each has the same members.
export function partsOf(status, rates) {
  const awaited = new Set(Object.values(status.receivers).map((one) => one.waits_for).filter(Boolean));
  const parts = [];
  const add = (kind, id, part, more) => {
    const key = `${kind} ${id}`;
    parts.push({ kind, id, key, part, rate: rates[key], since: part.since || undefined, why: whyOf(part), ...more });
  };
  for (const [id, part] of Object.entries(status.receivers)) {
    add("receiver", id, part, { condition: conditionOf(part), dead: part.dead_letters, ...waitingAt(part) });
  }
  for (const [id, part] of Object.entries(status.contexts)) {
    const pipeline = status.pipelines[id];
    const condition = conditionOf({ status: "OK" }, awaited.has(`queue:${id}`));
    add(pipeline ? "pipeline" : "context", id, part, { condition, dead: pipeline?.dead_letters, waiting: part.queued, oldest: part.oldest_s });
  }
  for (const [id, part] of Object.entries(status.senders)) {
    const condition = conditionOf(part, awaited.has(`outbox:${id}`));
    add("sender", id, part, { condition, dead: part.dead_letters, waiting: part.outstanding, oldest: part.oldest_s });
  }
  return parts;
}

// The edges of the picture: [from, to, whether messages certainly take it].
export function edgesOf(status) {
  const named = new Set(Object.values(status.pipelines).flatMap((one) => one.sends_to));
  const kind = (context) => (status.pipelines[context] ? "pipeline" : "context");
  const edges = [];
  for (const [id, part] of Object.entries(status.receivers)) {
    for (const context of part.delivers_to) edges.push([`receiver ${id}`, `${kind(context)} ${context}`, true]);
  }
  for (const context of Object.keys(status.contexts)) {
    const pipeline = status.pipelines[context];
    const senders = pipeline ? pipeline.sends_to : Object.keys(status.senders).filter((id) => !named.has(id));
    for (const id of senders) edges.push([`${kind(context)} ${context}`, `sender ${id}`, Boolean(pipeline)]);
  }
  return edges;
}

export const byCondition = (one, other) =>
  ORDER.indexOf(one.condition.level) - ORDER.indexOf(other.condition.level) || one.key.localeCompare(other.key);

const ORIGINS = { mapping: "receiver", unhandled: "receiver", send: "sender", step: "pipeline", handler: "monitor", poison: "context" };

const failureOf = (events, started) => events.find((one) => one.event === "failed" && one.time >= started);

// What somebody should do something about, the worst first. `letters` counts the dead letters of the store, if there is one.
export function needsOf(status, parts, events, letters) {
  const needs = [];
  const failure = failureOf(events, status.started);
  if (failure) needs.push({ level: "failing", what: "the engine stops", why: failure.error, since: failure.time });
  for (const one of [...parts].sort(byCondition)) {
    const { level, word } = one.condition;
    if (level === "failing") needs.push({ level, part: one, what: word, why: one.why, since: one.since, waiting: one.waiting, waitingText: one.waitingText });
  }
  const dead = new Map();
  const inLife = () => parts.map((one) => ({ name: one.key, origin: one.id, count: one.dead ?? 0 }));
  for (const { name, kind, origin, count: found } of letters ?? inLife()) {
    const key = name ?? `${ORIGINS[kind]} ${origin}`;
    if (found) dead.set(key, { origin, found: (dead.get(key)?.found ?? 0) + found });
  }
  for (const [name, { origin, found }] of dead) {
    const told = events.find((one) => one.event === "dead_letters" && [one.receiver, one.sender, one.pipeline].includes(origin));
    const failed = events.find((one) => one.event === "handler_failed" && one.error.includes(` monitor ${origin}: `));
    needs.push({ level: "slow", name, what: deadLetters(found), why: told?.reason ?? failed?.error ?? "", href: `#/dead?origin=${encodeURIComponent(origin)}` });
  }
  for (const one of parts) {
    if (one.part.unhandled) {
      needs.push({ level: "slow", part: one, what: `${count(one.part.unhandled)} messages that no monitor listens for`, why: "" });
    }
  }
  if (status.handler_skips) {
    const told = events.find((one) => one.event === "handler_failed" && one.policy === "skip");
    needs.push({ level: "slow", what: `${count(status.handler_skips)} failed handler calls`, why: told?.error ?? "" });
  }
  return needs;
}

// The time within which a share of the messages were confirmed, since the start or since `before`; interpolated between
// two limits. Nobody knows more of those that took longer than the last limit.
export function quantile(share, now, before = { confirmed: 0, within: {} }) {
  const wanted = share * (now.confirmed - before.confirmed);
  if (!(wanted > 0)) return undefined;
  let from = 0;
  let below = 0;
  for (const limit of Object.keys(now.within).sort((one, other) => one - other)) {
    const found = now.within[limit] - (before.within[limit] ?? 0);
    if (found >= wanted) return from + ((limit - from) * (wanted - below)) / (found - below);
    [from, below] = [Number(limit), found];
  }
  return from;
}

// The latencies of all senders together.
function latencyOf(status) {
  const sum = { confirmed: 0, within: {} };
  for (const { latency } of Object.values(status.senders)) {
    sum.confirmed += latency?.confirmed ?? 0;
    for (const [limit, found] of Object.entries(latency?.within ?? {})) sum.within[limit] = (sum.within[limit] ?? 0) + found;
  }
  return sum;
}

const total = (members, name) => Object.values(members).reduce((sum, one) => sum + (one[name] ?? 0), 0);
const largest = (members, name) => Object.values(members).reduce((most, one) => Math.max(most, one[name] ?? 0), 0);

// Looks at the counters, for rates and plots. One object for each life of the engine.
export class History {
  constructor() {
    this.started = undefined;
    this.clear();
  }

  clear() {
    this.looks = [];
    this.rates = {};
    this.times = [];
    this.values = { in: [], out: [], queued: [], unsent: [], oldest: [], checkpoint: [], p50: [], p95: [], ids: [] };
  }

  take(status) {
    if (status.started !== this.started || status.engine_time < this.looks.at(-1)?.at) {
      this.started = status.started;
      this.clear();
    }
    const counts = {};
    for (const [id, part] of Object.entries(status.receivers)) counts[`receiver ${id}`] = part.received;
    for (const [id, part] of Object.entries(status.senders)) counts[`sender ${id}`] = part.sent;
    for (const [id, part] of Object.entries(status.contexts)) {
      counts[`${status.pipelines[id] ? "pipeline" : "context"} ${id}`] = part.handled;
      counts[`busy ${id}`] = part.busy_s;
    }
    this.looks.push({ at: status.engine_time, counts, latency: latencyOf(status) });
    while (this.looks.length > 2 && this.looks[1].at <= status.engine_time - RATE_S) this.looks.shift();
    this.rates = this.ratesNow();
    this.note(status);
  }

  ratesNow() {
    const first = this.looks[0];
    const last = this.looks.at(-1);
    const passed = last.at - first.at;
    if (passed <= 0) return {};
    const entries = Object.entries(last.counts).filter(([key]) => key in first.counts);
    return Object.fromEntries(entries.map(([key, now]) => [key, Math.max(0, (now - first.counts[key]) / passed)]));
  }

  latency(share) {
    return this.looks.length > 1 ? quantile(share, this.looks.at(-1).latency, this.looks[0].latency) : undefined;
  }

  sum(kind) {
    const found = Object.entries(this.rates).filter(([key]) => key.startsWith(`${kind} `));
    return this.looks.length > 1 ? found.reduce((all, [, value]) => all + value, 0) : undefined;
  }

  note(status) {
    const values = figuresOf(status, this);
    this.times.push(status.time);
    for (const [name, series] of Object.entries(this.values)) series.push(values[name] ?? null);
    while (this.times[0] < status.time - PLOT_S) {
      this.times.shift();
      for (const series of Object.values(this.values)) series.shift();
    }
  }
}

export function figuresOf(status, history) {
  return {
    in: history.sum("receiver"),
    out: history.sum("sender"),
    queued: total(status.contexts, "queued"),
    unsent: total(status.senders, "outstanding"),
    oldest: Math.max(largest(status.contexts, "oldest_s"), largest(status.senders, "oldest_s")),
    checkpoint: status.checkpoints.last_duration_s * 1000,
    dead: status.totals.dead_letters,
    p50: history.latency(0.5),
    p95: history.latency(0.95),
    ids: status.duplicate_ids,
  };
}

