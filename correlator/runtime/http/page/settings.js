// What the engine runs with: the level of its log, its settings with their sources, and the versions of its libraries.

import { html, useState } from "./vendor/preact.js";
import { count } from "./model.js";
import { order } from "./live.js";
import { useRead } from "./stored.js";
import { Cell, Section, Table } from "./blocks.js";

const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"];

function Level({ level, commands, again }) {
  const [told, setTold] = useState("");
  const choose = async ({ target }) => {
    setTold("…");
    try {
      const done = await order({ command: "loglevel", level: target.value });
      setTold(`${done.before} → ${done.level}, until the process ends.`);
    } catch (error) {
      setTold(error.message);
    }
    again();
  };
  return html`<${Section} id="level" title="Log">
    <div class="acts">${!level
      ? "The program in which the engine runs has set up its log by itself."
      : commands.length ? html`<label>lines from level <select value=${level} onChange=${choose}>${LEVELS.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>`
      : html`<span>lines from level ${level}</span><span class="quiet">By command: <code>correlator loglevel FILE LEVEL</code></span>`}
      <span role="status">${told}</span></div>
  <//>`;
}

function Values({ settings }) {
  const [filter, setFilter] = useState("");
  const [all, setAll] = useState(false);
  const found = settings.filter((one) => [one.part, one.name, one.value].some((text) => text.toLowerCase().includes(filter.toLowerCase())));
  const shown = all ? found : found.filter((one) => one.source !== "default");
  return html`<div class="acts">
      <label><span class="hidden">Filter of the settings: </span><input type="search" placeholder="Filter: part, setting, value" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>
      <label><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> defaults, too</label>
      <span class="quiet" role="status">${count(shown.length)} of ${count(settings.length)}</span>
    </div>
    <${Table} caption="Settings by part" columns=${[["Part"], ["Setting"], ["Value"], ["Source"]]}>${shown.map((one) => html`<tr key=${`${one.part} ${one.name} ${one.source}`} role="row">
      <${Cell}>${one.part}<//><${Cell} name="setting">${one.name}<//><${Cell} name="value">${one.value ? html`<code>${one.value}</code>` : "none"}<//><${Cell} name="source">${one.source}<//>
    </tr>`)}<//>`;
}

export function Settings({ live, status, commands }) {
  const news = live.events.find((one) => one.event === "log_level")?.id;
  const { value, problem, again } = useRead("settings", `${status.started} ${news}`);
  return html`${problem && html`<p class="notice">${problem}</p>`}
    ${value && html`<${Section} id="settings" title="Settings">
        <p class="quiet">What this engine has run with since its start. Secrets are ***.</p>
        ${value.settings ? html`<${Values} settings=${value.settings} />` : html`<p>Values are shown only with <code>http.token</code> in the file of the engine, since every program of this machine could read them otherwise. By command: <code>correlator settings FILE</code></p>`}
      <//>
      <${Level} level=${value.log_level} commands=${commands} again=${again} />
      <${Section} id="versions" title="Versions">
        <dl class="facts">${Object.entries(value.versions).map(([name, version]) => html`<div key=${name}><dt>${name}</dt><dd>${version}</dd></div>`)}</dl>
      <//>`}`;
}
