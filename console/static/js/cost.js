// Cost: what the tokens of this server would cost on the part, and what others would take for the same traffic.

import { html, useRef, useState } from "../vendor/htm-preact.js";
import { Tile } from "./device.js";
import { count, dollars, percent, plural } from "./format.js";
import { useLive } from "./live.js";
import { bestOfEach, folded, planStream } from "./plan-stream.js";
import { PlanTable } from "./plan-table.js";

export function Cost() {
  const { record, server } = useLive();
  const cost = record?.cost;
  const price = server?.inventory?.price;
  const long = cost && nameOfWindow(cost.hour.seconds);
  const windows = cost && [[nameOfWindow(cost.minute.seconds), cost.minute], [long, cost.hour]].slice(cost.hour.seconds < 90 ? 1 : 0);
  if (!cost) return html`<h1>Cost</h1><p class="empty">The server serves nothing yet.</p>`;
  return html`
    <h1>Cost <span class="dim">${price?.usd_per_hour == null ? "no price is known for this part" : `${server.part.name} at ${dollars(price.usd_per_hour)} an hour, ${price.basis.replace("_", " ")}${price.date ? `, ${price.date}` : ""}`}</span></h1>
    <section class="tiles" aria-label="Dollars for a million tokens">
      ${windows.map(([name, w]) => html`<${Tile} name=${`per million tokens, ${name}`} value=${dollars(w.usd_per_million_tokens)} />`)}
      <${Tile} name=${`per million output tokens, ${long}`} value=${dollars(cost.hour.usd_per_million_output_tokens)} />
      <${Tile} name=${`modelled per million tokens, ${long}`} value=${dollars(cost.hour.modelled_usd_per_million_tokens)} />
      ${windows.map(([name, w]) => html`<${Tile} name=${`idle, ${name}`} value=${percent(idle(w))} />`)}
    </section>
    <section aria-labelledby="split-title">
      <h2 id="split-title">Where the dollars go</h2>
      ${windows.map(([name, w]) => html`<${Split} name=${name} window=${w} />`)}
      <p class="legend">
        <span><i class="swatch cost-busy"></i>steps</span><span><i class="swatch cost-idle"></i>idle</span><span><i class="swatch cost-host"></i>waiting for this host</span><span><i class="swatch cost-unused"></i>unassigned cores</span>
      </p>
    </section>
    <${Elsewhere} hour=${cost.hour} />
  `;
}

const idle = ({ busy_s, idle_s, host_s }) => idle_s / (busy_s + idle_s + host_s);

/** A window by its real length: it is shorter than an hour after a start. */
const nameOfWindow = (length_s) => {
  if (length_s >= 3570) return "last hour";
  return length_s < 90 ? `last ${count(length_s)} s` : `last ${count(length_s / 60)} min`;
};

function Split({ name, window: w }) {
  const parts = [["cost-busy", "steps", w.busy_usd], ["cost-idle", "idle", w.idle_usd], ["cost-host", "waiting for this host", w.host_usd && Math.max(0, w.host_usd)], ["cost-unused", "unused cores", w.unused_cores_usd]];
  const whole = parts.reduce((sum, [, , usd]) => sum + (usd ?? 0), 0);
  const text = parts.map(([, label, usd]) => `${label} ${dollars(usd)}`).join(", ");
  return html`
    <div class="split">
      <p><b>${name}</b> ${dollars(w.usd)} for ${count(w.prompt_tokens)} prompt tokens, ${count(w.cached_tokens)} cached and ${count(w.output_tokens)} output tokens${w.remark && html`; <b>${w.remark}</b>`}</p>
      <div class="bar" role="img" aria-label=${text}>${whole > 0 && parts.map(([kind, , usd]) => html`<i class=${kind} style=${{ width: `${(100 * usd) / whole}%` }}></i>`)}</div>
    </div>
  `;
}

function Elsewhere({ hour }) {
  const [state, setState] = useState({ rows: [], status: "", isRunning: false });
  const running = useRef(null);
  const compare = async () => {
    running.current?.abort();
    running.current = new AbortController();
    let rows = [];
    setState({ rows, status: "Planning for the traffic seen…", isRunning: true });
    try {
      let demand;
      for await (const part of planStream({ uses_traffic: true }, running.current.signal)) {
        rows = [...rows, ...part.rows];
        demand = part.demand ?? demand;
        setState({ rows: bestOfEach(rows), status: `Planned ${part.device}`, isRunning: true });
      }
      const seen = demand ? `${plural(demand.requests, "request")} with ${count(demand.input_tokens)} tokens in and ${count(demand.output_tokens)} out on average` : "";
      setState({ rows: bestOfEach(rows), status: `For ${seen}, at the rate at which they came.`, isRunning: false });
    } catch (error) {
      if (error.name !== "AbortError") setState({ rows: [], status: error.message, isRunning: false });
    }
  };
  const [first, rest] = folded(state.rows);
  return html`
    <section aria-labelledby="elsewhere-title">
      <h2 id="elsewhere-title">The same traffic elsewhere</h2>
      <p class="buttons"><button class="main" disabled=${state.isRunning} onClick=${compare}>Plan for this traffic</button></p>
      <p role="status">${state.status}</p>
      ${state.rows.length > 0 && html`<${PlanTable} rows=${first} compared=${hour.usd_per_million_tokens} />`}
      ${rest.length > 0 && html`<details><summary>${plural(rest.length, "other configuration")}</summary><${PlanTable} rows=${rest} compared=${hour.usd_per_million_tokens} /></details>`}
    </section>
  `;
}
