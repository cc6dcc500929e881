// Playground: a conversation, and everything that a request may say.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { keys } from "./api.js";
import { goOn, run } from "./answering.js";
import { append, bodyOf, branch, message, show, versions } from "./conversation.js";
import { ConversationList } from "./conversation-list.js";
import { notify, save, useConversations } from "./conversations.js";
import { copyText } from "./files.js";
import { useLive } from "./live.js";
import { Message } from "./message.js";
import { Settings } from "./settings.js";
import { snippets } from "./snippets.js";

const STARTERS = [
  "Explain how a systolic array multiplies two matrices.",
  "Write a Python function that merges two sorted lists, with a test.",
  "Make a table of the planets with their diameters and moons.",
  "Plan a week of dinners for two, with a shopping list.",
];

export function Playground() {
  const { server } = useLive();
  const { current: talk, running, drafts, news } = useConversations();
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
    run(talk);
  };
  const begin = (text) => (setDraft(text), document.getElementById("draft").focus());
  const regenerate = () => {
    talk.leaf = messages.findLast((each) => each.role !== "assistant").id;
    run(talk);
  };
  const resend = (old, text) => {
    talk.leaf = old.parent ?? null;
    append(talk, message("user", text));
    run(talk);
  };
  const choose = (version) => (show(talk, version), notify(), save(talk));
  const answerCalls = (results) => {
    results.forEach((each) => append(talk, each));
    run(talk);
  };
  const last = messages.at(-1);
  return html`
    <h1 class="hidden">Playground</h1>
    <${ConversationList} />
    <div class="talk">
      <div class="log" role="log" aria-label="Conversation" aria-busy=${String(Boolean(stopping))} tabindex="0">
        ${!messages.length && html`<p class="empty">Ask the model something. Each answer comes with its tokens, and with the time and the dollars that it would take on the part.</p>
          <ul class="starters" aria-label="Prompts to begin with">${STARTERS.map((text) => html`<li><button onClick=${() => begin(text)}>${text}</button></li>`)}</ul>`}
        ${messages.map((each) => html`<${Message} key=${each.id} message=${each} isLast=${each === last} own=${versions(talk, each)} isRunning=${Boolean(stopping)} answerCalls=${answerCalls} show=${choose} resend=${(text) => resend(each, text)} goOn=${() => goOn(talk, each)} />`)}
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
