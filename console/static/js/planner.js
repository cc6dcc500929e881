// Planner: the question as controls, and the answer as a picture that grows part by part.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { ask } from "./api.js";
import { copyText, download } from "./files.js";
import { count, dollars, precise, seconds } from "./format.js";
import { Pareto } from "./pareto.js";
import { byOrder, front, nameOf, planStream } from "./plan-stream.js";
import { PlanTable } from "./plan-table.js";

const DEBOUNCE_MS = 40;
const FAMILIES = ["Inferentia1", "Inferentia2", "Trainium1", "Trainium2", "Trainium3"];
const DEFAULTS = { model: "", request_rate: 1, input_len: 1024, output_len: 256, ttft_ms: "", tpot_ms: "", budget: "", quantization: "bfloat16", price_basis: "on_demand", chips: "Inferentia2" };
const TYPES = { bfloat16: ["bfloat16"], int8: ["int8"], both: ["bfloat16", "int8"], all: ["bfloat16", "int8", "fp8"] };

/** The question of a permalink: what stands behind the "?" of the hash, where it can be read. */
function fromHash() {
  const given = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const found = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (given.has(name)) found[name] = given.get(name);
  for (const name of ["request_rate", "input_len", "output_len"]) found[name] = Number(found[name]) || DEFAULTS[name];
  return found;
}

function toHash(question) {
  const changed = Object.entries(question).filter(([name, value]) => String(value) !== String(DEFAULTS[name]));
  const page = location.hash.startsWith("#/") ? location.hash.split("?")[0] : "#/planner";
  history.replaceState(null, "", `${page}${changed.length ? `?${new URLSearchParams(changed)}` : ""}`);
}

function bodyOf(question, devices) {
  const limits = Object.fromEntries(["ttft_ms", "tpot_ms", "budget"].filter((name) => Number(question[name]) > 0).map((name) => [name, Number(question[name])]));
  const { model, request_rate, input_len, output_len, price_basis } = question;
  return { model, request_rate, input_len, output_len, price_basis, quantization: TYPES[question.quantization] ?? TYPES.bfloat16, device: devices, ...limits };
}

export function Planner() {
  const [question, setQuestion] = useState(fromHash);
  const [choices, setChoices] = useState(null);
  const [answer, setAnswer] = useState({ parts: new Map(), fresh: new Set(), fault: "", isRunning: true, redraw_ms: null });
  const [chosen, setChosen] = useState(null);
  const running = useRef(null);
  useEffect(() => {
    ask("/console/choices").then((found) => found.json()).then(setChoices, (error) => setAnswer((old) => ({ ...old, fault: error.message, isRunning: false })));
    const listener = () => setQuestion(fromHash());
    addEventListener("hashchange", listener);
    return () => (removeEventListener("hashchange", listener), running.current?.abort());
  }, []);
  useEffect(() => {
    if (!choices) return undefined;
    toHash(question);
    const timer = setTimeout(() => run(), DEBOUNCE_MS);
    return () => clearTimeout(timer);
  }, [question, choices]);

  const run = async () => {
    running.current?.abort();
    const own = (running.current = new AbortController());
    const begin = performance.now();
    const wanted = choices.devices.filter((part) => question.chips === "all" || part.chip === question.chips).map((part) => part.name);
    let parts = new Map([...answer.parts].filter(([device]) => wanted.includes(device)));
    const onFront = new Set(front([...parts.values()].flat()).map((row) => row.device)); // what the eye is on comes first
    const devices = wanted.toSorted((a, b) => onFront.has(b) - onFront.has(a));
    const fresh = new Set();
    let redraw_ms = null;
    setAnswer((old) => ({ ...old, parts, fresh, fault: "", isRunning: true }));
    try {
      for await (const part of planStream(bodyOf(question, devices), own.signal)) {
        parts = new Map([...parts, [part.device, part.rows]]);
        fresh.add(part.device);
        redraw_ms ??= performance.now() - begin;
        setAnswer({ parts, fresh: new Set(fresh), fault: "", isRunning: true, redraw_ms });
      }
      const isNone = ![...parts.values()].flat().length;
      setAnswer({ parts, fresh: new Set(fresh), fault: isNone ? "No single instance of these holds the model; neuronserve plan also tries groups of them." : "", isRunning: false, redraw_ms });
    } catch (error) {
      if (error.name !== "AbortError") setAnswer({ parts: new Map(), fresh: new Set(), fault: error.message, isRunning: false, redraw_ms });
    }
  };

  const rows = [...answer.parts].flatMap(([device, found]) => found.map((row) => (answer.fresh.has(device) || !answer.isRunning ? row : { ...row, isStale: true })));
  const best = front(rows);
  const own = chosen && (rows.find((row) => nameOf(row) === chosen) ?? null);
  const shown = own ?? rows.toSorted(byOrder)[0];
  return html`
    <h1 class="hidden">Planner</h1>
    <${Controls} question=${question} set=${(changes) => setQuestion((old) => ({ ...old, ...changes }))} choices=${choices} />
    <div class="answer" aria-busy=${String(answer.isRunning)}>
      <p class="fault" role="alert">${answer.fault}</p>
      ${shown && html`<p class="verdict"><b>${own ? nameOf(own) : shown.misses.length ? `Nothing holds the limits; first: ${nameOf(shown)}` : `Take ${nameOf(shown)}`}</b> ${count(shown.instances)} ×, ${dollars(shown.hourly_usd)} an hour, ${dollars(shown.usd)} per million tokens; TTFT ${seconds(shown.ttft_ms / 1e3)}, TPOT ${seconds(shown.tpot_ms / 1e3)}${shown.misses.length ? html`; <span class="fault">${shown.misses.join("; ")}</span>` : ""}</p>
        <p class=${shown.runs === "no" || shown.running.includes("Before it runs") ? "fault" : "dim"}>${shown.running}</p>`}
      <${Pareto} rows=${rows} best=${best} chosen=${shown} choose=${(row) => setChosen(nameOf(row))} />
      <p class="dim small" role="status">${answer.isRunning ? `Planning… ${answer.fresh.size} parts done` : `${count(rows.length)} configurations of ${answer.parts.size} instances`}${answer.redraw_ms ? `, first drawn after ${answer.redraw_ms.toFixed(0)} ms` : ""}</p>
      ${shown && html`<${Download} question=${question} row=${shown} devices=${[shown.device]} />`}
      ${best.length > 0 && html`<h2>On the front</h2><${PlanTable} rows=${best} chosen=${shown} choose=${(row) => setChosen(nameOf(row))} />`}
    </div>
  `;
}

