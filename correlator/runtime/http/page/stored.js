// What the store keeps: dead letters, and state by key.

import { html, useEffect, useState } from "./vendor/preact.js";
import { bytes, count, lasting, local, moment } from "./model.js";
import { order, read } from "./live.js";
import { hrefOf } from "./flow.js";
import { Cell, Section, Table, utc } from "./blocks.js";

// Reads a path again whenever it changes, or `news` does; `again` reads the same once more.
export function useRead(path, news) {
  const [state, setState] = useState({ path: "", value: null, problem: "" });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let wanted = true;
    if (path) {
      read(path)
        .then((value) => wanted && setState({ path, value, problem: "" }))
        .catch((error) => wanted && setState({ path, value: null, problem: error.message }));
    }
    return () => {
      wanted = false;
    };
  }, [path, news, turn]);
  const fresh = state.path === path;
  return { value: fresh ? state.value : null, problem: fresh ? state.problem : "", again: () => setTurn((before) => before + 1) };
}

const unseen = (name) => html`<span class="hidden">${name}</span>`;
const LETTER_COLUMNS = [[unseen("chosen")], ["Number"], ["Kind"], ["Origin"], ["Receiver"], ["Reason"], ["Size", true], [unseen("message")]];
const queryOf = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined)).toString();

function Letter({ number }) {
  const { value, problem } = useRead(`letter?number=${number}`);
  if (problem) return html`<p class="quiet">${problem}</p>`;
  if (!value) return html`<p class="quiet">…</p>`;
  const { body, body_base64: binary, body_bytes: size, cut, reason, ...rest } = value;
  return html`<dl class="pairs">
    ${Object.entries(rest).map(([name, one]) => html`<dt key=${`${name} name`}>${name.replaceAll("_", " ")}</dt><dd key=${name}>${typeof one === "object" ? JSON.stringify(one) : String(one)}</dd>`)}
    <dt>body, ${bytes(size)}${cut ? ", the beginning" : ""}${binary === undefined ? "" : ", Base64"}</dt><dd><pre tabindex="0">${body ?? binary}</pre></dd>
  </dl>`;
}

function Errors({ parts }) {
  const failed = parts.filter((one) => one.part.last_error).sort((one, other) => other.part.last_error_at - one.part.last_error_at);
  if (!failed.length) return html`<p class="quiet">No part has lost its connection since the start.</p>`;
  return html`<ul class="log">${failed.map((one) => html`<li key=${one.key}><time title=${`local time ${local(one.part.last_error_at)}`}>${moment(one.part.last_error_at).slice(11)}</time><span><a href=${hrefOf(one)}>${one.key}</a></span><span>${one.part.error ? "" : "over: "}${one.part.last_error}</span></li>`)}</ul>`;
}

