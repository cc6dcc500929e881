// A drawing of the instance: chips with their links, and on each core what its memory holds and how busy it is.

import { html } from "../vendor/htm-preact.js";
import { bytes, percent } from "./format.js";

export const USES = ["weights", "kv", "scratchpad", "collectives", "dma_rings", "code", "runtime"];
const CORE = { width: 62, height: 92, gap: 8 };
const PAD = 12;
const HEAD = 20;
const GAP = 36;

export function Instance({ part, cores, rates }) {
  const columns = Math.min(part.cores_per_chip, part.cores_per_chip > 4 ? 4 : 2);
  const rows = Math.ceil(part.cores_per_chip / columns);
  const width = columns * (CORE.width + CORE.gap) - CORE.gap + 2 * PAD;
  const height = rows * (CORE.height + CORE.gap) - CORE.gap + PAD + HEAD;
  const places = layout(part).map(([x, y]) => [x * (width + GAP), y * (height + GAP)]);
  const byId = new Map(cores.map((core) => [core.id, core]));
  const box = [Math.max(...places.map(([x]) => x)) + width, Math.max(...places.map(([, y]) => y)) + height];
  const scale = part.num_chips <= 4 ? 1.4 : 1;
  const [wide, high] = [box[0] + 36, box[1] + 36];
  return html`
    <div class="drawing">
    <div class="scroll" tabindex="0" role="region" aria-label="Drawing of the instance">
      <svg class="instance" viewBox=${`-18 -18 ${wide} ${high}`} width=${scale * wide} height=${scale * high} role="img" aria-label=${summary(part, cores, rates)}>
        ${links(part).map(([from, to]) => html`<path class="link" d=${wire(places[from], places[to], width, height)} />`)}
        ${places.map(
          ([x, y], chip) => html`<g transform=${`translate(${x} ${y})`}>
            <rect class="chip" width=${width} height=${height} rx="8" />
            <text class="chip-name" x=${PAD} y="14">chip ${chip}</text>
            ${Array.from({ length: part.cores_per_chip }, (_, i) => {
              const id = chip * part.cores_per_chip + i;
              const place = `translate(${PAD + (i % columns) * (CORE.width + CORE.gap)} ${HEAD + Math.floor(i / columns) * (CORE.height + CORE.gap)})`;
              return html`<g transform=${place}><${Core} id=${id} core=${byId.get(id)} rate=${rates[byId.get(id)?.engine]} /></g>`;
            })}
          </g>`,
        )}
      </svg>
    </div>
    <p class="legend">
      ${USES.map((use) => html`<span><i class=${`swatch use-${use}`}></i>${use} ${bytes(sum(cores, (core) => core.used[use] ?? 0))}</span>`)}
      <span><i class="swatch use-free"></i>free ${bytes(sum(cores, (core) => core.capacity - sumOf(core.used)))}</span>
      <span><i class="swatch prefill"></i>busy with prefill, last second</span>
      <span><i class="swatch decode"></i>busy with decode, last second</span>
    </p>
    </div>
  `;
}

function Core({ id, core, rate }) {
  if (!core) return html`<rect class="core unused" width=${CORE.width} height=${CORE.height} rx="4" /><text class="core-name" x="6" y="14">${id}</text>`;
  const bar = { x: 6, y: 20, width: 24, height: CORE.height - 26 };
  let from = bar.y + bar.height;
  const pieces = USES.map((use) => {
    const height = (bar.height * (core.used[use] ?? 0)) / core.capacity;
    from -= height;
    return html`<rect class=${`use-${use}`} x=${bar.x} y=${from} width=${bar.width} height=${height} />`;
  });
  const [decode, prefill] = [rate?.decode ?? 0, rate?.prefill ?? 0].map((share) => share * bar.height);
  const bottom = bar.y + bar.height;
  const limit = bar.y + bar.height * (1 - core.budget / core.capacity);
  return html`
    <title>${coreText(id, core, rate)}</title>
    <rect class=${rate?.busy_s ? "core busy" : "core"} width=${CORE.width} height=${CORE.height} rx="4" />
    <text class="core-name" x="6" y="14">${id}</text>
    <rect class="use-free" x=${bar.x} y=${bar.y} width=${bar.width} height=${bar.height} />
    ${pieces}
    <line class="budget" x1=${bar.x - 2} x2=${bar.x + bar.width + 2} y1=${limit} y2=${limit} />
    <rect class="use-free" x="36" y=${bar.y} width="20" height=${bar.height} />
    <rect class="decode" x="36" y=${bottom - decode} width="20" height=${decode} />
    <rect class="prefill" x="36" y=${bottom - decode - prefill} width="20" height=${prefill} />
  `;
}

const sum = (values, of) => values.reduce((total, each) => total + of(each), 0);
const sumOf = (used) => sum(Object.values(used), (each) => each);
const coreText = (id, core, rate) => `core ${id}: ${bytes(sumOf(core.used))} of ${bytes(core.capacity)}, busy ${percent(rate ? rate.prefill + rate.decode : 0)}`;
const summary = (part, cores, rates) => `${part.name} with ${part.num_chips} chips; in use: ${cores.map((core) => coreText(core.id, core, rates[core.engine])).join("; ")}`;

/** Column and row of each chip: a ring goes round two rows, a torus and a switch are squares. */
function layout(part) {
  const number = part.num_chips;
  const isRing = part.neighbours.every((linked) => linked.length <= 2);
  if (isRing && number > 2) {
    const across = Math.ceil(number / 2);
    return Array.from({ length: number }, (_, i) => (i < across ? [i, 0] : [2 * across - 1 - i - (number % 2), 1]));
  }
  const side = Math.ceil(Math.sqrt(number));
  return Array.from({ length: number }, (_, i) => [i % side, Math.floor(i / side)]);
}

/** Each pair of linked chips once; of a switch, where all are linked, those side by side. */
function links(part) {
  const isSwitch = part.num_chips > 8 && part.neighbours[0].length === part.num_chips - 1;
  return part.neighbours.flatMap((linked, chip) => (isSwitch ? [chip + 1].filter((to) => to < part.num_chips) : linked.filter((to) => to > chip)).map((to) => [chip, to]));
}

function wire([x1, y1], [x2, y2], width, height) {
  const [ax, ay, bx, by] = [x1 + width / 2, y1 + height / 2, x2 + width / 2, y2 + height / 2];
  const isNear = Math.abs(x1 - x2) <= width + GAP && Math.abs(y1 - y2) <= height + GAP;
  if (isNear) return `M${ax} ${ay}L${bx} ${by}`;
  const bend = ay === by ? [0, -height / 2 - 14] : [-width / 2 - 14, 0];
  return `M${ax} ${ay}L${ax + bend[0]} ${ay + bend[1]}L${bx + bend[0]} ${by + bend[1]}L${bx} ${by}`;
}
