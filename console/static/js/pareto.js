// Dollars against time per token, both logarithmic: every configuration, and the line of those that no other beats.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { dollars, precise } from "./format.js";
import { nameOf } from "./plan-stream.js";

const HEIGHT = 400;
const NARROW = matchMedia("(max-width: 40rem)"); // a drawing made for a desk would have letters of 5 pixels there
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 16, 14, 46];

export function Pareto({ rows, best, chosen, choose }) {
  const [isNarrow, setNarrow] = useState(NARROW.matches);
  useEffect(() => {
    const listener = () => setNarrow(NARROW.matches);
    NARROW.addEventListener("change", listener);
    return () => NARROW.removeEventListener("change", listener);
  }, []);
  const WIDTH = isNarrow ? 360 : 820;
  const points = rows.filter((row) => row.usd != null && row.tpot_ms > 0);
  if (!points.length) return html`<div class="pareto empty"></div>`;
  const x = axis(points.map((row) => row.tpot_ms), LEFT, WIDTH - RIGHT, isNarrow ? 1 : 3);
  const y = axis(points.map((row) => row.usd), HEIGHT - BOTTOM, TOP);
  const isBest = new Set(best);
  const text = (row) => `${nameOf(row)}: TPOT ${precise(row.tpot_ms)} ms, ${dollars(row.usd)} per million tokens`;
  const pick = (row) => (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(row);
  };
  return html`
    <svg class="pareto" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label="Dollars per million tokens against time per output token; the points of the front can be chosen">
      ${x.ticks.map((tick) => html`<line class="grid" x1=${x.at(tick)} x2=${x.at(tick)} y1=${TOP} y2=${HEIGHT - BOTTOM} /><text class="tick" x=${x.at(tick)} y=${HEIGHT - BOTTOM + 16} text-anchor="middle">${precise(tick)}</text>`)}
      ${y.ticks.map((tick) => html`<line class="grid" x1=${LEFT} x2=${WIDTH - RIGHT} y1=${y.at(tick)} y2=${y.at(tick)} /><text class="tick" x=${LEFT - 8} y=${y.at(tick) + 4} text-anchor="end">${dollars(tick)}</text>`)}
      <text class="label" x=${(LEFT + WIDTH - RIGHT) / 2} y=${HEIGHT - 8} text-anchor="middle">ms per output token</text>
      <text class="label" transform=${`translate(12 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)`} text-anchor="middle">$ per 1M tokens in and out</text>
      ${points.filter((row) => !isBest.has(row)).map((row) => html`<circle class=${`point ${row.misses.length ? "misses" : ""} ${row.isStale ? "stale" : ""}`} cx=${x.at(row.tpot_ms)} cy=${y.at(row.usd)} r="3"><title>${text(row)}</title></circle>`)}
      <polyline class="front" points=${best.map((row) => `${x.at(row.tpot_ms)},${y.at(row.usd)}`).join(" ")} />
      ${best.map((row) => html`<circle class=${`point best ${row === chosen ? "chosen" : ""} ${row.isStale ? "stale" : ""}`} cx=${x.at(row.tpot_ms)} cy=${y.at(row.usd)} r=${row === chosen ? 7 : 5} tabindex="0" role="button" aria-pressed=${String(row === chosen)} aria-label=${text(row)} onClick=${pick(row)} onKeyDown=${pick(row)}><title>${text(row)}</title></circle>`)}
    </svg>
  `;
}

/** A logarithmic axis over the values, with ticks at 1, 2 and 5 of each decade, of few decades. */
function axis(values, begin, end, fewDecades = 3) {
  const [low, high] = [Math.log10(Math.min(...values) / 1.15), Math.log10(Math.max(...values) * 1.15)];
  const at = (value) => begin + ((Math.log10(value) - low) / (high - low)) * (end - begin);
  const ticks = [];
  const steps = high - low > fewDecades ? [1] : [1, 2, 5];
  for (let decade = Math.floor(low); decade <= high; decade++) {
    for (const step of steps) {
      const tick = step * 10 ** decade;
      if (Math.log10(tick) >= low && Math.log10(tick) <= high) ticks.push(tick);
    }
  }
  return { at, ticks };
}
