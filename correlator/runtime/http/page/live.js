// Follows the engine: one stream of events for all visible pages of this browser, or questions every two seconds where no
// stream passes.
//
// A browser opens at most six connections to a server, so the seventh page with a stream of its own could ask nothing.
// The page that holds the lock leads: it has the stream, and passes on to the others what the stream brings.

const RETRY_MS = 2000;
const FIRST_EVENT_MS = 5000; // a stream that brings nothing for so long is held up by a proxy
const QUIET_MS = 10000; // a stream that brings nothing more for so long is broken: the status changes each second
const SILENT_MS = 15000; // a leading page that passes on nothing for so long stands still; another page takes its place
const ANSWER_MS = 5000; // an answer that takes longer does not come
const POLLS = 15; // questions before the stream is tried again
const MOST_EVENTS = 200;
const TOKEN = "correlator-token";
const SHARED = `correlator ${location.pathname}`; // several engines may be behind one proxy, below different paths

export class NeedsToken extends Error {}

let token = "";
try {
  token = sessionStorage.getItem(TOKEN) ?? "";
} catch {
  // storage is switched off: the token lives as long as the page
}

export function signIn(given) {
  token = given;
  try {
    given ? sessionStorage.setItem(TOKEN, given) : sessionStorage.removeItem(TOKEN);
  } catch {
    // as above
  }
}

export const signedIn = () => token !== "";

// Ask the engine. The paths are relative, so that a proxy may put the page below a prefix.
export async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401 || answer.status === 429) throw new NeedsToken(await answer.text());
  return answer;
}

