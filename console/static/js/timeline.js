// Steps of the last minute: tokens that were computed for somebody, and those that only filled a graph.

import { html, useEffect, useRef } from "../vendor/htm-preact.js";
import { count } from "./format.js";
import { useLive } from "./live.js";
import { colour } from "./theme.js";

const NUM_BINS = 600;
const SERIES = [
  ["padding", "padding"],
  ["prefill", "prefill tokens"],
  ["decode", "decode tokens"],
];

export function Timeline() {
  const { bins, record } = useLive();
  const place = useRef(null);
  const plot = useRef(null);
  const data = columns(bins, record?.now ?? 0);
  const latest = useRef(null); // a plot that is made anew shows what is there then
  latest.current = data.stacked;
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      plot.current = new globalThis.uPlot(options(place.current.clientWidth), latest.current, place.current);
    };
    make();
    addEventListener("themechange", make);
    addEventListener("resize", make);
    return () => {
      removeEventListener("themechange", make);
      removeEventListener("resize", make);
      plot.current.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => plot.current?.setData(data.stacked));
  return html`
    <figure class="timeline" role="img" aria-label=${`Steps of the last minute: ${count(data.steps)} steps, ${count(data.sums.prefill)} prefill tokens, ${count(data.sums.decode)} decode tokens, ${count(data.sums.padding)} tokens of padding`}>
      <div ref=${place}></div>
    </figure>
    <p class="legend">
      <span><i class="swatch prefill"></i>prefill ${count(data.sums.prefill)}</span>
      <span><i class="swatch decode"></i>decode ${count(data.sums.decode)}</span>
      <span><i class="swatch padding"></i>padding ${count(data.sums.padding)}</span>
      <span>${count(data.steps)} steps; tokens in each tenth of a second</span>
    </p>
  `;
}

/** Seconds ago, and sums for a stack: padding over prefill over decode. */
function columns(bins, now) {
  const first = Math.floor(now * 10) - NUM_BINS + 1;
  const at = Array.from({ length: NUM_BINS }, (_, i) => (i - NUM_BINS + 1) / 10);
  const [prefill, decode, padding] = [0, 0, 0].map(() => new Array(NUM_BINS).fill(0));
  const sums = { prefill: 0, decode: 0, padding: 0 };
  let steps = 0;
  for (const { number, values } of bins.values()) {
    const i = number - first;
    if (i < 0 || i >= NUM_BINS) continue;
    const [numSteps, prefillTokens, decodeTokens, prefillPadding, decodePadding] = values;
    prefill[i] += prefillTokens;
    decode[i] += decodeTokens;
    padding[i] += prefillPadding + decodePadding;
    steps += numSteps;
  }
  for (let i = 0; i < NUM_BINS; i++) {
    sums.prefill += prefill[i];
    sums.decode += decode[i];
    sums.padding += padding[i];
    prefill[i] += decode[i];
    padding[i] += prefill[i];
  }
  return { stacked: [at, padding, prefill, decode], sums, steps };
}

function options(width) {
  const bars = globalThis.uPlot.paths.bars({ size: [1, 8], gap: 0 });
  const axis = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width,
    height: 190,
    cursor: { show: false },
    legend: { show: false },
    scales: { x: { time: false, range: [-60, 0] }, y: { range: (_, __, most) => [0, Math.max(8, most)] } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => `${tick} s`) }, { ...axis, size: 56 }],
    series: [{}, ...SERIES.map(([name, label]) => ({ label, paths: bars, points: { show: false }, width: 0, fill: colour(name) }))],
  };
}
