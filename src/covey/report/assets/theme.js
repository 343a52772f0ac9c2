"use strict";
// Light or dark: the reader's last choice, else the system's theme.
(() => {
  const root = document.documentElement;
  const stored = () => {
    try { return localStorage.getItem("covey-theme"); } catch { return null; }
  };
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (stored()) root.dataset.theme = stored();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => { button.setAttribute("aria-label", dark() ? "Switch to light" : "Switch to dark"); };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("covey-theme", root.dataset.theme); } catch { /* no storage: the choice is not kept */ }
      name();
    });
    name();
  });
})();
