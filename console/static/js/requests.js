// Requests: what is open and what has ended, with the phases of each.

import { html, useState } from "../vendor/htm-preact.js";
import { ask, keys } from "./api.js";
import { count, dollars, plural, seconds } from "./format.js";
import { useLive } from "./live.js";

const NUM_SHOWN = 25;
const PHASES = [["queue_s", "queue"], ["prefill_s", "prefill"], ["decode_s", "decode"]];

export function Requests() {
  const { record, ended, server } = useLive();
  const [news, setNews] = useState("");
  const open = record?.open ?? [];
  const earlier = ended.slice(NUM_SHOWN);
  const abort = async (request) => {
    if (server.has_admin_key && !keys.getAdmin()) {
      setNews("Give the admin key first.");
      return;
    }
    try {
      const answer = await (await ask("/admin/abort-request", { body: { request_id: request.id }, isAdmin: true })).json();
      setNews(answer.aborted ? `Ended ${request.id}.` : `${request.id} had ended already.`);
    } catch (error) {
      if (error.status === 401) keys.setAdmin("");
      setNews(error.message);
    }
  };
  return html`
    <h1>Requests</h1>
    ${server?.has_admin_key && html`<${AdminKey} />`}
    <p role="status">${news}</p>
    <section aria-labelledby="open-title">
      <h2 id="open-title">Open <span class="dim">${count(record?.num_open ?? 0)}</span></h2>
      ${open.length ? html`<${Table} rows=${open} now=${record.now} abort=${abort} label="Open requests" />` : html`<p class="empty">No request is open.</p>`}
    </section>
    <section aria-labelledby="ended-title">
      <h2 id="ended-title">Ended <span class="dim">${ended.length ? `the last ${count(ended.length)}` : ""}</span></h2>
      ${ended.length ? html`<${Table} rows=${ended.slice(0, NUM_SHOWN)} now=${record.now} label="Ended requests" />` : html`<p class="empty">None has ended yet.</p>`}
      ${earlier.length > 0 && html`<details><summary>${plural(earlier.length, "earlier request")}</summary><${Table} rows=${earlier} now=${record.now} label="Earlier requests" /></details>`}
    </section>
    <p class="legend">${PHASES.map(([, name]) => html`<span><i class=${`swatch ${name}`}></i>${name}</span>`)}</p>
  `;
}

function AdminKey() {
  const save = (event) => {
    event.preventDefault();
    keys.setAdmin(new FormData(event.target).get("key").trim());
    event.target.reset();
  };
  return html`
    <form class="inline" onSubmit=${save}>
      <label>Admin key, to end requests<input name="key" type="password" autocomplete="off" required /></label>
      <button>Use it</button>
    </form>
  `;
}

function Table({ rows, now, abort, label }) {
  const longest = Math.max(...rows.map((row) => (row.e2e_s ?? now - row.arrival) || 0), 1e-3);
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label=${label}>
      <table class="cards requests">
        <thead>
          <tr>
            <th scope="col">request</th><th scope="col">${abort ? "state" : "ended"}</th><th scope="col">phases</th><th scope="col" class="number">prompt</th><th scope="col" class="number">cached</th><th scope="col" class="number">output</th>
            <th scope="col" class="number">TTFT</th><th scope="col" class="number">whole</th><th scope="col" class="number">on the part</th><th scope="col" class="number">cost</th>${abort && html`<th scope="col"><span class="hidden">Actions</span></th>`}
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            (row) => html`<tr key=${row.sequences[0]}>
              <th scope="row" title=${row.id}><code>${row.id.slice(0, 12)}</code>${row.sequences.length > 1 ? ` ×${row.sequences.length}` : ""}</th>
              <td data-name="state">${abort ? stateOf(row) : `${row.finish.join(", ")}, ${seconds(now - row.end)} ago`}</td>
              <td data-name="phases"><${Phases} row=${row} longest=${longest} now=${now} /></td>
              <td data-name="prompt" class="number">${count(row.prompt_tokens)}</td><td data-name="cached" class="number">${count(row.cached_tokens)}</td><td data-name="output" class="number">${count(row.output_tokens)}${abort ? ` of ${count(row.max_tokens)}` : ""}</td>
              <td data-name="TTFT" class="number">${seconds(row.ttft_s)}</td><td data-name="whole" class="number">${seconds(row.e2e_s ?? now - row.arrival)}</td>
              <td data-name="on the part" class="number">${seconds(row.device_s)}${row.is_extrapolated ? html`<abbr title="No measurement stands behind some of it"> *</abbr>` : ""}</td><td data-name="cost" class="number">${dollars(row.usd)}</td>
              ${abort && html`<td><button aria-label=${`Abort ${row.id}`} onClick=${() => abort(row)}>Abort</button></td>`}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  `;
}

const stateOf = (row) => (row.queue_s == null ? "queue" : row.prefill_s == null ? "prefill" : "decode");

function Phases({ row, longest, now }) {
  const whole = row.e2e_s ?? now - row.arrival;
  const known = { ...row };
  if (row.queue_s == null) known.queue_s = whole;
  const text = PHASES.map(([name, label]) => `${label} ${seconds(known[name])}`).join(", ");
  return html`<div class="bar phases" role="img" aria-label=${text} title=${text}>
    ${PHASES.map(([name, label]) => html`<i class=${label} style=${{ width: `${(100 * (known[name] ?? 0)) / longest}%` }}></i>`)}
  </div>`;
}