function Slider({ name, label, value, min, max, set }) {
  const scaled = (number) => Math.log(number / min) / Math.log(max / min);
  const move = (event) => {
    const raw = min * (max / min) ** Number(event.target.value);
    set({ [name]: name === "request_rate" ? Number(raw.toPrecision(2)) : Math.round(raw) });
  };
  return html`
    <div class="slider">
      <label>${label}<input type="number" min=${min} max=${max} step="any" value=${value} onChange=${(event) => Number(event.target.value) > 0 && set({ [name]: Number(event.target.value) })} /></label>
      <input type="range" min="0" max="1" step="0.005" value=${scaled(value)} aria-label=${label} aria-valuetext=${precise(value)} onInput=${move} />
    </div>
  `;
}

function Controls({ question, set, choices }) {
  const input = (name) => (event) => set({ [name]: event.target.value });
  return html`
    <form class="controls" aria-label="Workload and limits" onSubmit=${(event) => event.preventDefault()}>
      <label>Model
        <input list="models" placeholder=${choices?.default_model ?? ""} value=${question.model} onChange=${input("model")} />
        <datalist id="models">${(choices?.models ?? []).map((name) => html`<option value=${name} />`)}</datalist>
      </label>
      <${Slider} name="request_rate" label="Requests a second" value=${question.request_rate} min=${0.01} max=${1000} set=${set} />
      <${Slider} name="input_len" label="Prompt tokens" value=${question.input_len} min=${1} max=${131072} set=${set} />
      <${Slider} name="output_len" label="Output tokens" value=${question.output_len} min=${1} max=${16384} set=${set} />
      <label>TTFT at most, ms<input type="number" min="0" placeholder="no limit" value=${question.ttft_ms} onInput=${input("ttft_ms")} /></label>
      <label>TPOT at most, ms<input type="number" min="0" placeholder="no limit" value=${question.tpot_ms} onInput=${input("tpot_ms")} /></label>
      <label>Dollars an hour at most<input type="number" min="0" placeholder="no limit" value=${question.budget} onInput=${input("budget")} /></label>
      <label>Chips
        <select value=${question.chips} onChange=${input("chips")}>${[...FAMILIES, "all"].map((name) => html`<option value=${name}>${name}</option>`)}</select>
      </label>
      <label>Weights
        <select value=${question.quantization} onChange=${input("quantization")}>
          <option value="bfloat16">bfloat16</option><option value="int8">int8</option><option value="both">bfloat16 or int8</option><option value="all">any</option>
        </select>
      </label>
      <label>Price
        <select value=${question.price_basis} onChange=${input("price_basis")}><option value="on_demand">on demand</option><option value="reserved">reserved</option><option value="spot">spot</option></select>
      </label>
    </form>
  `;
}

function Download({ question, row, devices }) {
  const [fault, setFault] = useState("");
  const save = async () => {
    setFault("");
    try {
      const { device, tp, pp, dtype, batch } = row;
      const answer = await ask("/console/plan/files", { body: { ...bodyOf(question, devices), row: { device, tp, pp, dtype, batch } } });
      download(await answer.blob(), `deploy-${device}-tp${tp}.zip`);
    } catch (error) {
      setFault(error.message);
    }
  };
  return html`<p class="buttons"><button onClick=${save}>Download deployment files</button><button onClick=${() => copyText(location.href)}>Copy link</button><span class="fault" role="alert">${fault}</span></p>`;
}
