// What several views are made of.

import { html } from "./vendor/preact.js";

// `more` stands beside the title.
export const Section = ({ id, title, more, children }) => html`<section aria-labelledby=${id}><div class="head"><h2 id=${id}>${title}</h2>${more}</div>${children}</section>`;

export const Closed = () => html`Only with <code>http.token</code> in the file of the engine can it be changed from here.`;

export const utc = () => html`<span class="quiet">times in UTC</span>`;

// A table that becomes a list of cards on narrow screens. Roles are said again, since `display` takes them away there.
// `columns`: name, whether it holds numbers, and how it is sorted.
export const Table = ({ caption, columns, children }) => html`<table class="parts" role="table">
  <caption class="hidden">${caption}</caption>
  <thead role="rowgroup"><tr role="row">${columns.map(([name, isNumber, sort]) => html`<th role="columnheader" scope="col" class=${isNumber ? "n" : ""} aria-sort=${sort}>${name}</th>`)}</tr></thead>
  <tbody role="rowgroup">${children}</tbody>
</table>`;

export const Cell = ({ name, kind, title, children }) => html`<td role="cell" class=${kind} data-name=${name} title=${title}>${children}</td>`;
