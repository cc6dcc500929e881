// Device: the emulated instance, what lies on its cores, and what they do.

import { html } from "../vendor/htm-preact.js";
import { BlockMaps } from "./blocks.js";
import { bytes, count, percent, plural } from "./format.js";
import { Instance, USES } from "./instance.js";
import { useLive } from "./live.js";
import { Timeline } from "./timeline.js";

export function Device() {
  const { server, record, rates } = useLive();
  if (!server?.part) return html`<h1>Device</h1><p class="empty">The server has taken no device yet.</p>`;
  const { part, cores } = server;
  const engines = record?.engines ?? [];
  const sum = (name) => engines.reduce((total, engine) => total + (engine[name] ?? 0), 0);
  return html`
    <h1>${part.name} <span class="dim">emulated: ${plural(part.num_chips, "chip")} ${part.chip}, ${plural(part.num_chips * part.cores_per_chip, part.core_name.includes("Core") ? "core" : "unit")}${part.lnc > 1 ? `, LNC ${part.lnc}` : ""}</span></h1>
    <section class="tiles" aria-label="Queue and batch">
      <${Tile} name="running now" value=${count(sum("num_running"))} />
      <${Tile} name="waiting now" value=${count(Math.max(sum("num_waiting"), sum("open") - sum("num_running")))} />
      <${Tile} name="prompt tokens/s, last second" value=${count(total(rates, "prefill_tokens_s"))} />
      <${Tile} name="output tokens/s, last second" value=${count(total(rates, "decode_tokens_s"))} />
      <${Tile} name="prefix hits since the start" value=${percent(sum("prefix_hits") / sum("prefix_queries"))} />
      <${Tile} name="compute used, last second" value=${percent(computeUse(rates, part, cores))} title="Of the peak of the data sheet, while steps run" />
      <${Tile} name="bandwidth used, last second" value=${percent(bandwidthUse(rates, part, cores))} title="Of the device memory's, while steps run" />
    </section>
    <section aria-labelledby="instance-title">
      <h2 id="instance-title">Chips and cores</h2>
      <${Instance} part=${part} cores=${cores} rates=${rates} />
      <details>
        <summary>Memory of each core as a table</summary>
        <div class="scroll" tabindex="0" role="region" aria-label="Memory of each core">
          <table class="cards">
            <thead><tr><th scope="col">core</th><th scope="col">engine</th>${USES.map((use) => html`<th scope="col" class="number">${use}</th>`)}<th scope="col" class="number">budget</th><th scope="col" class="number">capacity</th></tr></thead>
            <tbody>
              ${cores.map((core) => html`<tr><th scope="row">${core.id}</th><td data-name="engine">${core.engine}</td>${USES.map((use) => html`<td data-name=${use} class="number">${bytes(core.used[use] ?? 0)}</td>`)}<td data-name="budget" class="number">${bytes(core.budget)}</td><td data-name="capacity" class="number">${bytes(core.capacity)}</td></tr>`)}
            </tbody>
          </table>
        </div>
      </details>
    </section>
    <section aria-labelledby="blocks-title">
      <h2 id="blocks-title">KV cache</h2>
      <${BlockMaps} />
    </section>
    <section aria-labelledby="steps-title">
      <h2 id="steps-title">Steps of the last minute</h2>
      <${Timeline} />
    </section>
  `;
}

export const Tile = ({ name, value, title }) => html`<div class="tile" title=${title}><span class="value">${value}</span><span class="name">${name}</span></div>`;

const total = (rates, name) => (rates.some(Boolean) ? rates.reduce((sum, rate) => sum + (rate?.[name] ?? 0), 0) : null);

/** Share of the peak rate that the steps used, where the data sheet has one. */
const computeUse = (rates, part, cores) => part.tflops && used(rates, cores, "flops", (part.tflops * 1e12) / part.cores_per_chip);
const bandwidthUse = (rates, part, cores) => used(rates, cores, "hbm_bytes", (part.bandwidth_gb_s * 1e9) / part.cores_per_chip);

function used(rates, cores, name, perCore) {
  let done = 0;
  let possible = 0;
  rates.forEach((rate, engine) => {
    if (!rate?.busy_s) return;
    done += rate[name];
    possible += rate.busy_s * perCore * cores.filter((core) => core.engine === engine).length;
  });
  return possible ? done / possible : null;
}