export function Dead({ parts, commands, query, store, letters: counted, gone }) {
  const [filter, setFilter] = useState({ kind: query.get("kind") ?? "", origin: query.get("origin") ?? "" });
  const [below, setBelow] = useState(null);
  const [chosen, setChosen] = useState(new Set());
  const [opened, setOpened] = useState(null);
  const [asked, setAsked] = useState(false);
  const [told, setTold] = useState("");
  const { value, problem, again } = useRead(store ? `letters?${queryOf({ ...filter, below })}` : "", gone);
  const letters = value?.letters ?? [];
  const numbers = letters.map((one) => one.number).filter((one) => chosen.has(one));
  const choose = (number, wanted) => {
    const next = new Set(chosen);
    wanted ? next.add(number) : next.delete(number);
    setChosen(next);
    setAsked(false);
  };
  const narrow = (changed) => {
    setFilter({ ...filter, ...changed });
    setBelow(null);
    setChosen(new Set());
    setAsked(false);
  };
  const act = async (command, told) => {
    setAsked(false);
    setTold("…");
    try {
      const done = (await order(command)).numbers.length;
      const left = numbers.length - done;
      setTold(`${done} ${told}.${left ? ` ${left} still cannot be processed, and stay.` : ""}`);
      setChosen(new Set());
    } catch (error) {
      setTold(error.message);
    }
    again();
  };
  const replay = () => act({ command: "replay", numbers, timeout: 60 }, "brought back");
  const discard = () => act({ command: "discard", numbers }, "discarded");
  const counts = value?.counts ?? [];
  const totalOf = (all) => all.reduce((sum, one) => sum + one.count, 0);
  const total = totalOf(counts);
  const newer = value && counted ? totalOf(counted) - total : 0;
  const options = (name) => [...new Set([...counts.map((one) => one[name]), filter[name]].filter(Boolean))].sort();
  return html`
    <${Section} id="dead" title="Dead letters${value ? `: ${count(total)}` : ""}" more=${html`<span class="acts">
          ${["kind", "origin"].map((name) => html`<label key=${name}>${name} <select value=${filter[name]} onChange=${(event) => narrow({ [name]: event.target.value })}>
            <option value="">all</option>${options(name).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>`)}
          <button type="button" onClick=${again}>${newer > 0 ? `Read ${count(newer)} more` : "Read again"}</button>
        </span>`}>
      <p class="quiet">Messages that could not be processed or sent. The store keeps them until somebody brings them back or discards them.</p>
      ${problem && html`<p class="notice">${problem}</p>`}
      <p role="status">${told}</p>
      ${letters.length > 0 && html`
        <div class="acts">
          <label><input type="checkbox" checked=${numbers.length === letters.length} onChange=${(event) => { setChosen(new Set(event.target.checked ? letters.map((one) => one.number) : [])); setAsked(false); }} /> all ${letters.length} that are shown</label>
          ${commands.length > 0 && (asked
            ? html`<span>Delete ${numbers.length} for good?</span><button type="button" class="danger" onClick=${discard}>Discard ${numbers.length}</button><button type="button" onClick=${() => setAsked(false)}>Keep</button>`
            : html`<button type="button" disabled=${!numbers.length} title="They are handled or sent again. Remove the cause first." onClick=${replay}>Bring ${numbers.length} back</button>
              <button type="button" disabled=${!numbers.length} onClick=${() => setAsked(true)}>Discard ${numbers.length} …</button>`)}
        </div>
        ${numbers.length > 0 && html`<p class="quiet">By command: <code>correlator deadletter replay FILE ${numbers.join(" ")}</code>, or <code>discard</code></p>`}
        <${Table} caption="Dead letters, the newest first" columns=${LETTER_COLUMNS}>${letters.map((one) => html`<tr key=${one.number} role="row">
          <${Cell}><input type="checkbox" aria-label=${`dead letter ${one.number}`} checked=${chosen.has(one.number)} onChange=${(event) => choose(one.number, event.target.checked)} /><//>
          <${Cell} name="number" title=${`engine time ${lasting(one.engine_time)}`}>${one.number}<//>
          ${["kind", "origin", "receiver"].map((name) => html`<${Cell} key=${name} name=${name}>${one[name]}<//>`)}
          <${Cell} kind="why">${one.reason}${opened === one.number && html`<${Letter} number=${one.number} />`}<//><${Cell} kind="n" name="size">${bytes(one.bytes)}<//>
          <${Cell}><button type="button" aria-expanded=${opened === one.number} aria-label=${`Message of dead letter ${one.number}`} onClick=${() => setOpened(opened === one.number ? null : one.number)}>${opened === one.number ? "Hide" : "Show"}</button><//>
        </tr>`)}<//>
        <div class="acts">
          ${below !== null && html`<button type="button" onClick=${() => setBelow(null)}>Newest</button>`}
          ${letters.length === 100 && html`<button type="button" onClick=${() => setBelow(letters.at(-1).number)}>Older</button>`}
        </div>`}
      ${!store && html`<p>This engine has no store: it only logs and counts them.</p>`}
      ${value && !letters.length && html`<p>There are none${filter.kind || filter.origin ? " of this kind and origin" : ""}.</p>`}
    <//>
    <${Section} id="errors" title="Last errors of the parts" more=${utc()}>
      <${Errors} parts=${parts} />
    <//>`;
}

function Keys({ owner }) {
  const [find, setFind] = useState("");
  const [after, setAfter] = useState(0);
  const { value, problem } = useRead(`state?${queryOf({ owner, find, after })}`);
  return html`<${Section} id="keys" title=${owner} more=${html`<label>key <input type="search" value=${find} onChange=${(event) => { setFind(event.target.value); setAfter(0); }} /></label>`}>
    ${problem && html`<p class="notice">${problem}</p>`}
    ${value && html`<p class="quiet">${value.rows.length ? `keys ${count(after + 1)} to ${count(after + value.rows.length)} of ${count(value.keys)}` : "no such key"}</p>
      <dl class="pairs">${value.rows.map((one) => html`<dt key=${`${one.key} name`}>${one.key || "(no key)"} <span class="quiet">${bytes(one.bytes)}</span></dt><dd key=${one.key}><pre tabindex="0">${one.problem || JSON.stringify(one.value, null, 1)}</pre></dd>`)}</dl>
      <div class="acts">${after > 0 && html`<button type="button" onClick=${() => setAfter(Math.max(0, after - 100))}>Before</button>`}${value.after !== null && html`<button type="button" onClick=${() => setAfter(value.after)}>Next</button>`}</div>`}
  <//>`;
}

export function State({ commands, query, store }) {
  const owner = query.get("owner");
  const { value, problem, again } = useRead(commands.length && store ? "state" : "");
  return html`
    <${Section} id="state" title="State" more=${commands.length > 0 && html`<button type="button" onClick=${again}>Read again</button>`}>
      <p class="quiet">What the last checkpoint holds, by key. Each look reads all of it.</p>
      ${!store && html`<p>This engine has no store.</p>`}
      ${store && !commands.length && html`<p>State is shown only with <code>http.token</code> in the file of the engine, since every program of this machine could read it otherwise. By command: <code>correlator inspect state FILE</code></p>`}
      ${problem && html`<p class="notice">${problem}</p>`}
      ${value && !value.owners.length && html`<p>There is none.</p>`}
      ${value?.owners.length > 0 && html`<${Table} caption="Owners of state" columns=${[["Owner"], ["Keys", true], ["Size", true]]}>${value.owners.map((one) => html`<tr key=${one.owner} role="row">
        <${Cell}><a href=${`#/state?${queryOf({ owner: one.owner })}`} aria-current=${one.owner === owner ? "true" : undefined}>${one.owner}</a><//><${Cell} kind="n" name="keys">${count(one.keys)}<//><${Cell} kind="n" name="size">${bytes(one.bytes)}<//>
      </tr>`)}<//>`}
    <//>
    ${owner && store && commands.length > 0 && html`<${Keys} key=${owner} owner=${owner} />`}`;
}
