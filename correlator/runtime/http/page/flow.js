// The picture of the flow: receivers, contexts and pipelines, senders, from left to right. The table has the same as text.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { byCondition, count, edgesOf, rate } from "./model.js";
import { shape } from "./signs.js";

const GROUP_FROM = 30; // parts; from here on those that are well are drawn together
const LINE = 17;
const PAD = 9;
const GAP = 12;
const CHARACTER = 7.1; // of the names, at 13 pixels
const COLUMNS = [["receiver"], ["context", "pipeline"], ["sender"]];

// A name on several lines if it is long, broken after separators where possible. It is never cut.
function wrapped(name, most) {
  const lines = [];
  let rest = name;
  while (rest.length > most) {
    const at = Math.max(...["-", "_", ".", ":", "/", " "].map((one) => rest.lastIndexOf(one, most - 1)));
    const end = at > most / 3 ? at + 1 : most;
    lines.push(rest.slice(0, end));
    rest = rest.slice(end);
  }
  return [...lines, rest];
}

// The boxes of the picture: parts, or several parts of one connection that are well.
function boxesOf(parts) {
  if (parts.length < GROUP_FROM) return parts.map((one) => ({ key: one.key, kind: one.kind, members: [one], level: one.condition.level }));
  const boxes = new Map();
  for (const one of [...parts].sort(byCondition)) {
    const alone = one.condition.level !== "ok";
    const place = one.part.connection ?? "";
    const key = alone ? one.key : `${one.kind} of ${place}`;
    const box = boxes.get(key) ?? { key, kind: one.kind, members: [], level: one.condition.level, place };
    box.members.push(one);
    boxes.set(key, box);
  }
  return [...boxes.values()];
}

// Where everything lies. It depends on the boxes and the width only, not on the figures.
function layout(boxes, edges, width) {
  const stacked = width < 640;
  const wide = stacked ? width - 2 : Math.min(300, Math.floor((width - 2) * 0.27));
  const columns = COLUMNS.map((kinds) => boxes.filter((one) => kinds.includes(one.kind)));
  const neighbours = new Map(boxes.map((one) => [one.key, []]));
  for (const [from, to] of edges) neighbours.get(to)?.push(from);
  const rank = new Map();
  const places = new Map();
  let height = 0;
  let top = 1;
  columns.forEach((column, at) => {
    if (at && !stacked) {
      const mean = (one) => {
        const known = neighbours.get(one.key).map((key) => rank.get(key)).filter((value) => value !== undefined);
        return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : 0;
      };
      column.sort((one, other) => mean(one) - mean(other));
    }
    if (!stacked) top = 1;
    column.forEach((box, index) => {
      const name = box.members.length > 1 ? groupName(box) : box.members[0].id;
      const lines = wrapped(name, Math.floor((wide - 2 * PAD - 22 - 58) / CHARACTER));
      const tall = PAD * 2 + LINE * (lines.length + 1) - 2;
      const left = stacked ? 1 : 1 + at * Math.floor((width - 2 - wide) / 2);
      rank.set(box.key, index / Math.max(1, column.length - 1));
      places.set(box.key, { left, top, wide, tall, lines });
      top += tall + GAP;
    });
    height = Math.max(height, top);
    if (stacked && column.length) top += 10;
  });
  if (!stacked) {
    const depth = columns.map((column) => column.reduce((sum, one) => sum + places.get(one.key).tall + GAP, 0));
    const most = Math.max(...depth);
    columns.forEach((column, at) => {
      const shift = Math.min(120, (most - depth[at]) / 2); // a short column stays near the top, where it is seen
      for (const one of column) places.get(one.key).top += shift;
    });
  }
  return { places, height: Math.max(height, 20), stacked };
}

const groupName = (box) => `${box.members.length} ${box.kind}s${box.place ? ` of ${box.place}` : ""}`;

const sum = (members, name) => members.reduce((all, one) => all + (one[name] ?? 0), 0);

function lineOf(box, history) {
  const [one] = box.members;
  if (box.members.length > 1) return "OK";
  if (box.level === "failing" || box.level === "paused") return [one.condition.word, one.waiting && one.kind === "sender" ? `${count(one.waiting)} waiting` : ""].filter(Boolean).join(" · ");
  if (one.part.waits_for && one.part.waits_for !== "window") return `WAITS for ${one.part.waits_for}`;
  if (one.kind === "context" || one.kind === "pipeline") {
    const busy = history.rates[`busy ${one.id}`];
    return [one.condition.word === "OK" ? one.kind : one.condition.word, busy === undefined ? "" : `${Math.round(busy * 100)} % busy`, one.waiting ? `${count(one.waiting)} waiting` : ""].filter(Boolean).join(" · ");
  }
  if (one.condition.level !== "ok") return [one.condition.word, one.waiting ? `${count(one.waiting)} waiting` : ""].filter(Boolean).join(" · ");
  return [one.part.connection, one.waiting && one.kind === "sender" ? `${count(one.waiting)} waiting` : one.part.reliability].filter(Boolean).join(" · ");
}

