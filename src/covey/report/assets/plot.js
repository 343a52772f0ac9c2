"use strict";
// One chart as SVG: scales, smoothing, lines with bands or stacked areas, and the rule that shows where the values are from.
covey.plot = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const SMOOTH_FROM = 30; // points, as in curves.png
  const shape = (tag, attributes, ...children) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  // --- numbers as text -----------------------------------------------------------------------------------------------
  const signed = (text) => text.replace("-", "−");
  const duration = (seconds) => {
    if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return seconds % 60 < 0.5 ? `${minutes} min` : `${minutes} min ${Math.floor(seconds % 60)} s`;
    return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  };
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
  const format = (value, unit) => {
    if (unit === "percent") return signed(`${(100 * value).toFixed(1)}%`);
    if (unit === "bytes") return value >= 1e8 ? `${(value / 1e9).toFixed(2)} GB` : `${(value / 1e6).toFixed(0)} MB`;
    const text = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
    return signed(unit === "seconds" ? `${text} s` : text);
  };
  const AXES = {
    step: { title: "training step", text: (x) => Math.round(x).toLocaleString("en"), whole: true },
    seconds: { title: "time in steps and evaluations", text: duration, times: true },
    tokens: { title: "tokens", text: (x) => compact.format(x) },
  };
  const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

  // About `count` round values between two ends.
  const ticks = (low, high, count, { whole = false, times = false } = {}) => {
    const least = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(least));
    let by = [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= least * 0.9999);
    if (whole) by = Math.max(1, by === 2.5 ? 5 : by);
    if (times && least <= 86400 && least > 1) by = TIMES.find((step) => step >= least);
    const found = [];
    for (let at = Math.ceil(low / by - 1e-9); at * by <= high + by * 1e-9; at += 1) found.push(at * by + 0); // no −0
    return { by, values: found };
  };
  const digits = (by) => {
    let count = 0;
    while (count < 9 && Math.abs(by * 10 ** count - Math.round(by * 10 ** count)) > 1e-4) count += 1;
    return count;
  };
  const tickText = (value, by, unit) => {
    if (unit === "percent") return signed(`${(100 * value).toFixed(digits(100 * by))}%`);
    if (unit === "bytes") return value ? format(value, unit) : "0";
    if (Math.abs(value) >= 1e5 || (value && by < 1e-5)) return signed(value.toExponential(Math.abs(value) < 10 * by ? 1 : 2).replace(/\.?0+e/, "e").replace("e+", "e"));
    const text = signed(value.toLocaleString("en", { minimumFractionDigits: digits(by), maximumFractionDigits: digits(by) }));
    return unit === "seconds" ? `${text} s` : text;
  };

  // --- data ------------------------------------------------------------------------------------------------------------
  const before = (ascending, x) => {
    let from = 0;
    let to = ascending.length - 1;
    while (to - from > 1) {
      const middle = (from + to) >> 1;
      if (ascending[middle] <= x) from = middle; else to = middle;
    }
    return to > from && ascending[to] <= x ? to : from;
  };
  const nearest = (ascending, x) => {
    const at = before(ascending, x);
    return at + 1 < ascending.length && ascending[at + 1] - x < x - ascending[at] ? at + 1 : at;
  };
  // Where a step lies on an axis of its run: between known steps, in proportion.
  const along = (axes, axis) => (step) => {
    if (axis === "step") return step;
    const steps = axes.step;
    const values = axes[axis];
    const at = before(steps, step);
    if (at + 1 >= steps.length || steps[at] >= step) return values[at];
    return values[at] + ((values[at + 1] - values[at]) * (step - steps[at])) / (steps[at + 1] - steps[at]);
  };
  const automatic = (count) => (count < SMOOTH_FROM ? 0 : Math.max(5, Math.floor(count / 25) * 2 + 1));
  // The centred mean over `width` (odd) values; at the ends, over those that exist.
  const runningMean = (values, width) => {
    const sums = [0];
    for (const value of values) sums.push(sums[sums.length - 1] + value);
    const half = (width - 1) / 2;
    return values.map((_, at) => {
      const from = Math.max(0, at - half);
      const to = Math.min(values.length, at + half + 1);
      return (sums[to] - sums[from]) / (to - from);
    });
  };
  const stackable = (panel) => panel.stacked && panel.series.every((one) => one.values.every((value) => value >= 0));

  // The curves of a panel on an axis: `smoothing` is null for the automatic width, else an odd number of points, 0 for none.
  const curves = (panel, axes, axis, smoothing) => {
    const stacked = stackable(panel);
    const steps = stacked ? [...new Set(panel.series.flatMap((one) => one.steps))].sort((a, b) => a - b) : null;
    return panel.series.map((one) => {
      const known = stacked ? new Map(one.steps.map((step, at) => [step, one.values[at]])) : null;
      const raw = stacked ? steps.map((step) => known.get(step) ?? 0) : one.values;
      const wanted = !(one.smooth || stacked) ? 0 : smoothing ?? automatic(raw.length);
      const width = wanted > 1 && raw.length > 2 ? Math.min(wanted, raw.length - 1 + (raw.length % 2)) : 0;
      const of = along(axes[one.run ?? 0] ?? axes[0], axis);
      return {
        label: one.label, colour: one.colour, raw, width, every: one.every ?? 1, low: one.low, high: one.high,
        steps: steps ?? one.steps, xs: (steps ?? one.steps).map(of), drawn: width ? runningMean(raw, width) : raw,
      };
    });
  };

  // --- drawing -----------------------------------------------------------------------------------------------------------
  // The points of a line within the range and one on each side; in each column of pixels, the first, least, greatest and last.
  const visible = (xs, ys, [left, right], columns) => {
    const from = before(xs, left);
    let to = before(xs, right) + 1;
    if (to < xs.length) to += 1;
    if (to - from <= 3 * columns) return Array.from({ length: to - from }, (_, at) => [xs[from + at], ys[from + at]]);
    const found = [];
    const scale = columns / (right - left);
    for (let at = from; at < to;) {
      const column = Math.floor((xs[at] - left) * scale);
      const start = at;
      let [least, most] = [at, at];
      for (; at < to && Math.floor((xs[at] - left) * scale) === column; at += 1) {
        if (ys[at] < ys[least]) least = at;
        if (ys[at] > ys[most]) most = at;
      }
      for (const place of [...new Set([start, Math.min(least, most), Math.max(least, most), at - 1])]) found.push([xs[place], ys[place]]);
    }
    return found;
  };
  const limits = (panel, shown, layers, [left, right], zoomed) => {
    let [low, high] = [Infinity, -Infinity];
    const take = (xs, ys) => xs.forEach((x, at) => {
      if (x >= left && x <= right) { low = Math.min(low, ys[at]); high = Math.max(high, ys[at]); }
    });
    if (layers) layers.forEach((layer, at) => take(shown[at].xs, layer));
    else for (const one of shown) for (const ys of [one.raw, one.low, one.high]) if (ys) take(one.xs, ys);
    if (low > high) [low, high] = [0, 1];
    if (panel.target !== null && panel.target !== undefined && !zoomed) { low = Math.min(low, panel.target); high = Math.max(high, panel.target); }
    const padding = (high - low || Math.abs(high) || 1e-9) * 0.06;
    const grounded = layers || (panel.from_zero && !zoomed);
    low = grounded ? Math.min(0, low) : low - padding;
    high += layers && panel.unit === "percent" ? 0 : padding;
    if (panel.unit === "percent" && (zoomed ? high > 1 : high > 0.6)) high = Math.min(1, Math.max(high, zoomed ? 0 : 1));
    if (panel.unit === "percent" && low < 0 && shown.every((one) => one.raw.every((y) => y >= 0))) low = 0;
    return low < high ? [low, high] : [low, low + 1e-9];
  };
  const line = (points, x, y) => points.map(([at, value], n) => `${n ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");

  // Draws into `svg`, and returns where x values lie and how to show the rule.
  const draw = (svg, panel, lines, { axis, range, zoomed, hidden, width, height }) => {
    const box = { left: 54, right: width - 12, top: 8, bottom: height - 38 };
    const shown = lines.filter((one) => !hidden.has(one.label));
    const layers = stackable(panel) ? shown.map(() => []) : null;
    if (layers) {
      const sums = new Array(shown[0]?.drawn.length ?? 0).fill(0);
      shown.forEach((one, at) => { layers[at] = one.drawn.map((value, n) => (sums[n] += value)); });
    }
    const [low, high] = limits(panel, shown, layers, range, zoomed);
    const x = (value) => box.left + ((value - range[0]) / (range[1] - range[0])) * (box.right - box.left);
    const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
    const inside = shape("svg", { x: box.left - 3, y: box.top - 3, width: Math.max(0, box.right - box.left + 6), height: box.bottom - box.top + 6, overflow: "hidden", viewBox: `${box.left - 3} ${box.top - 3} ${Math.max(1, box.right - box.left + 6)} ${box.bottom - box.top + 6}` });
    const made = [];
    const upward = ticks(low, high, Math.max(2, Math.min(6, (box.bottom - box.top) / 34)));
    for (const value of upward.values) {
      made.push(shape("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
      made.push(shape("text", { class: "tick y", x: box.left - 7, y: y(value) + 4 }, tickText(value, upward.by, panel.unit)));
    }
    const { title, text, ...kind } = AXES[axis];
    let end = -Infinity; // labels must not overlap
    for (const value of ticks(range[0], range[1], Math.max(2, (box.right - box.left) / (kind.times ? 90 : 70)), kind).values) {
      const label = text(value);
      const half = label.length * 3.3;
      if (x(value) - half < end || x(value) + half > width + 4) continue;
      end = x(value) + half + 10;
      made.push(shape("text", { class: "tick x", x: x(value), y: box.bottom + 17 }, label));
    }
    made.push(shape("line", { class: "ground", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    made.push(shape("text", { class: "axis", x: (box.left + box.right) / 2, y: height - 5 }, title));
    const columns = Math.max(50, Math.round(box.right - box.left));
    const points = (one, ys) => visible(one.xs, ys, range, columns);
    const place = (one) => lines.indexOf(one);
    [...shown].reverse().forEach((one) => { // the first line lies on top
      const at = shown.indexOf(one);
      if (!one.xs.length) return;
      if (layers) {
        const lower = at ? points(one, layers[at - 1]) : [[one.xs[0], 0], [one.xs[one.xs.length - 1], 0]];
        const area = `${line(points(one, layers[at]), x, y)}L${line(lower.reverse(), x, y).slice(1)}Z`;
        inside.append(shape("path", { class: "area", "data-series": place(one), d: area, fill: one.colour }));
        return;
      }
      if (one.low && one.xs.length === 1) { // a band needs two points
        inside.append(shape("line", { class: "whisker", "data-series": place(one), x1: x(one.xs[0]), x2: x(one.xs[0]), y1: y(one.low[0]), y2: y(one.high[0]), stroke: one.colour }));
      } else if (one.low) {
        const band = `${line(points(one, one.high), x, y)}L${line(points(one, one.low).reverse(), x, y).slice(1)}Z`;
        inside.append(shape("path", { class: "band", "data-series": place(one), d: band, fill: one.colour }));
      }
      if (one.width) inside.append(shape("path", { class: "pale", "data-series": place(one), d: line(points(one, one.raw), x, y), stroke: one.colour }));
      const bold = points(one, one.drawn);
      inside.append(shape("path", { class: "bold", "data-series": place(one), d: line(bold, x, y), stroke: one.colour }));
      if (bold.length <= 25) for (const [px, py] of bold) inside.append(shape("circle", { class: "dot", cx: x(px), cy: y(py), r: 2.6, fill: one.colour }));
    });
    if (panel.target !== null && panel.target !== undefined) inside.append(shape("line", { class: "target", x1: box.left, x2: box.right, y1: y(panel.target), y2: y(panel.target) }));
    const rule = shape("g", { class: "rule", visibility: "hidden" });
    inside.append(rule);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(...made, inside);
    return {
      box,
      toX: (pixels) => range[0] + ((pixels - box.left) / (box.right - box.left)) * (range[1] - range[0]),
      fromX: x,
      show: (value) => {
        rule.setAttribute("visibility", "visible");
        const marks = shown.map((one, at) => {
          const near = nearest(one.xs, value);
          return one.xs.length ? shape("circle", { cx: x(one.xs[near]), cy: y(layers ? layers[at][near] : one.drawn[near]), r: 3.6, fill: one.colour }) : "";
        });
        rule.replaceChildren(shape("line", { x1: x(value), x2: x(value), y1: box.top, y2: box.bottom }), ...marks);
      },
      hide: () => rule.setAttribute("visibility", "hidden"),
    };
  };
  return { AXES, curves, draw, duration, format, nearest, shape };
})();
