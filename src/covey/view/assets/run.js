"use strict";
// One run, live: what its report shows, its charts, and every completion.
(() => {
  const { element } = covey;
  const { badge, get, link, load, progress, renew, section, table, tabs, tagsOf } = covey.parts;
  const LEVELS = { warn: "Warning:", note: "Note:", good: "Good:" };

  const unseen = (title) => element("h2", { class: "unseen" }, title);
  const gain = (change) => {
    const kind = ["same", "up", "down"].at(change.verdict);
    const shown = element("div", { class: "gain" }, element("p", { class: "what" }, change.what),
      element("p", { class: "figures" }, element("span", { class: "before" }, change.before), " ", element("span", { class: "arrow" }, "→"), " ",
        element("strong", {}, change.after), " ", element("span", { class: `change ${kind}` }, change.difference.replace("-", "−"))));
    if (change.percent) {
      const [before, after] = change.percent;
      const text = `95% intervals: before ${before.low.toFixed(1)} to ${before.high.toFixed(1)}, after ${after.low.toFixed(1)} to ${after.high.toFixed(1)} percent`;
      const parts = [["before", before], ["after", after]].flatMap(([name, one]) => {
        const [span, dot] = [element("i", { class: `span ${name}` }), element("i", { class: `dot ${name}` })];
        Object.assign(span.style, { left: `${one.low}%`, width: `${one.high - one.low}%` });
        dot.style.left = `${one.value}%`;
        return [span, dot];
      });
      shown.append(element("div", { class: "dumbbell", role: "img", "aria-label": text }, parts));
    }
    const chance = change.tested && !change.verdict ? ": chance is not ruled out" : "";
    shown.append(element("p", { class: "small" }, `${change.texts[0]} at step ${change.steps[0]}, ${change.texts[1]} at step ${change.steps[1]}; ${change.test}${chance}.`));
    return shown;
  };
  const finding = (one) => element("li", { class: one.level, "data-rule": one.rule },
    element("span", { class: "unseen" }, LEVELS[one.level] ?? ""), element("b", {}, one.title),
    element("p", {}, element("span", { class: "figure" }, one.figure), `${one.text} `, element("span", { class: "rule-name" }, one.rule)));
  const facts = (settings) => element("dl", { class: "facts" }, settings.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const evaluations = (rows) => section("Evaluations", table(["set", "value [95% interval]", "weights", "problems", "sampling"],
    rows.map((row) => [row.set, row.text, row.weights, row.problems.toLocaleString("en") + (row.samples > 1 ? ` × ${row.samples}` : ""), row.sampling]), { caption: "Evaluations" }));
  const modes = (rows) => section("Several right answers",
    element("p", { class: "small" }, "Of held-out problems, with 95% intervals over problems. Random answers are well-formed, and uniformly random."),
    table(["set", "figure", `step ${rows[0].steps[0]}`, `step ${rows[0].steps[1]}`, "random answers"],
      rows.map((row) => [row.set_name, `${row.figure}: ${row.meaning}`, row.first, row.last, row.chance]), { caption: "Several right answers" }));

  covey.pages.run = async (root, parameters) => {
    const id = parameters.get("id") ?? ".";
    let version = "";
    const first = await get("/api/run", { id });
    const isRun = first.entry.kind !== "evaluation";
    document.title = `${first.entry.name} · Covey`;

    const top = element("div", { class: "run-top" });
    const summary = element("div");
    const charts = element("section", { class: "charts", "aria-label": "Curves" });
    const board = covey.charts.board(charts);
    const viewer = element("div", { id: "completions-browser", "aria-busy": "true" });
    const config = element("pre", { tabindex: 0, role: "region", "aria-label": "Resolved config" });
    const panes = { Overview: element("div", {}, summary, charts), Completions: element("section", {}, unseen("Completions"), viewer), Config: element("section", { id: "config" }, unseen("Config"), config) };
    if (!isRun) delete panes.Overview;
    let browser = null;

    const drawTop = ({ entry, title, ended, traceback }) => {
      const training = ["training", "preparing"].includes(entry.status);
      renew(top, element("p", { class: "run" }, badge(entry.status), element("a", { href: link("") }, "Runs"), ` / ${entry.id === "." ? entry.name : entry.id}`),
        element("h1", {}, title || entry.name),
        element("p", { class: "ended" }, training ? progress(entry) : null, training ? " What is shown here follows the run." : entry.message ?? ended ?? ""),
        element("p", { class: "tags" }, tagsOf(entry), entry.note ? element("span", { class: "note" }, entry.note) : null),
        ...(traceback ? [element("details", {}, element("summary", {}, "Traceback"), element("pre", { class: "small" }, traceback))] : []));
    };
    const drawSummary = (found) => {
      const parts = [];
      if (found.changes?.length) parts.push(element("section", { class: "gains", "aria-label": "Before and after" }, found.changes.map(gain)));
      if (found.settings?.length) parts.push(facts(found.settings));
      if (found.evaluations?.length) parts.push(evaluations(found.evaluations));
      if (found.modes?.length) parts.push(modes(found.modes));
      if (found.findings?.length) parts.push(section("Findings", element("ul", { class: "findings" }, found.findings.map(finding))));
      renew(summary, ...parts);
    };
    let configText = null;
    const drawRun = (found) => {
      drawTop(found);
      drawSummary(found);
      if (found.config !== configText) config.textContent = configText = found.config ?? "";
    };
    const drawCurves = async () => {
      if (!isRun) return;
      const found = await get("/api/curves", { id, after: version });
      if (!found || found.version === version) return;
      version = found.version;
      board.show(found);
    };

    drawRun(first);
    const parts = tabs("Parts of the run", panes, parameters.get("tab"), (title, byHand) => {
      const tab = title.toLowerCase();
      if (byHand) history.replaceState(null, "", link("run", { id, tab }));
      if (tab !== "completions" || browser) return;
      browser = covey.completions.show(viewer, covey.completions.remote(get, id), {
        source: parameters.get("source"), row: parameters.get("row"), q: parameters.get("q"),
        chosen: (source, row) => history.replaceState(null, "", link("run", { id, tab, source, row })),
      });
    });
    root.replaceChildren(top, parts.element, ...Object.values(panes));
    await load(charts, drawCurves(), () => {});

    return {
      changed: async (ids) => {
        if (ids && !ids.includes(id)) return false;
        drawRun(await get("/api/run", { id }));
        await drawCurves();
        await browser?.refresh();
        return true;
      },
      keys: parts.keys,
    };
  };
})();