function sentence(parts) {
  const named = (level) => parts.filter((one) => one.condition.level === level).map((one) => one.key);
  const counted = ["receiver", "context", "pipeline", "sender"]
    .map((kind) => [kind, parts.filter((one) => one.kind === kind).length])
    .filter(([, found]) => found)
    .map(([kind, found]) => `${found} ${kind}${found > 1 ? "s" : ""}`);
  const told = [["failing", "Failing"], ["slow", "Slow"], ["paused", "Paused"]].map(([level, word]) => (named(level).length ? ` ${word}: ${named(level).join(", ")}.` : ""));
  return `The flow of messages: ${counted.join(", ")}.${told.join("")} The table of the parts says the same as text.`;
}

function Edge({ from, to, level, speed, sure }) {
  const x = [from.left + from.wide, to.left];
  const y = [from.top + from.tall / 2, to.top + to.tall / 2];
  const bend = (x[1] - x[0]) * 0.45;
  const thick = speed ? Math.min(5, 1.2 + Math.log10(1 + speed)) : 1.2;
  return html`<path class="edge ${level} ${sure ? "" : "may"}" d=${`M${x[0]} ${y[0]}C${x[0] + bend} ${y[0]} ${x[1] - bend} ${y[1]} ${x[1]} ${y[1]}`} stroke-width=${thick.toFixed(2)} />`;
}

function Box({ box, place, history, open }) {
  const speed = box.members.some((one) => one.rate !== undefined) ? sum(box.members, "rate") : undefined;
  const y = place.top + PAD + 11;
  const { level } = box;
  return html`<g class="box ${level}" onClick=${() => open(box)}>
    <rect x=${place.left} y=${place.top} width=${place.wide} height=${place.tall} rx="5" />
    <svg class="sign ${level}" x=${place.left + PAD} y=${place.top + PAD - 1} width="14" height="14" viewBox="0 0 16 16">${shape(level)}</svg>
    <text x=${place.left + PAD + 21} y=${y} class="name">${place.lines.map((line, at) => html`<tspan x=${place.left + PAD + 21} dy=${at ? LINE : 0}>${line}</tspan>`)}</text>
    <text x=${place.left + place.wide - PAD} y=${y} class="rate">${rate(speed)}</text>
    <text x=${place.left + PAD + 21} y=${y + LINE * place.lines.length} class="more">${lineOf(box, history)}</text>
  </g>`;
}

export function Flow({ status, parts, history, filter, setFilter }) {
  const frame = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watching = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watching.observe(frame.current);
    return () => watching.disconnect();
  }, []);
  const boxes = boxesOf(parts);
  const boxOf = new Map(boxes.flatMap((box) => box.members.map((one) => [one.key, box.key])));
  const edges = new Map();
  for (const [from, to, sure] of edgesOf(status)) {
    const ends = [boxOf.get(from), boxOf.get(to)];
    if (ends[0] && ends[1]) edges.set(ends.join(">"), [...ends, sure]);
  }
  const shapeKey = JSON.stringify([boxes.map((one) => [one.key, one.members.length]), [...edges.keys()], width]);
  const drawn = useMemo(() => (width ? layout(boxes, [...edges.values()], width) : null), [shapeKey]);
  const byKey = new Map(boxes.map((one) => [one.key, one]));
  const open = (box) => {
    if (box.members.length === 1) location.hash = hrefOf(box.members[0]);
    else setFilter(box.place || box.kind);
  };
  const worse = (one, other) => (one.level === "ok" ? other.level : one.level);
  return html`<div class="flow" ref=${frame} data-filter=${filter}>
    ${drawn && html`<svg role="img" aria-label=${sentence(parts)} width=${width} height=${drawn.height} viewBox=${`0 0 ${width} ${drawn.height}`}>
      ${!drawn.stacked && [...edges.values()].map(([from, to, sure]) => html`<${Edge} key=${`${from}>${to}`} from=${drawn.places.get(from)} to=${drawn.places.get(to)}
        level=${worse(byKey.get(from), byKey.get(to))} sure=${sure} speed=${sum((byKey.get(from).kind === "receiver" ? byKey.get(from) : byKey.get(to)).members, "rate")} />`)}
      ${boxes.map((box) => html`<${Box} key=${box.key} box=${box} place=${drawn.places.get(box.key)} history=${history} open=${open} />`)}
    </svg>`}
  </div>`;
}

export const hrefOf = (one) => `#/part/${one.kind}/${encodeURIComponent(one.id)}`;
