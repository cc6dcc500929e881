// What the server needs to go on with an answer whose stream broke: its journal, as a router keeps it (server/api/http/resume.py).

export const HEADER = "X-Neuronserve-Resume";
const JOURNAL = ": journal ";

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** The state of an answer to `body` before it begins. All that is random in the answer follows from the key. */
export const begun = (body) => ({
  key: hex(crypto.getRandomValues(new Uint8Array(16))),
  created: Math.floor(Date.now() / 1e3),
  fingerprint: "", // of the model that answers; "" if the server offers no journal
  entries: [],
  num_events: 0,
  body: JSON.stringify(body),
});

/** Whether a later request can give the rest of the answer, or all of it. */
export const canGoOn = ({ resume }) => Boolean(resume && (resume.fingerprint || !resume.num_events));

/** Header and text of the request for the events that are missing. */
export function requestOf({ key, created, fingerprint, entries, num_events, body }) {
  const journal = entries.map((entry) => `${entry}\n`).join("");
  const known = fingerprint ? { fingerprint, num_journal_bytes: new TextEncoder().encode(journal).length, num_events } : {};
  return { headers: { [HEADER]: JSON.stringify({ key, created, ...known }) }, text: fingerprint ? journal + body : body };
}

/** Keep the entry of a comment. */
export function note(resume, comment) {
  if (comment.startsWith(JOURNAL)) resume.entries.push(comment.slice(JOURNAL.length));
}