export async function read(path) {
  const answer = await ask(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

export async function order(command) {
  const answer = await ask("control", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(command),
  });
  const isJson = answer.headers.get("content-type") === "application/json";
  const told = isJson ? await answer.json() : { problem: { what: await answer.text() } };
  if (told.problem) {
    const { code, where, what, todo } = told.problem;
    throw new Error([code, where && `${where}:`, what, todo && `- ${todo}`].filter(Boolean).join(" "));
  }
  return told.result;
}

// RFC 7396: the members of `change` replace those of `value`; null removes one.
export function merged(value, change) {
  if (change === null || typeof change !== "object" || Array.isArray(change)) return change;
  const result = { ...(value !== null && typeof value === "object" && !Array.isArray(value) ? value : {}) };
  for (const [name, one] of Object.entries(change)) {
    if (one === null) delete result[name];
    else result[name] = merged(result[name], one);
  }
  return result;
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

export class Live {
  constructor(changed) {
    this.changed = changed;
    this.status = null;
    this.events = [];
    this.problem = "";
    this.needsToken = false;
    this.last = null;
    this.id = `${Math.random()}`;
    this.channel = new BroadcastChannel(SHARED);
    this.leads = false;
    this.admitted = false; // a page without the token must not hear what other pages are told
    this.source = null; // the page that has passed on `status`; only its changes refer to it
    this.away = new AbortController(); // aborted when this page is hidden, or another page leads
    this.leading = null;
    this.silent = undefined;
    this.isSilent = false;
  }

  start() {
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) return this.wake?.();
      this.source = null;
      this.away.abort();
    });
    this.channel.onmessage = ({ data }) => this.hear(data);
    this.run();
  }

  async run() {
    for (;;) {
      while (document.hidden || this.needsToken) await new Promise((wake) => (this.wake = wake));
      this.away = new AbortController();
      try {
        await this.takeTurn();
      } catch (error) {
        if (error instanceof NeedsToken) this.refused(error);
        else if (!this.away.signal.aborted && error.name !== "AbortError") {
          this.fail(reasonOf(error));
          await sleep(RETRY_MS);
        }
      }
      this.away.abort();
      await this.leading;
    }
  }

  // Return or raise an error when this page does not lead any more.
  async takeTurn() {
    const lead = () => (this.leading = this.lead());
    if (!navigator.locks) return lead(); // over plain HTTP from another machine
    if (!this.admitted) await read("control");
    this.admitted = true;
    const options = this.isSilent ? { steal: true } : { signal: this.away.signal };
    this.isSilent = false;
    this.channel.postMessage({ hello: this.id });
    this.hearken();
    return navigator.locks.request(SHARED, options, lead);
  }

  hearken() {
    clearTimeout(this.silent);
    this.silent = setTimeout(() => {
      this.isSilent = !this.leads && !document.hidden;
      if (this.isSilent) this.away.abort();
    }, SILENT_MS);
  }

  async lead() {
    const { signal } = this.away;
    const goesOn = () => !signal.aborted && !this.needsToken;
    this.leads = true;
    clearTimeout(this.silent);
    try {
      while (goesOn()) {
        try {
          await this.follow();
          this.fail("the engine has ended");
        } catch (error) {
          if (error instanceof NeedsToken) this.refused(error);
          else if (goesOn()) {
            this.fail(error.name === "AbortError" ? "the stream brings nothing" : reasonOf(error));
            await this.poll(goesOn);
          }
        }
        if (goesOn()) await sleep(RETRY_MS);
      }
    } finally {
      this.leads = false;
    }
  }

  // What another page says.
  hear(said) {
    if (this.leads) {
      const { status, events, last, problem } = this;
      if (said.hello) this.channel.postMessage({ from: this.id, to: said.hello, status, events, last, problem });
      return;
    }
    if (said.hello || !this.admitted || document.hidden) return;
    this.hearken();
    if (said.to === this.id) {
      const { status, events, last, problem } = said;
      Object.assign(this, { events, last, source: said.from });
      if (status) this.take(status);
      if (problem) this.fail(problem);
    } else if (said.problem) this.fail(said.problem);
    else if (said.event !== "changed" || said.from === this.source) this.receive(said);
    else this.channel.postMessage({ hello: this.id });
  }

  again() {
    this.needsToken = false;
    this.problem = "";
    this.wake?.();
  }

  refused(error) {
    this.needsToken = true;
    this.admitted = false;
    this.problem = signedIn() ? error.message : "";
    signIn("");
    this.changed();
  }

  fail(problem) {
    this.problem = problem;
    if (this.leads) this.channel.postMessage({ problem });
    this.changed();
  }

  take(status) {
    this.status = status;
    this.problem = "";
    this.changed(true);
  }

  async follow() {
    const stop = new AbortController();
    const end = () => stop.abort();
    this.away.signal.addEventListener("abort", end);
    let late = setTimeout(end, FIRST_EVENT_MS);
    try {
      const headers = this.last ? { "Last-Event-ID": this.last } : {};
      const answer = await ask("events?status", { headers, signal: stop.signal });
      if (!answer.ok) throw new Error(await answer.text());
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        const blocks = (text + value).split("\n\n");
        text = blocks.pop();
        for (const block of blocks) {
          const fields = Object.fromEntries(block.split("\n").map((line) => line.match(/^(\w*): ?(.*)$/)?.slice(1) ?? ["", ""]));
          if (!fields.event) continue;
          if (fields.event === "full" || fields.event === "changed") {
            clearTimeout(late);
            late = setTimeout(end, QUIET_MS);
          }
          this.receive(fields);
        }
      }
    } finally {
      clearTimeout(late);
      this.away.signal.removeEventListener("abort", end);
    }
  }

  receive({ from = this.id, event, id, data }) {
    if (this.leads) this.channel.postMessage({ from, event, id, data });
    const value = JSON.parse(data);
    if (event === "full" || event === "changed") {
      this.source = from;
      this.take(event === "full" ? value : merged(this.status, value));
    } else if (event === "missed") {
      this.events = [];
    } else {
      this.last = id;
      this.events = [value, ...this.events].slice(0, MOST_EVENTS);
    }
  }

  async poll(goesOn) {
    for (let tries = 0; tries < POLLS && goesOn(); tries++) {
      try {
        const answer = await ask("status", { signal: AbortSignal.timeout(ANSWER_MS) });
        if (!answer.ok) throw new Error(await answer.text());
        this.receive({ event: "full", data: await answer.text() });
      } catch (error) {
        if (error instanceof NeedsToken) this.refused(error);
        return;
      }
      await sleep(RETRY_MS);
    }
  }
}

const reasonOf = (error) => ({ TypeError: "the engine does not answer", TimeoutError: "the engine does not answer" }[error.name] ?? error.message);
