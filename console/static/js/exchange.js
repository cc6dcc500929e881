// Conversations as a file of JSON, which may come from anyone: its shape is checked, so that a page that shows it cannot fail.

import { DEFAULTS } from "./conversation.js";

const FORMAT = "neuronserve conversations";
const VERSION = 1;

// Fields whose names end with "?" may be missing or null.
const TOKEN = { token: "string", logprob: "number" };
const USAGE = {
  "prompt_tokens?": "number",
  "completion_tokens?": "number",
  "prompt_tokens_details?": { "cached_tokens?": "number" },
  "neuronserve?": { "device_seconds?": "number", "cost_usd?": "number", "is_extrapolated?": "boolean" },
};
const MESSAGE = {
  id: "string",
  "parent?": "string",
  role: "string",
  content: "string",
  "reasoning?": "string",
  "error?": "string",
  "finish?": "string",
  "model?": "string",
  "tool_call_id?": "string",
  "tool_calls?": [{ id: "string", name: "string", arguments: "string" }],
  "logprobs?": [{ ...TOKEN, top_logprobs: [TOKEN] }],
  "usage?": USAGE,
  "ttft_s?": "number",
  "elapsed_s?": "number",
};
const TOOLS = [{ name: "string", description: "string", parameters: "string" }];
const SETTINGS = Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [`${name}?`, name === "tools" ? TOOLS : typeof value]));
const CONVERSATION = { id: "string", title: "string", changed_ms: "number", settings: SETTINGS, messages: [MESSAGE], "leaf?": "string" };
const ROLES = ["user", "assistant", "tool"];

/** Where `value` is not of `shape`: a name of a type, a list of one shape, or shapes by field. Null if it is. */
function faultOf(value, shape, at) {
  if (typeof shape === "string") return typeof value === shape ? null : `${at} is no ${shape}`;
  if (Array.isArray(shape)) {
    if (!Array.isArray(value)) return `${at} is no list`;
    return first(value.entries(), ([i, each]) => faultOf(each, shape[0], `${at}[${i}]`));
  }
  if (typeof value !== "object" || value === null) return `${at} is no object`;
  return first(Object.entries(shape), ([field, each]) => {
    const name = field.replace("?", "");
    return name !== field && value[name] == null ? null : faultOf(value[name], each, `${at}.${name}`);
  });
}

function first(values, found) {
  for (const each of values) {
    const fault = found(each);
    if (fault) return fault;
  }
  return null;
}

/** What is wrong with the tree of messages: each follows one that stands before it. */
function treeFault({ messages, leaf }, at) {
  const ids = new Set([null]);
  for (const { id, parent, role } of messages) {
    if (!ROLES.includes(role)) return `${at}: ${role} is none of the roles ${ROLES.join(", ")}`;
    if (ids.has(id) || !ids.has(parent ?? null)) return `${at}: message ${id} is twice there or follows a later one`;
    ids.add(id);
  }
  return ids.has(leaf ?? null) ? null : `${at}: there is no message ${leaf}`;
}

/** What belongs to a running answer stays in this browser: a file must not send requests. */
const withoutResume = (name, value) => (name === "resume" ? undefined : value);

/** The text of a file that `imported` reads. */
export const exported = (conversations) => JSON.stringify({ format: FORMAT, version: VERSION, conversations }, withoutResume, 2);

/** The conversations of such a text. Throws SyntaxError, saying where, for any other. */
export function imported(text) {
  const file = JSON.parse(text, withoutResume);
  if (file?.format !== FORMAT || file.version !== VERSION) throw new SyntaxError(`"format" is not "${FORMAT}" with "version" ${VERSION}`);
  const fault =
    faultOf(file.conversations, [CONVERSATION], "conversations") ??
    first(file.conversations.entries(), ([i, each]) => treeFault(each, `conversations[${i}]`));
  if (fault) throw new SyntaxError(fault);
  return file.conversations.map(({ id, title, changed_ms, settings, messages, leaf }) => ({ id, title, changed_ms, settings, messages, leaf: leaf ?? null }));
}
