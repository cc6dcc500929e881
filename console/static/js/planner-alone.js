// `neuronserve plan --serve`: the planner without a server around it.

import { html, render } from "../vendor/htm-preact.js";
import { Planner } from "./planner.js";
import { ThemeButton, applyTheme } from "./theme.js";

applyTheme();
const app = document.getElementById("app");
app.replaceChildren();
render(
  html`
    <header class="top">
      <span class="brand"><img src="/static/icon.svg" alt="" width="24" height="24" />neuronserve planner</span>
      <${ThemeButton} />
    </header>
    <main class="page planner"><${Planner} /></main>
  `,
  app,
);
