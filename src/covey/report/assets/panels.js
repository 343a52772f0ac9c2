"use strict";
// The panels: values under the pointer, at one step in all of them; series switched off and on; one panel at full size.
(() => {
  const content = JSON.parse(document.getElementById("panel-data").textContent);
  const { left, right, low, high } = content.geometry;
  const byKey = new Map(content.panels.map((panel) => [panel.key, panel]));
  const figures = [...document.querySelectorAll("figure.panel")];

  const written = (value, unit) => {
    if (unit === "percent") return `${(100 * value).toFixed(1)}%`;
    if (unit === "bytes") return value >= 1e8 ? `${(value / 1e9).toFixed(2)} GB` : `${(value / 1e6).toFixed(0)} MB`;
    const text = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
    return unit === "seconds" ? `${text} s` : text;
  };

  // The place of the step nearest to `step`; steps ascend.
  const nearest = (steps, step) => {
    let from = 0;
    let to = steps.length - 1;
    while (to - from > 1) {
      const middle = (from + to) >> 1;
      if (steps[middle] <= step) from = middle; else to = middle;
    }
    return Math.abs(steps[to] - step) < Math.abs(steps[from] - step) ? to : from;
  };

  const tell = (figure, step) => {
    const panel = byKey.get(figure.dataset.panel);
    const rule = figure.querySelector(".rule");
    const share = left + ((step - low) / (high - low)) * (right - left);
    rule.style.left = `${100 * share}%`;
    rule.hidden = false;
    figure.querySelectorAll(".legend button").forEach((button, number) => {
      const series = panel.series[number];
      const at = nearest(series.steps, step);
      let text = written(series.values[at], panel.unit);
      if (series.low) text += ` [${written(series.low[at], panel.unit)}, ${written(series.high[at], panel.unit)}]`;
      button.querySelector("b").textContent = text;
    });
    figure.querySelector(".at").textContent = `step ${step}`;
  };

  const untell = (figure) => {
    figure.querySelector(".rule").hidden = true;
    figure.querySelector(".at").textContent = "";
    figure.querySelectorAll(".legend b").forEach((b) => { b.textContent = b.dataset.last; });
  };

  const visible = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) visible.add(target); else visible.delete(target);
    }
  });

  for (const figure of figures) {
    const plot = figure.querySelector(".plot");
    const panel = byKey.get(figure.dataset.panel);
    watch.observe(figure);
    figure.querySelectorAll(".legend b").forEach((b) => { b.dataset.last = b.textContent; });
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width - left) / (right - left);
      const asked = low + share * (high - low);
      const steps = panel.series.reduce((a, b) => (b.steps.length > a.length ? b.steps : a), []);
      const step = steps[nearest(steps, asked)];
      visible.forEach((other) => tell(other, step));
    });
    plot.addEventListener("pointerleave", () => figures.forEach(untell));
    figure.querySelectorAll(".legend button").forEach((button, number) => {
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        for (const part of ["", "-pale", "-band"]) {
          const drawn = document.getElementById(`${panel.key}-s${number}${part}`);
          if (drawn) drawn.style.display = on ? "" : "none";
        }
      });
    });
    figure.querySelector(".enlarge").addEventListener("click", () => {
      const large = figure.classList.toggle("large");
      document.body.classList.toggle("covered", large);
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    figures.forEach((figure) => figure.classList.remove("large"));
    document.body.classList.remove("covered");
  });
})();
