// The page: follows the engine, and shows the view that the address names.

import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";
import { Checkpoints } from "./checkpoints.js";
import { Keys } from "./keys.js";
import { Live, read, signIn } from "./live.js";
import { clock, History, lasting, moment, partsOf } from "./model.js";
import { Part } from "./part.js";
import { Overview } from "./overview.js";
import { Settings } from "./settings.js";
import { Dead, State } from "./stored.js";
import { Sign } from "./signs.js";

const VIEWS = [["#/", "Overview"], ["#/dead", "Dead letters"], ["#/state", "State"], ["#/checkpoints", "Checkpoints"], ["#/settings", "Settings"]];
const COUNT_MS = 10000; // dead letters are counted at most so often
const LETTERS = new Set(["dead_letters", "handler_failed", "replayed", "discarded", "unhandled"]);
const GONE = new Set(["replayed", "discarded"]);
const TELL_MS = 10000; // a screen reader hears of changes at most so often

const live = new Live(changed);
const history = new History();
let frozen = null;
let draw = () => {};

function changed(isNew) {
  if (isNew) history.take(live.status);
  draw();
}

function routeOf(hash) {
  const [path, query = ""] = (hash || "#/").split("?");
  const [, view = "", ...names] = path.split("/");
  try {
    return { view, names: names.map(decodeURIComponent), query: new URLSearchParams(query) };
  } catch {
    return { view: "?", names: [], query: new URLSearchParams() }; // no part has such a name
  }
}

// Back from a part: to its row in the table, from where the next one can be opened.
function focusOn(hash) {
  if (hash.startsWith("#/part/")) [...document.querySelectorAll("table.parts a")].find((one) => one.hash === hash)?.focus();
}

// The changes of conditions, for those who hear the page: at most one sentence in ten seconds.
let before = null;
let heard = -TELL_MS;
let said = "";
function sayOf(parts) {
  const now = new Map(parts.map((one) => [one.key, one.condition.word]));
  if (before && performance.now() - heard >= TELL_MS) {
    const changes = [...now].filter(([key, word]) => before.get(key) !== word).map(([key, word]) => `${key}: ${word}`);
    if (changes.length) {
      const failing = parts.filter((one) => one.condition.level === "failing").length;
      said = `${changes.slice(0, 5).join(", ")}${changes.length > 5 ? ` and ${changes.length - 5} more` : ""}. ${failing} failing.`;
      heard = performance.now();
      before = now;
    }
  }
  before ??= now;
  return said;
}

function SignIn({ problem }) {
  const [given, setGiven] = useState("");
  const enter = (event) => {
    event.preventDefault();
    signIn(given);
    live.again();
    draw();
  };
  return html`<section class="sign-in">
    <h2>This engine wants a token</h2>
    <form onSubmit=${enter}>
      <label for="token">Token</label>
      <input id="token" type="password" autocomplete="off" required value=${given} onInput=${(event) => setGiven(event.target.value)} />
      <button>Sign in</button>
    </form>
    ${problem && html`<p class="notice" role="alert">${problem}</p>`}
    <p class="quiet">It is the setting <code>http.token</code> of the engine. This tab keeps it until you close the tab.</p>
  </section>`;
}

function Top({ status, failing, theme, route }) {
  const running = status && status.phase === "running";
  const ready = status && !status.not_ready?.length;
  const level = !status ? "unknown" : failing ? "failing" : running && ready ? "ok" : "slow";
  const turn = () => window.chooseTheme(theme === "dark" ? "light" : "dark");
  const freeze = () => {
    frozen = frozen || !live.status ? null : { status: live.status, events: live.events };
    draw();
  };
  const current = (href) => (href === "#/" ? route.view === "" || route.view === "part" : route.view === href.slice(2));
  return html`<header class="top">
    <h1>${status?.name ?? "correlator"}</h1>
    ${status && html`<span class="phase"><${Sign} level=${level} /> ${failing ? `${status.phase}, ${failing} failing` : `${status.phase}${running && !ready ? ", not ready" : ""}`}${status.started ? html` <span class="quiet" title=${`since ${moment(status.started)}`}>${lasting(status.time - status.started)}</span>` : ""}</span>`}
    <nav aria-label="Views">${VIEWS.map(([href, name]) => html`<a key=${href} href=${href} aria-current=${current(href) ? "page" : undefined}>${name}</a>`)}</nav>
    <span class="acts">
      <button type="button" aria-pressed=${frozen !== null} onClick=${freeze}>Freeze</button>
      <button type="button" onClick=${turn}>${theme === "dark" ? "Light" : "Dark"}</button>
      <${Keys} freeze=${freeze} />
    </span>
  </header>`;
}

