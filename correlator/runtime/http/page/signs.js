// The signs of conditions, drawn: no font has to have them.

import { html } from "./vendor/preact.js";

const PATHS = {
  ok: "M3 8.5l3.2 3.2L13 4.8",
  slow: "M8 4.2V8l2.6 2.2M8 1.8a6.2 6.2 0 1 1 0 12.4A6.2 6.2 0 0 1 8 1.8z",
  paused: "M5.5 3v10M10.5 3v10",
  failing: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  unknown: "M5.4 5.6a2.6 2.6 0 1 1 3.8 2.3c-.9.5-1.2 1-1.2 1.9M8 12.6v.2",
};

export const shape = (level) => html`<path d=${PATHS[level]} fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" />`;

export const Sign = ({ level }) => html`<svg class="sign ${level}" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">${shape(level)}</svg>`;
