// Shortcuts of single keys. They can be switched off, for those who dictate (WCAG 2.1.4); Tab and Enter need none of them.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";

const KEPT = "correlator-keys";
const SECOND_MS = 1500; // the second key of a pair comes within this time
const VIEWS = { o: "#/", d: "#/dead", s: "#/state", c: "#/checkpoints", e: "#/settings" };
const LIST = [
  [["/"], "filter the parts or settings"],
  [["j"], ["k"], "next and previous part"],
  [["Enter"], "open the chosen part"],
  [["Esc"], "back from a part, out of the filter"],
  [["g", "o"], "overview"],
  [["g", "d"], "dead letters"],
  [["g", "s"], "state"],
  [["g", "c"], "checkpoints"],
  [["g", "e"], "settings"],
  [["f"], "freeze the page, and go on"],
  [["?"], "this list"],
];

let on = true;
try {
  on = localStorage.getItem(KEPT) !== "off";
} catch {
  // storage is switched off
}
let pairUntil = 0;

const isText = (element) => element.matches("input:not([type=checkbox]), textarea, select");

function move(by) {
  const all = [...document.querySelectorAll("table.parts td:first-child a")];
  const at = all.indexOf(document.activeElement);
  all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
}

// The view is drawn after the address has changed, and the search field is in the overview alone.
function find() {
  const field = () => document.querySelector('input[type="search"]');
  if (!field()) location.hash = "#/";
  requestAnimationFrame(() => requestAnimationFrame(() => field()?.focus()));
}

function escape(element) {
  if (isText(element)) element.blur();
  else if (location.hash.startsWith("#/part/")) location.hash = "#/";
}

const ACTS = { "/": find, j: () => move(1), k: () => move(-1) };

function pressed(event, more) {
  const { key, target } = event;
  if (!on || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;
  if (key === "Escape") escape(target);
  if (isText(target)) return;
  const second = event.timeStamp < pairUntil ? VIEWS[key] : undefined;
  pairUntil = key === "g" ? event.timeStamp + SECOND_MS : 0;
  const act = second ? () => (location.hash = second) : (more[key] ?? ACTS[key]);
  if (!act) return;
  event.preventDefault(); // `/` must not be typed into the field that it opens
  act();
}

// The button, the list that it opens, and the keys themselves.
export function Keys({ freeze }) {
  const dialog = useRef(null);
  const [isOn, setOn] = useState(on);
  const open = () => dialog.current.showModal();
  useEffect(() => {
    const listen = (event) => pressed(event, { f: freeze, "?": open });
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  });
  const turn = (event) => {
    on = event.target.checked;
    setOn(on);
    try {
      localStorage.setItem(KEPT, on ? "on" : "off");
    } catch {
      // the choice cannot be kept
    }
  };
  return html`<button type="button" aria-haspopup="dialog" onClick=${open}>Keys</button>
    <dialog ref=${dialog} aria-labelledby="keys-list">
      <div class="head"><h2 id="keys-list">Keyboard shortcuts</h2><button type="button" onClick=${() => dialog.current.close()}>Close</button></div>
      <dl class="pairs">${LIST.map((row) => html`<dt key=${row.at(-1)}>${row.slice(0, -1).map((keys, at) => html`${at ? " or " : ""}${keys.map((key) => html`<kbd>${key}</kbd>`)}`)}</dt><dd key=${`${row.at(-1)} text`}>${row.at(-1)}</dd>`)}</dl>
      <label><input type="checkbox" checked=${isOn} onChange=${turn} /> Shortcuts are on</label>
    </dialog>`;
}
