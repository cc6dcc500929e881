// Light or dark: as the system is, unless the user chose.

import { html, useState } from "../vendor/htm-preact.js";

const THEME = "neuronserve-theme";
const isSystemDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

/** Put the chosen theme in force. Pages that draw on canvas are told by an event. */
export function applyTheme() {
  const chosen = localStorage.getItem(THEME);
  if (chosen) document.documentElement.dataset.theme = chosen;
  dispatchEvent(new Event("themechange"));
}

export function ThemeButton() {
  const [isDark, setIsDark] = useState((localStorage.getItem(THEME) ?? (isSystemDark() ? "dark" : "light")) === "dark");
  const toggle = () => {
    localStorage.setItem(THEME, isDark ? "light" : "dark");
    setIsDark(!isDark);
    applyTheme();
  };
  return html`<button class="theme" aria-pressed=${String(isDark)} onClick=${toggle}>Dark</button>`;
}

/** The value of a colour of the style sheet, for canvas. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
