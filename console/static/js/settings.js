// What a request may say beside its messages.

import { html } from "../vendor/htm-preact.js";

const EXAMPLE_TOOL = {
  name: "get_weather",
  description: "Current weather of a city",
  parameters: '{\n  "type": "object",\n  "properties": {"city": {"type": "string"}},\n  "required": ["city"]\n}',
};
const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.05],
  ["top_p", "Top p", 0.01, 1, 0.01],
  ["top_k", "Top k", 0, 1000, 1],
  ["max_tokens", "Max tokens", 1, 1000000, 1],
  ["seed", "Seed", 0, 2147483647, 1],
];

export function Settings({ settings, set, models }) {
  const input = (name) => (event) => set({ [name]: event.target.value });
  const setTool = (index, changes) => set({ tools: settings.tools.map((tool, i) => (i === index ? { ...tool, ...changes } : tool)) });
  return html`
    <aside class="settings" aria-label="Request settings">
      <label>Model
        <select value=${settings.model} onChange=${input("model")}>
          ${models.map((name, i) => html`<option value=${i ? name : ""}>${name}</option>`)}
          ${settings.model && !models.includes(settings.model) && html`<option value=${settings.model}>${settings.model} (not served here)</option>`}
        </select>
      </label>
      <label>System prompt<textarea rows="3" value=${settings.system} onInput=${input("system")}></textarea></label>
      <fieldset class="numbers">
        <legend>Sampling</legend>
        ${NUMBERS.map(
          ([name, label, min, max, step]) => html`<label>${label}
            <input type="number" inputmode="decimal" min=${min} max=${max} step=${step} placeholder="default" value=${settings[name]} onInput=${input(name)} />
          </label>`,
        )}
        <label>Stop, one a line<textarea rows="1" value=${settings.stop} onInput=${input("stop")}></textarea></label>
      </fieldset>
      <label class="check"><input type="checkbox" checked=${settings.hasLogprobs} onChange=${(event) => set({ hasLogprobs: event.target.checked })} />Show how sure the model was</label>
      <label>Answer as
        <select value=${settings.format} onChange=${input("format")}>
          <option value="text">text</option>
          <option value="json_object">any JSON object</option>
          <option value="json_schema">JSON of a schema</option>
        </select>
      </label>
      ${settings.format === "json_schema" && html`<label>JSON schema<textarea class="mono" rows="7" spellcheck="false" value=${settings.schema} onInput=${input("schema")}></textarea></label>`}
      <fieldset class="tools">
        <legend>Tools</legend>
        ${settings.tools.map(
          (tool, i) => html`<div class="tool">
            <label>Name<input value=${tool.name} onInput=${(event) => setTool(i, { name: event.target.value })} /></label>
            <label>What it does<input value=${tool.description} onInput=${(event) => setTool(i, { description: event.target.value })} /></label>
            <label>Parameters, a JSON schema<textarea class="mono" rows="5" spellcheck="false" value=${tool.parameters} onInput=${(event) => setTool(i, { parameters: event.target.value })}></textarea></label>
            <button onClick=${() => set({ tools: settings.tools.filter((_, each) => each !== i) })}>Remove ${tool.name || "this tool"}</button>
          </div>`,
        )}
        ${settings.tools.length > 0 && html`<label>The model
          <select value=${settings.tool_choice} onChange=${input("tool_choice")}>
            <option value="auto">may call one</option>
            <option value="required">must call one</option>
            <option value="none">must not call any</option>
          </select>
        </label>`}
        <button onClick=${() => set({ tools: [...settings.tools, settings.tools.length ? { name: "", description: "", parameters: "{}" } : { ...EXAMPLE_TOOL }] })}>Add a tool</button>
      </fieldset>
    </aside>
  `;
}
