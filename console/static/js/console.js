// The console: its frame, and which page is in it.

import { html, render, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { keyNeeded, keys } from "./api.js";
import { follow, reopen, useLive } from "./live.js";
import { Playground } from "./playground.js";
import { Device } from "./device.js";
import { Cost } from "./cost.js";
import { Requests } from "./requests.js";
import { Planner } from "./planner.js";
import { ThemeButton, applyTheme } from "./theme.js";

const PAGES = {
  device: ["Device", Device],
  playground: ["Playground", Playground],
  cost: ["Cost", Cost],
  requests: ["Requests", Requests],
  planner: ["Planner", Planner],
};
const STATUS = { connecting: "connecting", lost: "not reachable, trying again", refused: "needs a key" };

const pageOf = (hash) => {
  const name = hash.slice(2).split("?")[0];
  return name in PAGES ? name : "device";
};

function useHash() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const listener = () => setHash(location.hash);
    addEventListener("hashchange", listener);
    return () => removeEventListener("hashchange", listener);
  }, []);
  return hash;
}

function Console() {
  const page = pageOf(useHash());
  const main = useRef(null);
  const shown = useRef(page);
  const [title, Page] = PAGES[page];
  useEffect(() => {
    document.title = `${title} – neuronserve`;
    if (shown.current !== page) {
      main.current.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    shown.current = page;
  }, [page]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>Skip to the page</a>
    <header class="top">
      <a class="brand" href="#/device"><img src="/static/icon.svg" alt="" width="24" height="24" />neuronserve</a>
      <nav aria-label="Pages">
        ${Object.entries(PAGES).map(
          ([name, [label]]) =>
            html`<a href=${`#/${name}`} aria-current=${name === page ? "page" : null}>${label}</a>`,
        )}
      </nav>
      <${Status} />
      <${ThemeButton} />
    </header>
    <main id="main" tabindex="-1" ref=${main} class=${`page ${page}`}><${Page} /></main>
    <${KeyDialog} />
  `;
}

function Status() {
  const { status, server } = useLive();
  const phase = status === "open" ? (server?.phase ?? "connecting") : STATUS[status];
  const kind = status === "open" && phase === "ready" ? "good" : status === "open" ? "busy" : "bad";
  const model = server?.inventory?.model;
  const device = server?.inventory?.device;
  return html`
    <div class="status">
      ${model && html`<span class="what">${model.names[0]} <span class="dim">on</span> ${device.instance} TP${device.tensor_parallel_size}</span>`}
      <span class=${`lamp ${kind}`} role="status">${phase}</span>
    </div>
  `;
}

function KeyDialog() {
  const dialog = useRef(null);
  const [isWrong, setIsWrong] = useState(false);
  useEffect(() => {
    const listener = () => {
      setIsWrong(Boolean(keys.get()));
      if (!dialog.current.open) dialog.current.showModal();
    };
    keyNeeded.listeners.add(listener);
    follow();
    return () => keyNeeded.listeners.delete(listener);
  }, []);
  const save = (event) => {
    event.preventDefault();
    keys.set(new FormData(event.target).get("key").trim());
    event.target.reset();
    dialog.current.close();
    reopen();
  };
  return html`
    <dialog ref=${dialog} aria-labelledby="key-title">
      <form onSubmit=${save}>
        <h2 id="key-title">This server asks for an API key</h2>
        <p>It is kept in this tab until you close it, and sent to this server alone.</p>
        <label>API key <input name="key" type="password" autocomplete="off" required aria-describedby="key-wrong" /></label>
        <p id="key-wrong" class="fault" role="alert">${isWrong ? "The server does not accept the key that was given." : ""}</p>
        <p class="buttons"><button class="main">Use this key</button></p>
      </form>
    </dialog>
  `;
}

applyTheme();
const app = document.getElementById("app");
app.replaceChildren();
render(html`<${Console} />`, app);
