// The last checkpoints of this life, and the button that takes one.

import { html } from "./vendor/preact.js";
import { brief, clock, count, whole } from "./model.js";
import { Acts } from "./part.js";
import { Plot, seriesOf } from "./plots.js";
import { useRead } from "./stored.js";
import { Cell, Section, Table, utc } from "./blocks.js";

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
  return html`<div class="plots"><${Plot} theme=${theme} history=${history} title="Duration in ms" series=${seriesOf(PARTS, taken[0], brief)} /></div>`;
}

export function Checkpoints({ status, commands, theme }) {
  const { value, problem } = useRead("checkpoints", `${status.started} ${Math.floor(status.time / READ_S)}`);
  const taken = value?.checkpoints ?? [];
  const columns = [["Number"], ["Time"], ["Cause"], ...["Duration", "Cut", "Commit", "Release", ...COUNTS.map(([, name]) => name)].map((name) => [name, true])];
  return html`<${Section} id="checkpoints" title="Checkpoints: ${count(status.checkpoints.taken)}" more=${utc()}>
    <p class="quiet">A checkpoint makes state, progress and messages to send durable, all at once. These are the last ones since the start.</p>
    <${Acts} acts=${[TAKE]} commands=${commands} />
    ${problem && html`<p class="notice">${problem}</p>`}
    ${value && !taken.length && html`<p>There is none.</p>`}
    ${taken.length > 0 && html`<${Durations} taken=${taken} theme=${theme} />
      <${Table} caption="The last checkpoints, the newest first" columns=${columns}>${taken.map((one) => html`<tr key=${one.number} role="row">
        <${Cell} name="number">${count(one.number)}<//>
        <${Cell} name="time" kind="t" title=${whole(one.time)}>${clock(one.time)}<//>
        <${Cell} name="cause">${one.cause}<//>
        ${[["duration_s", "duration"], ...PARTS].map(([name, text]) => html`<${Cell} key=${name} kind="n" name=${text}>${brief(one[name])}<//>`)}
        ${COUNTS.map(([name, text]) => html`<${Cell} key=${name} kind="n" name=${text.toLowerCase()}>${count(one[name])}<//>`)}
      </tr>`)}<//>`}
  <//>`;
}
