// Follows the engine: one stream of events while the page is visible, or questions every two seconds where no stream passes.

const RETRY_MS = 2000;
const FIRST_EVENT_MS = 5000; // a stream that brings nothing for so long is held up by a proxy
const POLLS = 15; // questions before the stream is tried again
const MOST_EVENTS = 200;
const TOKEN = "correlator-token";

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
    this.stop = null;
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop?.abort() : this.wake?.()));
    this.run();
  }

  async run() {
    for (;;) {
      while (document.hidden || this.needsToken) await new Promise((wake) => (this.wake = wake));
      try {
        await this.follow();
        this.fail("the engine has ended");
      } catch (error) {
        if (error instanceof NeedsToken) this.refused(error);
        else if (!document.hidden) {
          this.fail({ TypeError: "the engine does not answer", AbortError: "the stream brings nothing" }[error.name] ?? error.message);
          await this.poll();
        }
      }
      if (!document.hidden && !this.needsToken) await sleep(RETRY_MS);
    }
  }

  again() {
    this.needsToken = false;
    this.problem = "";
    this.wake?.();
  }

  refused(error) {
    this.needsToken = true;
    this.problem = signedIn() ? error.message : "";
    signIn("");
    this.changed();
  }

  fail(problem) {
    this.problem = problem;
    this.changed();
  }

  take(status) {
    this.status = status;
    this.problem = "";
    this.changed(true);
  }

  async follow() {
    this.stop = new AbortController();
    const late = setTimeout(() => this.stop.abort(), FIRST_EVENT_MS);
    const headers = this.last ? { "Last-Event-ID": this.last } : {};
    const answer = await ask("events?status", { headers, signal: this.stop.signal });
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
        if (fields.event) this.receive(fields, () => clearTimeout(late));
      }
    }
  }

  receive({ event, id, data }, isThere) {
    const value = JSON.parse(data);
    if (event === "full" || event === "changed") {
      isThere();
      this.take(event === "full" ? value : merged(this.status, value));
    } else if (event === "missed") {
      this.events = [];
    } else {
      this.last = id;
      this.events = [value, ...this.events].slice(0, MOST_EVENTS);
    }
  }

  async poll() {
    for (let tries = 0; tries < POLLS && !document.hidden; tries++) {
      try {
        this.take(await read("status"));
      } catch (error) {
        if (error instanceof NeedsToken) this.refused(error);
        return;
      }
      await sleep(RETRY_MS);
    }
  }
}
