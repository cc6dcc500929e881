// Conversations by their names: opened, searched, renamed, deleted, and moved to and from files.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { matches, titleOf } from "./conversation.js";
import { begin, kept, open, remove, save, take } from "./conversations.js";
import { exported } from "./exchange.js";
import { download } from "./files.js";
import { plural } from "./format.js";

const NARROW = matchMedia("(max-width: 60rem)"); // there the list is folded

const write = (conversations) => download(new Blob([exported(conversations)], { type: "application/json" }), "conversations.json");

export function ConversationList() {
  const [query, setQuery] = useState("");
  const [news, setNews] = useState("");
  const file = useRef(null);
  const found = kept.all.filter((each) => matches(each, query));
  const read = async (event) => {
    const [given] = event.target.files;
    try {
      setNews(`${plural(await take(await given.text()), "conversation")} imported.`);
    } catch (error) {
      setNews(`${given.name} cannot be imported: ${error.message}`);
    }
    file.current.value = "";
  };
  return html`
    <aside aria-label="Conversations"><details class="conversations" open=${!NARROW.matches}>
      <summary>Conversations</summary><div>
      <button onClick=${begin}>New conversation</button>
      <label>Search<input type="search" value=${query} onInput=${(event) => setQuery(event.target.value)} /></label>
      <ul>${found.map((each) => html`<${Entry} key=${each.id} conversation=${each} />`)}</ul>
      ${query && !found.length && html`<p class="dim small">No conversation has “${query}”.</p>`}
      <div class="buttons small">
        <button disabled=${!found.length} onClick=${() => write(found)}>Export ${query ? "found" : "all"}</button>
        <button onClick=${() => file.current.click()}>Import</button>
        <input ref=${file} type="file" accept=".json,application/json" aria-label="File of conversations" hidden onChange=${read} />
      </div>
      <p class="dim small" role="status">${news}</p>
      <p class="fault small" role="alert">${kept.fault}</p>
    </div></details></aside>
  `;
}

function Entry({ conversation }) {
  const [isRenaming, setIsRenaming] = useState(false);
  const name = useRef(null);
  const title = titleOf(conversation);
  const isOpen = kept.current === conversation;
  useEffect(() => {
    name.current?.focus();
    name.current?.select();
  }, [isRenaming]);
  const rename = (event) => {
    event.preventDefault();
    conversation.title = name.current.value.trim();
    setIsRenaming(false);
    save(conversation);
  };
  const discard = () => confirm(`Delete “${title}”?`) && remove(conversation);
  if (isRenaming) {
    return html`<li><form onSubmit=${rename}>
      <input ref=${name} aria-label="Name of the conversation" value=${title} onBlur=${() => setIsRenaming(false)} onKeyDown=${(event) => event.key === "Escape" && setIsRenaming(false)} />
    </form></li>`;
  }
  return html`<li class=${isOpen ? "open" : ""}>
    <button class="plain name" aria-current=${isOpen ? "true" : null} onClick=${() => open(conversation)}>${title}</button>
    ${isOpen && html`<span class="buttons">
      <button class="plain" onClick=${() => setIsRenaming(true)}>Rename</button>
      <button class="plain" onClick=${() => write([conversation])}>Export</button>
      <button class="plain" onClick=${discard}>Delete</button>
    </span>`}
  </li>`;
}
