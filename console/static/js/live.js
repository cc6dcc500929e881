// The stream of live records, and what the pages know by it. Open while the tab is seen, and opened again when it ends.

import { ask, eventsOf, isKeyRefused } from "./api.js";
import { useEffect, useState } from "../vendor/htm-preact.js";

const NUM_BINS = 600;
const MAX_ENDED = 200;
const NS = 1e9;

export const live = {
  status: "connecting", // open, lost, refused
  server: null, // what the server is
  record: null, // how it is now
  rates: [], // of each engine since the record before
  bins: new Map(), // steps by engine and tenth of a second
  ended: [], // requests, the last one first
  blocks: null,
};

const listeners = new Set();
let stream = null;

/** The state, and a new rendering whenever it changes. */
export function useLive() {
  const [, setTurn] = useState(0);
  useEffect(() => {
    const listener = () => setTurn((turn) => turn + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return live;
}

/** Open the stream now, and whenever the tab is seen. */
export function follow() {
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
}

/** Open the stream anew: with another key. */
export function reopen() {
  close();
  open();
}

function close() {
  stream?.abort();
  stream = null;
}

async function open() {
  if (stream) return;
  const own = (stream = new AbortController());
  for (let delay_ms = 250; !own.signal.aborted; delay_ms = Math.min(4000, delay_ms * 2)) {
    try {
      const answer = await ask("/console/events", { signal: own.signal });
      for await (const event of eventsOf(answer)) {
        delay_ms = 250;
        take(event);
      }
      change({ status: "lost" });
    } catch (error) {
      if (own.signal.aborted) return;
      change({ status: isKeyRefused(error.status) ? "refused" : "lost" });
      if (isKeyRefused(error.status)) {
        close();
        return;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, delay_ms));
  }
}

function change(changes) {
  Object.assign(live, changes);
  listeners.forEach((listener) => listener());
}

function take(event) {
  if (event.type === "server") {
    live.record = null;
    live.bins.clear();
    live.ended = [];
    change({ status: "open", server: event });
  } else if (event.type === "blocks") {
    change({ blocks: event });
  } else {
    takeRecord(event);
  }
}

function takeRecord(record) {
  const before = live.record;
  for (const [engine, number, ...values] of record.bins) live.bins.set(`${engine} ${number}`, { engine, number, values });
  const oldest = record.now * 10 - NUM_BINS;
  for (const [name, bin] of live.bins) {
    if (bin.number >= oldest) break;
    live.bins.delete(name);
  }
  live.ended = [...record.ended.reverse(), ...live.ended].slice(0, MAX_ENDED);
  const rates = record.engines.map((engine, i) => rateOf(engine, before?.engines[i], record.now - (before?.now ?? record.now)));
  change({ status: "open", record, rates, server: { ...live.server, phase: record.phase } });
}

/** Shares of the engine's modelled time, and what it did in it, since the record before. */
function rateOf(now, before, elapsed_s) {
  if (!now.time_ns || !before?.time_ns || elapsed_s <= 0) return null;
  const spent = (kind) => Math.max(0, now.time_ns[kind] - before.time_ns[kind]) / NS;
  const prefill = spent("prefill");
  const decode = spent("decode");
  const whole = prefill + decode + spent("idle");
  return {
    prefill: whole ? prefill / whole : 0,
    decode: whole ? decode / whole : 0,
    busy_s: prefill + decode,
    flops: now.flops - before.flops,
    hbm_bytes: now.hbm_bytes - before.hbm_bytes,
    prefill_tokens_s: (now.tokens.prefill - before.tokens.prefill) / elapsed_s,
    decode_tokens_s: (now.tokens.decode - before.tokens.decode) / elapsed_s,
  };
}