function View({ route, shown, parts, theme, commands, paths, letters, store, gone }) {
  const { status, events } = shown;
  const given = { live: { events }, status, parts, history, theme, commands, letters, store, gone, query: route.query };
  if (route.view === "") return html`<${Overview} ...${given} />`;
  if (route.view === "part") return html`<${Part} ...${given} kind=${route.names[0]} id=${route.names.slice(1).join("/")} paths=${paths} />`;
  if (route.view === "checkpoints") return html`<${Checkpoints} ...${given} />`;
  if (route.view === "settings") return html`<${Settings} ...${given} />`;
  if (route.view === "dead") return html`<${Dead} key=${route.query.toString()} ...${given} />`;
  if (route.view === "state") return html`<${State} ...${given} />`;
  return html`<section><h2>There is no such view</h2><p><a href="#/">Overview</a></p></section>`;
}

function App() {
  const [, setTurn] = useState(0);
  const [hash, setHash] = useState(location.hash);
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  const [{ commands, store }, setMay] = useState({ commands: [], store: false });
  const [paths, setPaths] = useState([]);
  draw = () => setTurn((turn) => turn + 1);
  const route = routeOf(hash);
  useEffect(() => {
    addEventListener("theme", () => setTheme(document.documentElement.dataset.theme));
    addEventListener("hashchange", ({ oldURL }) => {
      setHash(location.hash);
      document.getElementById("content")?.focus();
      scrollTo(0, 0);
      requestAnimationFrame(() => requestAnimationFrame(() => focusOn(new URL(oldURL).hash)));
    });
    live.start();
  }, []);
  const isThere = live.status !== null && !live.needsToken;
  useEffect(() => {
    if (isThere) read("control").then(setMay).catch(() => setMay({ commands: [], store: false }));
  }, [isThere, live.status?.started]);
  const [kind, ...rest] = route.names;
  const about = route.view === "part" && isThere && (kind === "receiver" || kind === "sender") ? `part=${encodeURIComponent(rest.join("/"))}` : "";
  useEffect(() => {
    setPaths([]);
    if (about) read(`paths?${about}`).then((told) => setPaths(told.paths)).catch(() => setPaths([]));
  }, [about]);
  const [letters, setLetters] = useState(null);
  const counted = useRef(-COUNT_MS);
  const news = live.events.find((one) => LETTERS.has(one.event))?.id;
  const gone = live.events.find((one) => GONE.has(one.event))?.id;
  useEffect(() => {
    if (!isThere || !store) return undefined;
    const timer = setTimeout(() => {
      counted.current = performance.now();
      read("letters?limit=1").then((told) => setLetters(told.counts)).catch(() => setLetters(null));
    }, Math.max(0, counted.current + COUNT_MS - performance.now()));
    return () => clearTimeout(timer);
  }, [isThere, store, news, live.status?.started]);
  const shown = frozen ?? { status: live.status, events: live.events };
  const parts = shown.status && !live.needsToken ? partsOf(shown.status, history.rates) : [];
  const failing = parts.filter((one) => one.condition.level === "failing").length;
  useEffect(() => {
    const name = shown.status?.name ?? "correlator";
    document.title = live.problem && shown.status ? `no answer · ${name}` : failing ? `${failing} failing · ${name}` : name;
  });
  const status = live.needsToken ? null : shown.status;
  return html`
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>Skip to the content</a>
    <${Top} status=${status} failing=${failing} theme=${theme} route=${route} />
    <main id="content" tabindex="-1">
      ${live.needsToken ? html`<${SignIn} problem=${live.problem} />` : html`
        ${live.problem && html`<p class="notice" role="alert"><strong>${live.problem}</strong>${status ? ` What you see is of ${clock(status.time)}.` : ""} The page asks again and again.</p>`}
        ${frozen && html`<p class="notice">Frozen at ${clock(frozen.status.time)}: press Freeze to go on.</p>`}
        ${status ? html`<${View} route=${route} shown=${shown} parts=${parts} theme=${theme} commands=${commands} paths=${paths} letters=${store ? letters : null} store=${store} gone=${gone} />` : !live.problem && html`<p class="quiet">…</p>`}`}
    </main>
    <p class="hidden" role="status" aria-live="polite">${parts.length ? sayOf(parts) : ""}</p>`;
}

render(html`<${App} />`, document.getElementById("app"));
