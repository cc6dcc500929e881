// Markdown of a model as elements. Nothing that it says is trusted: HTML is shown as text, and of what the parser makes
// only the elements and attributes listed here remain. Nothing is loaded: a picture is a link to it.

import { html, useLayoutEffect, useRef } from "../vendor/htm-preact.js";
import { Marked } from "../vendor/marked.js";
import { copyText } from "./files.js";
import { formulaOf } from "./math.js";

const ALLOWED = {
  ALLOWED_TAGS: "a blockquote br code del em h3 h4 h5 h6 hr li ol p pre strong table tbody td th thead tr ul #text".split(" "),
  ALLOWED_ATTR: ["align", "href", "start", "title"],
  ADD_URI_SAFE_ATTR: ["align", "start"], // no addresses, so that the next rule is none for them
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const DISPLAY = String.raw`\$\$([^]+?)\$\$|\\\[([^]+?)\\\]`;
const FORMULA = new RegExp(String.raw`^(?:${DISPLAY}|\\\(([^]+?)\\\)|\$(?!\s)((?:\\.|[^\\$\x60\n])+)(?<!\s)\$(?!\d))`); // "$5 and $6" has none
const BLOCK = new RegExp(`^ {0,3}(?:${DISPLAY}) *(?:\n|$)`);

const escaped = (text) => text.replace(/[&<>"]/g, (each) => ENTITIES[each]);

/** Formulas are no Markdown. They pass the parser as code with a title, which no other code has. */
const formula = (name, level, start, pattern) => ({
  name,
  level,
  start: (text) => text.match(start)?.index,
  tokenizer(text) {
    const raw = pattern.exec(text)?.[0];
    return raw && { type: name, raw };
  },
  renderer: ({ raw }) => `<code title="formula">${escaped(raw.trim())}</code>`,
});
const FORMULAS = [formula("formula", "inline", /\$|\\[[(]/, FORMULA), formula("display", "block", /^ {0,3}(?:\$\$|\\\[)/m, BLOCK)];

const parser = new Marked({
  gfm: true,
  breaks: true,
  extensions: FORMULAS,
  renderer: {
    html: ({ text, block }) => (block ? `<p>${escaped(text.trim())}</p>` : escaped(text)),
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      const level = Math.min(6, depth + 2); // below the page's own
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

/** Elements of the text. What the parser cannot read, such as a thousand nested lists, is shown as it is. */
function elementsOf(text) {
  let found;
  try {
    found = globalThis.DOMPurify.sanitize(parser.parse(text), ALLOWED);
  } catch {
    return document.createTextNode(text);
  }
  for (const link of found.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  for (const code of found.querySelectorAll("code[title]")) draw(code);
  for (const wide of found.querySelectorAll("pre, table, math[display=block]")) frame(wide);
  return found;
}

/** Put the formula in place of its source, if it can be read. */
function draw(code) {
  const raw = code.textContent;
  const isDisplay = /^(?:\$\$|\\\[)/.test(raw);
  code.removeAttribute("title");
  try {
    code.replaceWith(formulaOf(raw.replace(/^(?:\$\$?|\\[[(])|(?:\$\$?|\\[\])])$/g, ""), isDisplay));
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
}

/** Put what may be wider than the page in a frame that scrolls, code with a button that copies it. */
function frame(wide) {
  const around = document.createElement("div");
  around.className = "wide";
  wide.replaceWith(around);
  const scrolled = around.appendChild(document.createElement("div"));
  scrolled.tabIndex = 0;
  scrolled.append(wide);
  if (wide.tagName !== "PRE") return;
  const button = around.appendChild(document.createElement("button"));
  button.textContent = "Copy code";
  button.onclick = () => copyText(wide.textContent);
}

export function Markdown({ text, isWriting }) {
  const place = useRef(null);
  useLayoutEffect(() => place.current.replaceChildren(elementsOf(text)), [text]);
  return html`<div ref=${place} class=${isWriting ? "text markdown writing" : "text markdown"}></div>`;
}
