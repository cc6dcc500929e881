// An answer's tokens coloured by how sure the model was, with what it would have said instead.

import { html, useRef, useState } from "../vendor/htm-preact.js";
import { percent } from "./format.js";

const LEVELS = 8;

const levelOf = (logprob) => Math.min(LEVELS, Math.floor(-logprob * 2));
const shown = (token) => token.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥");

export function LogprobMap({ tokens }) {
  const [at, setAt] = useState(0);
  const row = useRef(null);
  const go = (index) => {
    const next = Math.max(0, Math.min(tokens.length - 1, index));
    setAt(next);
    row.current.children[next].focus();
  };
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -tokens.length, End: tokens.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    go(at + step);
  };
  const token = tokens[Math.min(at, tokens.length - 1)];
  return html`
    <div class="logprobs">
      <div class="tokens" role="group" aria-label="Tokens; arrow keys go from one to the next" ref=${row} onKeyDown=${onKey}>
        ${tokens.map(
          (each, i) => html`<button
            class=${`token heat-${levelOf(each.logprob)}`}
            tabindex=${i === at ? 0 : -1}
            aria-pressed=${String(i === at)}
            aria-label=${`${each.token}, ${percent(Math.exp(each.logprob))}`}
            onClick=${() => setAt(i)}
            onFocus=${() => setAt(i)}
          >${shown(each.token)}</button>`,
        )}
      </div>
      <table class="alternatives">
        <caption>Instead of <code>${shown(token.token)}</code></caption>
        <tbody>
          ${token.top_logprobs.map(
            (each) => html`<tr class=${each.token === token.token ? "chosen" : ""}>
              <th scope="row"><code>${shown(each.token)}</code></th>
              <td class="number">${percent(Math.exp(each.logprob))}</td>
              <td><meter min="0" max="1" value=${Math.exp(each.logprob)} aria-hidden="true"></meter></td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  `;
}
