// Light or dark: as the system is, unless the user chose.

import { html, useState } from "../vendor/htm-preact.js";

const THEME = "neuronserve-theme";
/** Whether the theme in force is dark. */
export const isDark = () => (localStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

/** Put the chosen theme in force. Pages that draw on canvas are told by an event. */
export function applyTheme() {
  const chosen = localStorage.getItem(THEME);
  if (chosen) document.documentElement.dataset.theme = chosen;
  dispatchEvent(new Event("themechange"));
}

export function ThemeButton() {
  const [isPressed, setIsPressed] = useState(isDark());
  const toggle = () => {
    localStorage.setItem(THEME, isPressed ? "light" : "dark");
    setIsPressed(!isPressed);
    applyTheme();
  };
  return html`<button class="theme" aria-pressed=${String(isPressed)} onClick=${toggle}>Dark</button>`;
}

/** The value of a colour of the style sheet in the theme in force, for canvas. */
export function colour(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
