// The plots of the last 15 minutes. They are kept in the page: a page that was just opened begins with an empty plot.

import { html, useEffect, useRef } from "./vendor/preact.js";
import { PLOT_S } from "./model.js";

const HEIGHT = 118;
const SHORTEST_S = 60; // a plot that has just begun
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function optionsOf(width, series) {
  const axis = { stroke: color("--muted"), font: "11px system-ui, sans-serif", grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, points: { size: 5 } },
    padding: [6, 20, 0, 0],
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: {
      x: { range: (_, first, last) => [Math.max(last - PLOT_S, Math.min(first, last - SHORTEST_S)), last] },
      y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] },
    },
    axes: [
      { ...axis, size: 22, space: 70, values: (_, ticks, __, ___, step) => ticks.map((at) => new Date(at * 1000).toISOString().slice(11, step < 60 ? 19 : 16)) },
      { ...axis, size: 46, space: 26, values: (_, ticks) => ticks.map((one) => short(one)) },
    ],
    series: [{}, ...series.map(({ stroke, dash }) => ({ stroke: color(stroke), width: 1.6, dash, points: { show: false } }))],
  };
}

const short = (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e4 ? `${value / 1e3}k` : `${Math.round(value * 1000) / 1000}`);

// The lines of a plot: the name of the values of each, its label, and its present value as text.
export const seriesOf = (lines, now, text, colors = "abc") =>
  lines.map(([values, label], at) => ({ values, label, text: text(now[values]), stroke: `--plot-${colors[at]}`, dash: [undefined, [5, 3], [2, 2]][at] }));

export function Plot({ title, href, series, history, theme }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = () => [history.times, ...series.map((one) => history.values[one.values])];
  useEffect(() => {
    const made = (plot.current = new uPlot(optionsOf(place.current.clientWidth || 300, series), data(), place.current));
    const watching = new ResizeObserver(([entry]) => made.setSize({ width: Math.floor(entry.contentRect.width), height: HEIGHT }));
    watching.observe(place.current);
    return () => {
      watching.disconnect();
      made.destroy();
    };
  }, [theme]);
  useEffect(() => plot.current?.setData(data()), [history.times.at(-1)]);
  const said = series.map((one) => `${one.label} ${one.text}`).join(", ");
  return html`<figure>
    <figcaption><strong>${href ? html`<a href=${href}>${title}</a>` : title}</strong> ${series.map((one) => html`<span class="key"><svg width="14" height="8" aria-hidden="true"><line x1="0" y1="4" x2="14" y2="4" stroke=${`var(${one.stroke})`} stroke-width="2" stroke-dasharray=${one.dash?.join(" ")} /></svg>${one.label} <b>${one.text}</b></span>`)}</figcaption>
    <div class="plot" role="img" aria-label=${`${title}, the last 15 minutes. Now: ${said}`} ref=${place}></div>
  </figure>`;
}
