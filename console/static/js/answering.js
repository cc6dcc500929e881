// Answers while they are written: begun, continued when their stream breaks or their page is opened again, and stopped.

import { append, bodyOf, branch, message, stream } from "./conversation.js";
import { fresh, kept, loaded, notify, save } from "./conversations.js";
import { begun, canGoOn } from "./resume.js";

const SAVE_EVERY_MS = 1000;
const RETRY_MS = [250, 4000]; // the first pause and the longest one
const LEFT = "the page was left";
const REFUSED = new Set([400, 409]); // another model is served
const MAY_PASS = new Set([0, 429, 503]); // the server is not there, is full, or is starting

/** Have the shown branch answered. Goes on while other pages and conversations are looked at. */
export function run(talk) {
  const sent = branch(talk);
  const answer = message("assistant", "");
  append(talk, answer);
  return alone(talk, () => write(talk, answer, () => (answer.resume = begun(bodyOf(talk.settings, sent)))));
}

/** Go on with an answer whose stream broke; another tab may have done so meanwhile. */
export const goOn = (talk, answer) =>
  alone(talk, async () => {
    const now = (await fresh(talk))?.messages.find((each) => each.id === answer.id);
    if (now?.finish && !answer.finish) {
      delete Object.assign(answer, now).resume;
      notify();
      return;
    }
    for (const name of ["finish", "error"]) delete answer[name];
    await write(talk, answer, () => {});
  });

/** One tab writes an answer, where the browser has locks: over HTTPS and on the own host. */
const alone = (talk, action) => (navigator.locks ? navigator.locks.request(`neuronserve-answer-${talk.id}`, action) : action());

async function write(talk, answer, begin) {
  const stopping = new AbortController();
  kept.running.set(talk.id, stopping);
  kept.news = "The model answers.";
  const saving = setInterval(() => save(talk), SAVE_EVERY_MS);
  try {
    begin();
    save(talk);
    await untilWhole(answer, stopping.signal);
    delete answer.resume;
    kept.news = answer.tool_calls ? "The model calls a tool." : "The answer is complete.";
  } catch (error) {
    end(answer, error, stopping.signal);
  } finally {
    clearInterval(saving);
    kept.running.delete(talk.id);
    notify();
    save(talk);
  }
}

/** Read the stream, and again its rest whenever the connection is lost. */
async function untilWhole(answer, signal) {
  let delay_ms = RETRY_MS[0];
  for (;;) {
    const before = answer.resume.num_events;
    try {
      await stream(answer, perFrame(notify), signal);
      return;
    } catch (error) {
      if (signal.aborted || !MAY_PASS.has(error.status ?? 0) || !answer.resume?.fingerprint) throw error;
      if (answer.resume.num_events > before) delay_ms = RETRY_MS[0];
    }
    kept.news = "The connection is lost; trying again.";
    await new Promise((resolve) => (setTimeout(resolve, delay_ms), signal.addEventListener("abort", resolve)));
    delay_ms = Math.min(RETRY_MS[1], 2 * delay_ms);
  }
}

function end(answer, error, signal) {
  if (signal.reason === LEFT) return;
  answer.finish = signal.aborted ? "stopped" : "error";
  if (!signal.aborted) answer.error = error.message;
  if (signal.aborted || REFUSED.has(error.status) || !canGoOn(answer)) delete answer.resume;
  kept.news = answer.error ? `Error: ${answer.error}` : "Stopped.";
}

/** `action`, at most once for each frame that the browser draws. */
function perFrame(action) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => ((isDue = false), action()));
  };
}

function goOnWithAll() {
  for (const talk of kept.all) {
    const answer = talk.messages.find((each) => each.role === "assistant" && !each.finish);
    if (answer && !kept.running.has(talk.id)) goOn(talk, answer);
  }
}

addEventListener("pagehide", () => kept.running.forEach((stopping) => stopping.abort(LEFT)));
addEventListener("pageshow", (event) => event.persisted && setTimeout(goOnWithAll));
loaded.then(goOnWithAll);
