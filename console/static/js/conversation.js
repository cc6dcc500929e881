// A conversation with the model: the request that it makes, and what comes back. Draws nothing.

import { ApiError, ask, eventsOf } from "./api.js";
import { HEADER, note, requestOf } from "./resume.js";

/** A name that no other message or conversation has. (`crypto.randomUUID` needs HTTPS.) */
export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(3)), (word) => word.toString(36)).join("");

/** Settings at the start. Empty fields are not sent, so that the server's own defaults hold. */
export const DEFAULTS = {
  model: "",
  system: "",
  temperature: "",
  top_p: "",
  top_k: "",
  max_tokens: "256",
  seed: "",
  stop: "",
  hasLogprobs: false,
  tools: [],
  tool_choice: "auto",
  format: "text",
  schema: '{\n  "type": "object",\n  "properties": {"answer": {"type": "string"}},\n  "required": ["answer"],\n  "additionalProperties": false\n}',
};

export const message = (role, content, rest = {}) => ({ id: newId(), role, content, ...rest });

/** Add a message after the last one that is shown. */
export function append(conversation, added) {
  added.parent = conversation.leaf;
  conversation.messages.push(added);
  conversation.leaf = added.id;
}

/** The shown messages: from the first one to the leaf of the branch. */
export function branch({ messages, leaf }) {
  const byId = new Map(messages.map((each) => [each.id, each]));
  const shown = [];
  for (let each = byId.get(leaf); each; each = byId.get(each.parent)) shown.unshift(each);
  return shown;
}

/** Messages that follow the same one as `message`, the oldest first: a changed question, a second answer. */
export const versions = ({ messages }, { parent }) => messages.filter((each) => (each.parent ?? null) === (parent ?? null));

/** Show the branch of `message`: what followed it last. */
export function show(conversation, message) {
  for (let each = message; each; each = conversation.messages.findLast(({ parent }) => parent === conversation.leaf)) conversation.leaf = each.id;
}

/** What the conversation is called: its name, or else how it begins. */
export const titleOf = ({ title, messages }) => title || messages[0]?.content.trim().split("\n")[0].slice(0, 60) || "Without a name";

/** Whether the name or a message has `query`, in any case. */
export function matches(conversation, query) {
  const wanted = query.trim().toLowerCase();
  return [conversation.title, ...conversation.messages.map((each) => each.content)].some((text) => text.toLowerCase().includes(wanted));
}

/** The body of the request. Throws SyntaxError, naming the field, for text that is no JSON. */
export function bodyOf(settings, messages) {
  const body = { model: settings.model || undefined, messages: [], stream: true, stream_options: { include_usage: true } };
  if (settings.system) body.messages.push({ role: "system", content: settings.system });
  body.messages.push(...messages.filter((each) => !each.error).map(wireMessage));
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    if (settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.stop) body.stop = settings.stop.split("\n").filter(Boolean);
  if (settings.hasLogprobs) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  if (settings.tools.length) {
    body.tools = settings.tools.map((tool) => ({
      type: "function",
      function: { name: tool.name, description: tool.description || undefined, parameters: parsed(tool.parameters, `the parameters of ${tool.name || "a tool"}`) },
    }));
    body.tool_choice = settings.tool_choice;
  }
  if (settings.format === "json_object") body.response_format = { type: "json_object" };
  if (settings.format === "json_schema") {
    const schema = parsed(settings.schema, "the JSON schema");
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  }
  return body;
}

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`${what}: ${error.message}`);
  }
}

function wireMessage({ role, content, tool_calls, tool_call_id }) {
  if (role === "tool") return { role, content, tool_call_id };
  if (!tool_calls?.length) return { role, content };
  return { role, content: content || null, tool_calls: tool_calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } })) };
}

/** Have what is missing of `answer`, an assistant's message, streamed into it; `changed` is called as it grows. */
export async function stream(answer, changed, signal) {
  const { resume, elapsed_s = 0 } = answer;
  const start = performance.now();
  const { headers, text } = requestOf(resume);
  const response = await ask("/v1/chat/completions", { text, signal, headers: { ...headers, "X-Neuronserve-Usage": "true" } });
  resume.fingerprint = response.headers.get(HEADER) ?? "";
  for await (const chunk of eventsOf(response, (line) => note(resume, line))) {
    resume.num_events++;
    answer.model = chunk.model;
    const choice = chunk.choices[0];
    if (choice) {
      answer.ttft_s ??= (performance.now() - start) / 1e3;
      takeDelta(answer, choice.delta);
      answer.logprobs = [...(answer.logprobs ?? []), ...(choice.logprobs?.content ?? [])];
      answer.finish = choice.finish_reason ?? answer.finish;
    }
    if (chunk.usage) answer.usage = chunk.usage;
    answer.elapsed_s = elapsed_s + (performance.now() - start) / 1e3;
    changed();
  }
  if (!answer.finish) throw new ApiError(0, "The stream ended before the answer.");
}

function takeDelta(answer, delta) {
  answer.content += delta.content ?? "";
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (reasoning) answer.reasoning = (answer.reasoning ?? "") + reasoning;
  for (const part of delta.tool_calls ?? []) {
    answer.tool_calls ??= [];
    const call = (answer.tool_calls[part.index] ??= { id: "", name: "", arguments: "" });
    call.id = part.id ?? call.id;
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
}
