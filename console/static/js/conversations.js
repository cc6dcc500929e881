// Conversations kept in this browser: which there are, and which is open. Draws nothing.

import { useEffect, useState } from "../vendor/htm-preact.js";
import { DEFAULTS, newId } from "./conversation.js";
import { imported } from "./exchange.js";
import { canGoOn } from "./resume.js";

const TABLE = "conversations";
const OPEN = "neuronserve-conversation";

const blank = (settings) => ({ id: newId(), title: "", changed_ms: 0, settings: structuredClone(settings), messages: [], leaf: null });

export const kept = {
  all: [], // the one changed last comes first
  current: blank(DEFAULTS),
  running: new Map(), // what stops the answer of a conversation, by its id
  drafts: new Map(), // messages that are not sent yet, by the conversation's id
  news: "", // of the answers, for screen readers
  fault: "", // why conversations are not kept
};

const listeners = new Set();
const removed = new WeakSet();
let database = null;

/** Draw again all that shows conversations. */
export const notify = () => listeners.forEach((listener) => listener());

/** The conversations, and a new rendering whenever they change. */
export function useConversations() {
  const [, setTurn] = useState(0);
  useEffect(() => {
    const listener = () => setTurn((turn) => turn + 1);
    listeners.add(listener);
    listener(); // what changed before this effect ran
    return () => listeners.delete(listener);
  }, []);
  return kept;
}

const result = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

const table = (mode) => database.transaction(TABLE, mode).objectStore(TABLE);

/** Do it if there is a database; tell the user of a failure, once for all conversations. */
async function store(action) {
  try {
    if (database) await action();
  } catch (error) {
    kept.fault = `Conversations are not kept in this browser: ${error.message}`;
  }
  notify();
}

async function load() {
  try {
    const opening = indexedDB.open("neuronserve", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE, { keyPath: "id" });
    database = await result(opening);
  } catch (error) {
    kept.fault = `Conversations are not kept in this browser: ${error.message}`;
  }
  await store(async () => {
    const found = await result(table("readonly").getAll());
    found.forEach(mend);
    kept.all = [...kept.all, ...found].sort((one, other) => other.changed_ms - one.changed_ms);
    const isUnused = !kept.current.messages.length && !kept.drafts.get(kept.current.id);
    const last = kept.all.find((each) => each.id === localStorage.getItem(OPEN)) ?? kept.all[0];
    if (last && isUnused) kept.current = last;
  });
}

/** Answers that were being written when their page was closed end where they are, unless the server can go on with them. */
function mend(conversation) {
  conversation.settings = { ...DEFAULTS, ...conversation.settings };
  for (const each of conversation.messages) if (each.role === "assistant" && !canGoOn(each)) each.finish ??= "interrupted";
}

/** The conversation as it is kept now: another tab may have changed it. */
export const fresh = (conversation) => (database ? result(table("readonly").get(conversation.id)) : undefined);

/** Keep `conversation` as it is now, unless it is empty or was deleted. */
export async function save(conversation) {
  if (!conversation.messages.length || removed.has(conversation)) return;
  conversation.changed_ms = Date.now();
  kept.all = [conversation, ...kept.all.filter((each) => each !== conversation)];
  if (kept.current === conversation) localStorage.setItem(OPEN, conversation.id);
  await store(() => result(table("readwrite").put(conversation)));
}

export function open(conversation) {
  kept.current = conversation;
  localStorage.setItem(OPEN, conversation.id);
  notify();
}

/** Begin an empty conversation with the settings of the open one. */
export function begin() {
  open(blank(kept.current.settings));
}

export async function remove(conversation) {
  removed.add(conversation);
  kept.running.get(conversation.id)?.abort();
  kept.all = kept.all.filter((each) => each !== conversation);
  if (kept.current === conversation) open(kept.all[0] ?? blank(conversation.settings));
  await store(() => result(table("readwrite").delete(conversation.id)));
}

/** Keep the conversations of an exported file. Of two with one id the one changed last stays. Throws SyntaxError. */
export async function take(text) {
  const taken = imported(text).filter((each) => !kept.all.some((own) => own.id === each.id && own.changed_ms >= each.changed_ms));
  for (const conversation of taken) {
    const old = kept.all.find((each) => each.id === conversation.id);
    if (old) {
      removed.add(old);
      kept.running.get(old.id)?.abort();
    }
    mend(conversation);
    kept.all = [conversation, ...kept.all.filter((each) => each !== old)];
    if (kept.current === old || !kept.current.messages.length) kept.current = conversation;
  }
  kept.all.sort((one, other) => other.changed_ms - one.changed_ms);
  await store(() => Promise.all(taken.map((each) => result(table("readwrite").put(each)))));
  return taken.length;
}

export const loaded = load();
