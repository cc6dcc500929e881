// Playground: a conversation, and everything that a request may say.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { keys } from "./api.js";
import { append, bodyOf, branch, message, stream } from "./conversation.js";
import { ConversationList } from "./conversation-list.js";
import { notify, save, useConversations } from "./conversations.js";
import { copyText } from "./files.js";
import { count, dollars, seconds } from "./format.js";
import { useLive } from "./live.js";
import { LogprobMap } from "./logprobs.js";
import { Markdown } from "./markdown.js";
import { Settings } from "./settings.js";
import { snippets } from "./snippets.js";

const SAVE_EVERY_MS = 1000;

/** Have the shown branch answered. Goes on while other pages and conversations are looked at. */
async function run(talk, running, setNews) {
  const answer = message("assistant", "");
  const sent = branch(talk);
  const stopping = new AbortController();
  append(talk, answer);
  running.set(talk.id, stopping);
  setNews("The model answers.");
  save(talk);
  const saving = setInterval(() => save(talk), SAVE_EVERY_MS);
  try {
    await stream(bodyOf(talk.settings, sent), answer, perFrame(notify), stopping.signal);
    setNews(answer.tool_calls ? "The model calls a tool." : "The answer is complete.");
  } catch (error) {
    answer.finish = error.name === "AbortError" ? "stopped" : "error";
    if (error.name !== "AbortError") answer.error = error.message;
    setNews(answer.error ? `Error: ${answer.error}` : "Stopped.");
  } finally {
    clearInterval(saving);
    running.delete(talk.id);
    notify();
    save(talk);
  }
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

export function Playground() {
  const { server } = useLive();
  const { current: talk, running, drafts } = useConversations();
  const [news, setNews] = useState("");
  const code = useRef(null);
  const end = useRef(null);
  const models = server?.models ?? [];
  const messages = branch(talk);
  const draft = drafts.get(talk.id) ?? "";
  const stopping = running.get(talk.id);
  const set = (changes) => (Object.assign(talk.settings, changes), notify(), save(talk));
  const setDraft = (text) => (drafts.set(talk.id, text), notify());
  useEffect(() => end.current.scrollIntoView({ block: "nearest" }), [talk.id, messages.length]);

  const send = (event) => {
    event?.preventDefault();
    if (!draft.trim() || stopping) return;
    append(talk, message("user", draft));
    drafts.delete(talk.id);
    run(talk, running, setNews);
  };
  const regenerate = () => {
    talk.leaf = messages.findLast((each) => each.role !== "assistant").id;
    run(talk, running, setNews);
  };
  const answerCalls = (results) => {
    results.forEach((each) => append(talk, each));
    run(talk, running, setNews);
  };
  const last = messages.at(-1);
  return html`
    <h1 class="hidden">Playground</h1>
    <${ConversationList} />
    <div class="talk">
      <div class="log" role="log" aria-label="Conversation" aria-busy=${String(Boolean(stopping))} tabindex="0">
        ${!messages.length && html`<p class="empty">Ask the model something. Each answer comes with its tokens, and with the time and the dollars that it would take on the part.</p>`}
        ${messages.map((each) => html`<${Message} key=${each.id} message=${each} isLast=${each === last} isRunning=${Boolean(stopping)} answerCalls=${answerCalls} />`)}
        <div ref=${end}></div>
      </div>
      <p class="hidden" role="status">${news}</p>
      <form class="compose" onSubmit=${send}>
        <label class="hidden" for="draft">Message</label>
        <textarea
          id="draft"
          rows="3"
          placeholder="Message (Enter sends, Shift+Enter breaks the line)"
          value=${draft}
          onInput=${(event) => setDraft(event.target.value)}
          onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && send(event)}
        ></textarea>
        <div class="buttons">
          ${stopping
            ? html`<button type="button" class="main" onClick=${() => stopping.abort()}>Stop</button>`
            : html`<button class="main" disabled=${!draft.trim()}>Send</button>`}
          <button type="button" disabled=${!messages.length || Boolean(stopping)} onClick=${regenerate}>Regenerate</button>
          <button type="button" onClick=${() => code.current.showModal()}>Show code</button>
        </div>
      </form>
    </div>
    <${Settings} settings=${talk.settings} set=${set} models=${models} />
    <${CodeDialog} dialog=${code} talk=${talk} draft=${draft} model=${talk.settings.model || models[0]} />
  `;
}

const NAMES = { user: "You", assistant: "Model", tool: "Tool result" };

function Message({ message: each, isLast, isRunning, answerCalls }) {
  const isWriting = isLast && isRunning && each.role === "assistant";
  const hasMap = !isWriting && each.logprobs?.length > 0;
  return html`
    <article class=${`message ${each.role}`} aria-label=${NAMES[each.role]}>
      <h2>${NAMES[each.role]}</h2>
      ${each.reasoning && html`<details class="reasoning"><summary>Reasoning</summary><p class="text">${each.reasoning}</p></details>`}
      ${hasMap ? html`<${LogprobMap} tokens=${each.logprobs} />` : each.role !== "assistant" ? html`<p class="text">${each.content}</p>` : (each.content || isWriting) && html`<${Markdown} text=${each.content} isWriting=${isWriting} />`}
      ${each.tool_calls?.map((call) => html`<pre class="call"><code>${call.name}(${call.arguments})</code></pre>`)}
      ${each.error && html`<p class="fault">${each.error}</p>`}
      ${isLast && !isRunning && each.tool_calls && html`<${ToolResults} calls=${each.tool_calls} answer=${answerCalls} />`}
      ${each.role === "assistant" && !isWriting && html`<${Figures} answer=${each} />`}
    </article>
  `;
}

function ToolResults({ calls, answer }) {
  const send = (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    answer(calls.map((call, i) => message("tool", given.get(`result-${i}`), { tool_call_id: call.id })));
  };
  return html`
    <form class="results" onSubmit=${send}>
      ${calls.map((call, i) => html`<label>What ${call.name} returns<textarea name=${`result-${i}`} rows="2" required></textarea></label>`)}
      <p class="buttons"><button class="main">Send results</button></p>
    </form>
  `;
}

function Figures({ answer }) {
  const { usage, ttft_s, elapsed_s, finish } = answer;
  const device = usage?.neuronserve;
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  const figures = [
    usage && ["tokens", `${count(usage.prompt_tokens)} in${cached ? ` (${count(cached)} cached)` : ""}, ${count(usage.completion_tokens)} out`],
    device && ["on the part", seconds(device.device_seconds)],
    device && ["cost", dollars(device.cost_usd)],
    ttft_s != null && ["first token here", seconds(ttft_s)],
    elapsed_s != null && ["whole", seconds(elapsed_s)],
    finish && ["ended by", finish],
  ];
  return html`<dl class="figures">
    ${figures.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
    ${device?.is_extrapolated && html`<div><dt>model</dt><dd title="No measurement stands behind some of the modelled time">extrapolated</dd></div>`}
  </dl>`;
}

function CodeDialog({ dialog, talk, draft, model }) {
  const [language, setLanguage] = useState("curl");
  let texts;
  try {
    const body = bodyOf({ ...talk.settings, model: model ?? "default" }, talk.messages.length ? branch(talk) : [message("user", draft || "Hello")]);
    if (body.messages.at(-1).role === "assistant") body.messages.pop();
    texts = snippets(body, location.origin, Boolean(keys.get()));
  } catch (error) {
    texts = { curl: error.message, Python: error.message, JavaScript: error.message };
  }
  return html`
    <dialog ref=${dialog} class="code" aria-labelledby="code-title">
      <h2 id="code-title">This conversation as code</h2>
      <div class="tabs" role="group" aria-label="Language">
        ${Object.keys(texts).map((name) => html`<button aria-pressed=${String(name === language)} onClick=${() => setLanguage(name)}>${name}</button>`)}
      </div>
      <pre tabindex="0" aria-label=${`${language} program`}><code>${texts[language]}</code></pre>
      <p class="buttons">
        <button onClick=${() => copyText(texts[language])}>Copy</button>
        <button class="main" onClick=${() => dialog.current.close()}>Close</button>
      </p>
    </dialog>
  `;
}
