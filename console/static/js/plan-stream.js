// Plans as they come, part by part, and what is best among their rows.

import { ask, eventsOf } from "./api.js";

/** The server's answers to a question, one for each instance. */
export async function* planStream(question, signal) {
  yield* eventsOf(await ask("/console/plan", { body: question, signal }));
}

/** Rows with a price that no other beats in both dollars and time per token, fastest first; within the limits if any. */
export function front(rows) {
  const priced = rows.filter((row) => row.usd != null && row.tpot_ms > 0);
  const within = priced.filter((row) => !row.misses.length);
  const best = [];
  for (const row of (within.length ? within : priced).toSorted((a, b) => a.tpot_ms - b.tpot_ms || a.usd - b.usd)) {
    if (!best.length || row.usd < best.at(-1).usd) best.push(row);
  }
  return best;
}

/** The cheapest row of each instance and degree that holds the limits best, cheapest first. */
export function bestOfEach(rows) {
  const found = new Map();
  const order = (a, b) => a.misses.length - b.misses.length || (a.hourly_usd ?? Infinity) - (b.hourly_usd ?? Infinity) || a.tpot_ms - b.tpot_ms;
  for (const row of rows) {
    const name = `${row.device} ${row.tp} ${row.dtype}`;
    if (!found.has(name) || order(row, found.get(name)) < 0) found.set(name, row);
  }
  return [...found.values()].sort(order);
}

export const nameOf = (row) => `${row.device} TP${row.tp} ${row.dtype} batch ${row.batch}`;
