// The last checkpoints of this life, and the button that takes one.

import { html } from "./vendor/preact.js";
import { brief, clock, count, local, moment } from "./model.js";
import { Acts } from "./part.js";
import { Plot } from "./plots.js";
import { useRead } from "./stored.js";

const READ_S = 5; // the list is read at most so often
const TAKE = {
  name: "Take a checkpoint", title: "Unless the last one holds everything already.", command: "correlator checkpoint FILE",
  order: { command: "checkpoint", timeout: 60 }, done: (result) => `Durable: ${count(result.taken)} since the start.`,
};
const PARTS = [["cut_s", "cut"], ["commit_s", "commit"], ["release_s", "release"]];
const COUNTS = [["changes", "Changes"], ["sends", "Sends"], ["dead_letters", "Dead letters"]];

function Durations({ taken, theme }) {
  const old = [...taken].reverse();
  const history = { times: old.map((one) => one.time), values: Object.fromEntries(PARTS.map(([name]) => [name, old.map((one) => one[name] * 1000)])) };
  const series = PARTS.map(([values, label], at) => ({ values, label, text: brief(taken[0][values]), stroke: `--plot-${"abc"[at]}`, dash: [undefined, [5, 3], [2, 2]][at] }));
  return html`<div class="plots"><${Plot} theme=${theme} history=${history} title="Duration in ms" series=${series} /></div>`;
}

export function Checkpoints({ status, commands, theme }) {
  const { value, problem } = useRead("checkpoints", `${status.started} ${Math.floor(status.time / READ_S)}`);
  const taken = value?.checkpoints ?? [];
  const columns = ["Number", "Time", "Cause", "Duration", ...PARTS.map(([, name]) => name[0].toUpperCase() + name.slice(1)), ...COUNTS.map(([, name]) => name)];
  return html`<section aria-labelledby="checkpoints">
    <div class="head"><h2 id="checkpoints">Checkpoints: ${count(status.checkpoints.taken)}</h2><span class="quiet">times in UTC</span></div>
    <p class="quiet">A checkpoint makes state, progress and messages to send durable, all at once. These are the last ones since the start.</p>
    <${Acts} acts=${[TAKE]} commands=${commands} />
    ${problem && html`<p class="notice">${problem}</p>`}
    ${value && !taken.length && html`<p>There is none.</p>`}
    ${taken.length > 0 && html`<${Durations} taken=${taken} theme=${theme} />
      <table class="parts" role="table">
        <caption class="hidden">The last checkpoints, the newest first</caption>
        <thead role="rowgroup"><tr role="row">${columns.map((name, at) => html`<th key=${name} role="columnheader" scope="col" class=${at > 2 ? "n" : ""}>${name}</th>`)}</tr></thead>
        <tbody role="rowgroup">${taken.map((one) => html`<tr key=${one.number} role="row">
          <td role="cell" data-name="number">${count(one.number)}</td>
          <td role="cell" class="t" data-name="time" title=${`${moment(one.time)}, local time ${local(one.time)}`}>${clock(one.time)}</td>
          <td role="cell" data-name="cause">${one.cause}</td>
          <td role="cell" class="n" data-name="duration">${brief(one.duration_s)}</td>
          ${PARTS.map(([name, text]) => html`<td key=${name} role="cell" class="n" data-name=${text}>${brief(one[name])}</td>`)}
          ${COUNTS.map(([name, text]) => html`<td key=${name} role="cell" class="n" data-name=${text.toLowerCase()}>${count(one[name])}</td>`)}
        </tr>`)}</tbody>
      </table>`}
  </section>`;
}
