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

/** The order of `neuronserve plan`: by the server's keys, of which null is infinite. */
export function byOrder(a, b) {
  const at = a.order.findIndex((key, i) => key !== b.order[i]);
  if (at < 0) return 0;
  return (a.order[at] ?? Infinity) < (b.order[at] ?? Infinity) ? -1 : 1;
}

/** The best row of each instance, degree and weight type, in the order of `neuronserve plan`. */
export function bestOfEach(rows) {
  const found = new Map();
  for (const row of rows) {
    const name = `${row.device} ${row.tp} ${row.dtype}`;
    if (!found.has(name) || byOrder(row, found.get(name)) < 0) found.set(name, row);
  }
  return [...found.values()].sort(byOrder);
}

/** The first rows and those on the front, then all others. */
export function folded(rows, count = 5) {
  const onFront = new Set(front(rows));
  const isShown = (row, i) => i < count || onFront.has(row);
  return [rows.filter(isShown), rows.filter((row, i) => !isShown(row, i))];
}

export const nameOf = (row) => `${row.device} TP${row.tp} ${row.dtype} batch ${row.batch}`;
