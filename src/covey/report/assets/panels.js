"use strict";
// Panels: values on hover, at the same step in all of them; series toggled in the legend; one panel at full size.
(() => {
  const content = JSON.parse(document.getElementById("panel-data").textContent);
  const { left, right, low, high } = content.geometry;
  const byKey = new Map(content.panels.map((panel) => [panel.key, panel]));
  const figures = [...document.querySelectorAll("figure.panel")];

  const format = (value, unit) => {
    if (unit === "percent") return `${(100 * value).toFixed(1)}%`;
    if (unit === "bytes") return value >= 1e8 ? `${(value / 1e9).toFixed(2)} GB` : `${(value / 1e6).toFixed(0)} MB`;
    const text = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
    return unit === "seconds" ? `${text} s` : text;
  };

  // The index of the step nearest to `step`; steps ascend.
  const nearest = (steps, step) => {
    let from = 0;
    let to = steps.length - 1;
    while (to - from > 1) {
      const middle = (from + to) >> 1;
      if (steps[middle] <= step) from = middle; else to = middle;
    }
    return Math.abs(steps[to] - step) < Math.abs(steps[from] - step) ? to : from;
  };

  const showValues = (figure, step) => {
    const panel = byKey.get(figure.dataset.panel);
    const rule = figure.querySelector(".rule");
    const share = left + ((step - low) / (high - low)) * (right - left);
    rule.style.left = `${100 * share}%`;
    rule.hidden = false;
    const texts = [];
    figure.querySelectorAll(".legend button").forEach((button, number) => {
      const series = panel.series[number];
      const at = nearest(series.steps, step);
      let text = format(series.values[at], panel.unit);
      if (series.low) text += ` [${format(series.low[at], panel.unit)} to ${format(series.high[at], panel.unit)}]`;
      button.querySelector("b").textContent = text;
      texts.push(`${series.label} ${text}`);
    });
    const plot = figure.querySelector(".plot");
    plot.setAttribute("aria-valuenow", step);
    plot.setAttribute("aria-valuetext", `step ${step}: ${texts.join(", ")}`);
    figure.querySelector(".at").textContent = `step ${step}`;
  };

  const hideValues = (figure) => {
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

  // Makes everything but `figure` inert while it covers the page.
  const setOthersInert = (figure, inert) => {
    for (let here = figure; here !== document.body; here = here.parentElement) {
      for (const other of here.parentElement.children) if (other !== here) other.inert = inert;
    }
  };
  const enlarge = (figure, large) => {
    figure.classList.toggle("large", large);
    figure.querySelector(".enlarge").setAttribute("aria-pressed", String(large));
    document.body.classList.toggle("covered", large);
    setOthersInert(figure, large);
  };

  for (const figure of figures) {
    const plot = figure.querySelector(".plot");
    const panel = byKey.get(figure.dataset.panel);
    watch.observe(figure);
    figure.querySelectorAll(".legend b").forEach((b) => { b.dataset.last = b.textContent; });
    const steps = panel.series.reduce((a, b) => (b.steps.length > a.length ? b.steps : a), []);
    let place = steps.length - 1;
    const showAll = () => visible.forEach((other) => showValues(other, steps[place]));
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width - left) / (right - left);
      place = nearest(steps, low + share * (high - low));
      showAll();
    });
    plot.addEventListener("pointerleave", () => figures.forEach(hideValues));
    plot.addEventListener("blur", () => figures.forEach(hideValues));
    plot.addEventListener("keydown", (event) => {
      const far = Math.max(1, Math.round(steps.length / 10));
      const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: far, PageDown: -far, Home: -Infinity, End: Infinity }[event.key];
      if (!by) return;
      event.preventDefault();
      place = Math.min(steps.length - 1, Math.max(0, place + by));
      visible.add(figure);
      showAll();
    });
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
    figure.querySelector(".enlarge").addEventListener("click", () => enlarge(figure, !figure.classList.contains("large")));
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const figure of figures) if (figure.classList.contains("large")) enlarge(figure, false);
  });
})();
