// One message of a conversation: what was said, what it took, and what can be done with it.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { message } from "./conversation.js";
import { copyText } from "./files.js";
import { count, dollars, seconds } from "./format.js";
import { LogprobMap } from "./logprobs.js";
import { Markdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool result" };

/** `own` are the messages among which one can choose at this place, `show` chooses, `resend` takes a changed text, `goOn` reads the rest. */
export function Message({ message: each, own, isLast, isRunning, answerCalls, show, resend, goOn }) {
  const [isEditing, setIsEditing] = useState(false);
  const isWriting = isLast && isRunning && each.role === "assistant";
  const hasMap = !isWriting && each.logprobs?.length > 0;
  return html`
    <article class=${`message ${each.role}`} aria-label=${NAMES[each.role]}>
      <h2>${NAMES[each.role]}${each.model && html` <span class="dim">${each.model}</span>`}</h2>
      ${each.reasoning && html`<details class="reasoning"><summary>Reasoning</summary><p class="text">${each.reasoning}</p></details>`}
      ${hasMap ? html`<${LogprobMap} tokens=${each.logprobs} />` : isEditing ? html`<${Editor} text=${each.content} close=${() => setIsEditing(false)} resend=${resend} />` : each.role !== "assistant" ? html`<p class="text">${each.content}</p>` : (each.content || isWriting) && html`<${Markdown} text=${each.content} isWriting=${isWriting} />`}
      ${each.tool_calls?.map((call) => html`<pre class="call"><code>${call.name}(${call.arguments})</code></pre>`)}
      ${each.error && html`<p class="fault">${each.error}</p>`}
      ${isLast && !isRunning && each.tool_calls && html`<${ToolResults} calls=${each.tool_calls} answer=${answerCalls} />`}
      ${each.role === "assistant" && !isWriting && html`<${Figures} answer=${each} />`}
      ${!isWriting && !isEditing && html`<div class="actions">
        <button class="plain" disabled=${!each.content} onClick=${() => copyText(each.content)}>Copy</button>
        ${each.role === "user" && html`<button class="plain" disabled=${isRunning} onClick=${() => setIsEditing(true)}>Edit</button>`}
        ${isLast && !isRunning && each.resume && html`<button class="plain" onClick=${goOn}>Continue</button>`}
        ${own.length > 1 && html`<${Versions} message=${each} own=${own} isRunning=${isRunning} show=${show} />`}
      </div>`}
    </article>
  `;
}

function Versions({ message: each, own, isRunning, show }) {
  const at = own.indexOf(each);
  return html`<span role="group" aria-label="Versions">
    <button class="plain" aria-label="Version before" disabled=${isRunning || at === 0} onClick=${() => show(own[at - 1])}>‹</button>
    ${` ${at + 1} of ${own.length} `}
    <button class="plain" aria-label="Version after" disabled=${isRunning || at === own.length - 1} onClick=${() => show(own[at + 1])}>›</button>
  </span>`;
}

function Editor({ text, close, resend }) {
  const area = useRef(null);
  useEffect(() => area.current.focus(), []);
  const send = (event) => {
    event.preventDefault();
    if (!area.current.value.trim()) return;
    resend(area.current.value);
    close();
  };
  return html`<form class="results" onSubmit=${send}>
    <textarea ref=${area} rows="4" aria-label="Changed message" defaultValue=${text} onKeyDown=${(event) => event.key === "Escape" && close()}></textarea>
    <p class="buttons"><button class="main">Send as a new version</button><button type="button" onClick=${close}>Cancel</button></p>
  </form>`;
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
