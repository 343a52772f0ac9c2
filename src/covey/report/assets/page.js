"use strict";
// What every page needs: elements whose text stays text, live regions, the theme, and the mark of the section that is being
// read.
globalThis.covey = (() => {
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return made;
  };
  // For live regions: a screen reader speaks whenever the text of one is set, be it the same.
  const say = (region, text) => { if (region.textContent !== text) region.textContent = text; };
  const current = (link, is, kind) => { if (is) link.setAttribute("aria-current", kind); else link.removeAttribute("aria-current"); };
  // Kept from visit to visit, where the browser stores anything.
  const kept = (name) => {
    try { return localStorage.getItem(`covey-${name}`); } catch { return null; }
  };
  const keep = (name, value) => {
    try { localStorage.setItem(`covey-${name}`, value); } catch { /* no storage: the choice is not kept */ }
  };

  const root = document.documentElement;
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (kept("theme")) root.dataset.theme = kept("theme");
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => button.setAttribute("aria-label", dark() ? "Switch to light" : "Switch to dark");
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      keep("theme", root.dataset.theme);
      name();
    });
    name();
    const links = new Map([...document.querySelectorAll('nav a[href^="#"]:not([href^="#/"])')].map((link) => [link.hash.slice(1), link]).filter(([id]) => document.getElementById(id)));
    const seen = new Set();
    const watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) seen.add(target.id); else seen.delete(target.id);
      const [first] = [...links.keys()].filter((id) => seen.has(id)).reverse();
      for (const [id, link] of links) current(link, id === first, "true");
    }, { rootMargin: "-60px 0px -40%" });
    for (const id of links.keys()) watch.observe(document.getElementById(id));
  });
  return { current, element, keep, kept, say };
})();
