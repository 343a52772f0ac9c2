"use strict";
// Charts under their headings, with one x axis, one smoothing, one zoom and one cursor for all of them. A board is drawn
// from what `report/panels.py` makes, and may be given newer data again and again.
covey.charts = (() => {
  const { element } = covey;
  const { AXES, curves, draw, format, nearest, shape } = covey.plot;
  const WIDTHS = [5, 11, 25, 51, 101, 201];
  const HELP = "Drag over a chart to zoom, double-click to go back. By keyboard: arrows move the cursor, + and − zoom at it, 0 goes back.";
  const isZero = (panel) => panel.series.every((one) => one.values.every((value) => value === 0));

  const board = (root) => {
    let data = null;
    let structure = "";
    let axis = covey.kept("axis") ?? "step";
    const widthOf = (choice) => (choice === "off" ? 0 : Number(choice) || null);
    let smoothing = widthOf(covey.kept("smoothing")); // in points; 0 for none, null for the automatic width
    let range = null; // where zoomed
    let cursor = null;
    let outdated = false;
    const charts = new Map(); // by the panel's key
    const hiddenCurves = new Map(); // likewise
    const onScreen = new Set();

    const full = () => {
      const ends = data.axes.map((one) => one[axis]).filter((values) => values.length);
      const low = Math.min(...ends.map((values) => values[0]));
      const high = Math.max(...ends.map((values) => values[values.length - 1]));
      const margin = 0.012 * (high - low || 1);
      return [low - margin, high + margin];
    };

    // --- the controls ---------------------------------------------------------------------------------------------------
    const option = (value, text) => element("option", { value }, text);
    const axisField = element("select", { onchange: () => { covey.keep("axis", axisField.value); axis = axisField.value; zoom(null); } });
    const widthField = element("select", {
      onchange: () => {
        covey.keep("smoothing", widthField.value);
        smoothing = widthOf(widthField.value);
        charts.forEach((chart) => chart.refresh());
      },
    }, option("automatic", "automatic"), option("off", "off"), WIDTHS.map((width) => option(width, `mean of ${width} points`)));
    widthField.value = smoothing === null ? "automatic" : smoothing ? String(smoothing) : "off";
    const back = element("button", { type: "button", hidden: true, onclick: () => zoom(null) }, "Reset zoom");
    const controls = element("div", { class: "chart-controls", role: "group", "aria-label": "All charts" },
      element("label", {}, "x axis ", axisField), element("label", {}, "smoothing ", widthField), back,
      element("span", { class: "hint" }, HELP));
    const offerAxes = () => {
      const offered = Object.keys(AXES).filter((name) => data.axes.length && data.axes.every((one) => one[name]?.length));
      if (!offered.includes(axis)) axis = "step";
      if ([...axisField.options].map((one) => one.value).join() !== offered.join()) {
        axisField.replaceChildren(...offered.map((name) => option(name, { step: "step", seconds: "time", tokens: "tokens" }[name])));
      }
      axisField.value = axis;
    };
    const zoom = (wanted) => {
      const all = full();
      range = wanted && [Math.max(all[0], wanted[0]), Math.min(all[1], wanted[1])];
      if (range && (range[1] - range[0] > 0.98 * (all[1] - all[0]) || range[1] <= range[0])) range = null;
      back.hidden = !range;
      charts.forEach((chart) => chart.refresh());
    };
    const point = (x) => {
      cursor = x;
      charts.forEach((chart) => { if (x === null || onScreen.has(chart.figure)) chart.point(x); });
    };
    const watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) onScreen.add(target); else onScreen.delete(target);
    });

    // --- one panel at full size -----------------------------------------------------------------------------------------
    const dialog = element("dialog", { class: "large" });
    const place = document.createComment("");
    const enlarge = (figure) => {
      if (dialog.open) { dialog.close(); return; }
      figure.replaceWith(place);
      dialog.replaceChildren(figure);
      dialog.setAttribute("aria-label", figure.querySelector("h3").textContent);
      dialog.showModal();
      figure.querySelector(".enlarge").setAttribute("aria-pressed", "true");
      figure.querySelector(".plot").focus();
    };
    dialog.addEventListener("close", () => {
      const [figure] = dialog.children;
      place.replaceWith(figure);
      const button = figure.querySelector(".enlarge");
      button.setAttribute("aria-pressed", "false");
      button.focus({ preventScroll: true });
      if (outdated) show(data);
    });

    // --- one panel -----------------------------------------------------------------------------------------------------
    const chart = (first) => {
      let panel = first;
      let lines = [];
      let drawing = null;
      if (!hiddenCurves.has(panel.key)) hiddenCurves.set(panel.key, new Set());
      const hidden = hiddenCurves.get(panel.key);
      const svg = shape("svg", { "aria-hidden": "true" });
      const mark = element("i", { class: "selection", hidden: true });
      const at = element("span", { class: "at" });
      const note = element("p");
      const plot = element("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": `${panel.title}: values at a step`, "aria-keyshortcuts": "+ - 0" }, svg, mark);
      const legend = element("div", { class: "legend", role: "group", "aria-label": `Curves of ${panel.title}: show or hide` });
      const larger = element("button", { type: "button", class: "enlarge", "aria-label": `Full size: ${panel.title}`, "aria-pressed": "false", title: "Full size (Escape closes)", onclick: () => enlarge(figure) }, "⤢");
      const figure = element("figure", { class: "panel", "data-panel": panel.key },
        element("figcaption", {}, element("h3", {}, panel.title), at, larger, note), plot, legend);

      const longest = () => lines.reduce((a, b) => (b.xs.length > a.xs.length ? b : a), { xs: [] }).xs;
      const label = (x) => (axis === "step" ? `step ${AXES.step.text(x)}` : AXES[axis].text(x) + (axis === "tokens" ? " tokens" : ""));
      const valueAt = (one, x) => {
        const near = nearest(one.xs, x);
        const ends = one.low ? ` [${format(one.low[near], panel.unit)} to ${format(one.high[near], panel.unit)}]` : "";
        const mean = one.width ? ` · mean ${format(one.drawn[near], panel.unit)}` : "";
        return format(one.raw[near], panel.unit) + ends + mean;
      };
      const nameValues = (x) => {
        const texts = lines.map((one, number) => {
          if (!one.xs.length) return "";
          const text = x === null ? format(one.drawn[one.drawn.length - 1], panel.unit) : valueAt(one, x);
          legend.children[number].lastChild.textContent = text;
          return `${one.label} ${text}`;
        });
        at.textContent = x === null ? "" : label(x);
        const xs = longest();
        const now = x ?? xs[xs.length - 1] ?? 0;
        for (const [name, value] of [["min", xs[0] ?? 0], ["max", xs[xs.length - 1] ?? 0], ["now", now]]) plot.setAttribute(`aria-value${name}`, value);
        plot.setAttribute("aria-valuetext", `${label(now)}: ${texts.filter(Boolean).join(", ")}`);
      };
      const paint = () => {
        const width = svg.clientWidth;
        if (!width) return; // folded away
        const height = dialog.contains(figure) ? Math.max(200, Math.min(width * 0.6, innerHeight - 220)) : Math.round(Math.max(190, width * 0.52));
        drawing = draw(svg, panel, lines, { axis, range: range ?? full(), zoomed: range !== null, hidden, width, height });
        if (cursor !== null && onScreen.has(figure)) drawing.show(cursor);
      };
      const refresh = () => {
        lines = curves(panel, data.axes, axis, smoothing);
        const width = Math.max(...lines.map((one) => one.width * one.every));
        const every = Math.max(...lines.map((one) => one.every));
        const mean = width ? `Mean of ${width} steps${panel.stacked ? "" : `, pale: every ${every > 1 ? `${every} steps` : "step"}`}.` : every > 1 ? `Each point is the mean of ${every} steps.` : "";
        note.textContent = [panel.note, mean].filter(Boolean).join(" ");
        note.hidden = !note.textContent;
        lines.forEach((one, number) => {
          if (legend.children[number]) return;
          const swatch = element("i");
          swatch.style.background = one.colour;
          const button = element("button", { type: "button", "aria-pressed": String(!hidden.has(one.label)), onclick: () => toggle(one.label, button) }, swatch, `${one.label} `, element("b"));
          legend.append(button);
        });
        nameValues(cursor !== null && onScreen.has(figure) ? cursor : null);
        paint();
      };
      const toggle = (name, button) => {
        if (!hidden.delete(name)) hidden.add(name);
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        paint();
      };

      // The pointer: a cursor everywhere, and a range where it is dragged.
      let held = null;
      const across = (event) => event.clientX - svg.getBoundingClientRect().left;
      plot.addEventListener("pointerdown", (event) => {
        if (event.button === 0 && event.pointerType !== "touch" && drawing) held = across(event);
      });
      plot.addEventListener("pointermove", (event) => {
        if (!drawing) return;
        const xs = longest();
        onScreen.add(figure);
        if (xs.length) point(xs[nearest(xs, drawing.toX(across(event)))]);
        if (held === null || Math.abs(across(event) - held) < 5) return;
        if (plot.setPointerCapture && event.isTrusted) plot.setPointerCapture(event.pointerId);
        const inside = (pixels) => Math.min(drawing.box.right, Math.max(drawing.box.left, pixels));
        const [from, to] = [inside(held), inside(across(event))].sort((a, b) => a - b);
        mark.hidden = false;
        Object.assign(mark.style, { left: `${from}px`, width: `${to - from}px`, top: `${drawing.box.top}px`, height: `${drawing.box.bottom - drawing.box.top}px` });
      });
      plot.addEventListener("pointerup", (event) => {
        const [from, to] = [held, across(event)].sort((a, b) => a - b);
        if (held !== null && to - from >= 5) zoom([drawing.toX(from), drawing.toX(to)]);
        held = null;
        mark.hidden = true;
      });
      plot.addEventListener("pointerleave", () => point(null));
      plot.addEventListener("blur", () => point(null));
      plot.addEventListener("dblclick", () => zoom(null));
      plot.addEventListener("keydown", (event) => {
        const [low, high] = range ?? full();
        const xs = longest().filter((x) => x >= low && x <= high);
        if (!xs.length || event.ctrlKey || event.metaKey || event.altKey) return;
        const here = cursor === null ? xs.length - 1 : nearest(xs, cursor);
        const by = { "+": 0.5, "=": 0.5, "-": 2, "−": 2 }[event.key];
        const far = Math.max(1, Math.round(xs.length / 10));
        const move = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: far, PageDown: -far, Home: -Infinity, End: Infinity }[event.key];
        if (!by && !move && event.key !== "0") return;
        event.preventDefault();
        onScreen.add(figure);
        if (event.key === "0") zoom(null);
        else if (by) zoom([xs[here] - (xs[here] - low) * by, xs[here] + (high - xs[here]) * by]);
        else point(xs[Math.min(xs.length - 1, Math.max(0, (cursor === null ? xs.length : here) + move))]);
      });
      new ResizeObserver(paint).observe(plot);
      watch.observe(figure);
      return {
        figure,
        refresh,
        fits: (newer) => JSON.stringify([newer.title, newer.series.map((one) => [one.label, one.colour])]) === JSON.stringify([panel.title, panel.series.map((one) => [one.label, one.colour])]),
        update: (newer) => { panel = newer; refresh(); },
        point: (x) => { nameValues(x); if (drawing) { if (x === null) drawing.hide(); else drawing.show(x); } },
      };
    };

    // --- all of them ----------------------------------------------------------------------------------------------------
    // Charts that there are already move as they are: the page keeps its height, its focus and what is folded out.
    const arrange = () => {
      const before = new Map(charts);
      const open = new Set([...root.querySelectorAll("details[open]")].map((one) => one.dataset.of));
      const active = document.activeElement;
      charts.clear();
      const made = data.sections.map(([heading, panels]) => {
        const of = (some) => element("div", { class: "panels" }, some.map((panel) => {
          const old = before.get(panel.key);
          charts.set(panel.key, old?.fits(panel) ? old : chart(panel));
          return charts.get(panel.key).figure;
        }));
        const zero = panels.filter(isZero);
        const other = panels.filter((panel) => !isZero(panel));
        const names = zero.map((panel) => panel.title).join(", ");
        return [element("h2", {}, heading), other.length ? of(other) : null,
          zero.length ? element("details", { class: "zero", "data-of": heading, open: open.has(heading) }, element("summary", {}, `0 throughout: ${names}`), of(zero)) : null];
      });
      root.replaceChildren(controls, ...made.flat().filter(Boolean), dialog);
      before.forEach((old, key) => { if (charts.get(key) !== old) { watch.unobserve(old.figure); onScreen.delete(old.figure); } });
      if (root.contains(active)) active.focus({ preventScroll: true });
    };
    const show = (newer) => {
      data = newer;
      offerAxes();
      root.hidden = !data.sections.length;
      const now = JSON.stringify(data.sections.map(([heading, panels]) => [heading, panels.map((panel) => [panel.key, panel.title, isZero(panel), panel.series.map((one) => one.label)])]));
      outdated = dialog.open && now !== structure;
      const renewed = now !== structure && !dialog.open;
      const top = (figure) => figure.getBoundingClientRect().top;
      const read = renewed ? [...charts.values()].map((one) => one.figure).find((figure) => top(figure) > 0 && top(figure) < innerHeight) : null;
      const before = read && top(read);
      if (renewed) {
        structure = now;
        arrange();
      }
      for (const [, panels] of data.sections) for (const panel of panels) charts.get(panel.key)?.update(panel);
      if (read?.isConnected) scrollBy({ top: top(read) - before, behavior: "instant" }); // new charts above it have pushed it down
    };
    return { show };
  };

  const embedded = document.getElementById("panel-data");
  if (embedded) board(document.getElementById("curves")).show(JSON.parse(embedded.textContent));
  return { board };
})();
