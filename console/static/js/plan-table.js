// Rows of a plan with their bands, as a table.

import { html } from "../vendor/htm-preact.js";
import { count, dollars, percent, seconds } from "./format.js";
import { nameOf } from "./plan-stream.js";

const between = (value, band, show) => html`${show(value)} <span class="band">${band.p10 == null ? "?" : show(band.p10)} to ${band.p90 == null ? "?" : show(band.p90)}</span>`;

/** `compared` are dollars of a million tokens to hold rows against; `chosen` one row, `choose` to change it. */
export function PlanTable({ rows, compared = null, chosen = null, choose = null }) {
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Configurations">
      <table class="cards plan">
        <thead>
          <tr>
            <th scope="col">instance</th><th scope="col" class="number">needed</th><th scope="col">TP</th><th scope="col">weights</th><th scope="col" class="number">batch</th>
            <th scope="col" class="number">$ / 1M tokens</th>${compared != null && html`<th scope="col" class="number">than now</th>`}
            <th scope="col" class="number">$ / hour</th><th scope="col" class="number">TTFT</th><th scope="col" class="number">TPOT</th><th scope="col" class="number">load</th><th scope="col">runs</th><th scope="col">behind it</th>
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            (row) => html`<tr class=${`${row.misses.length ? "misses" : ""} ${row === chosen ? "chosen" : ""}`} title=${row.misses.join("; ")}>
              <th scope="row">${choose ? html`<button class="plain" aria-pressed=${String(row === chosen)} aria-label=${`Choose ${nameOf(row)}`} onClick=${() => choose(row)}>${row.device}</button>` : row.device}</th>
              <td data-name="needed" class="number">${between(row.instances, row.bands.instances, count)}</td>
              <td data-name="TP">${row.tp}</td><td data-name="weights">${row.dtype}</td><td data-name="batch" class="number">${row.batch}</td>
              <td data-name="$ / 1M tokens" class="number">${dollars(row.usd)}</td>
              ${compared != null && html`<td data-name="than now" class="number">${row.usd == null ? "–" : `${(row.usd / compared).toFixed(2)} ×`}</td>`}
              <td data-name="$ / hour" class="number">${dollars(row.hourly_usd)}</td>
              <td data-name="TTFT" class="number">${between(row.ttft_ms / 1e3, row.bands.ttft_s, seconds)}</td>
              <td data-name="TPOT" class="number">${between(row.tpot_ms / 1e3, row.bands.tpot_s, seconds)}</td>
              <td data-name="load" class="number">${percent(row.load)}</td>
              <td data-name="runs" title=${row.running}>${row.runs}</td>
              <td data-name="behind it">${row.provenance}${row.misses.length ? html`, <span class="fault">${row.misses.join("; ")}</span>` : ""}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  `;
}
