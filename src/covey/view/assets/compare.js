"use strict";
// Several runs: paired differences from the first of them, configs, curves over each other, and two runs' answers to the
// same problems.
(() => {
  const { element } = covey;
  const { badge, difference, figure, get, interval, link, load, section, setName, table, tabs, time, tokens } = covey.parts;
  const PAGE = 10;
  const colour = (number) => {
    const mark = element("i");
    mark.style.background = `var(--c${number % 8})`;
    return mark;
  };

  covey.pages.compare = async (root, parameters) => {
    const ids = parameters.getAll("id");
    if (ids.length < 2) throw new Error("Select two runs or more in the list of runs, then compare them.");
    document.title = `${ids.length} runs compared · Covey`;
    const all = await get("/api/runs", { baseline: ids[0] });
    const entries = ids.map((id) => all.find((entry) => entry.id === id));
    const missing = ids.filter((_, at) => !entries[at]);
    if (missing.length) throw new Error(`There is no run ${missing.join(", ")}: it may have been deleted or renamed.`);
    const labels = new Set(entries.map((entry) => entry.name)).size === ids.length ? entries.map((entry) => entry.name) : ids;
    const name = (at) => element("span", { class: "run-name" }, colour(at), element("a", { href: link("run", { id: ids[at] }) }, labels[at]));

    // --- figures and configs ----------------------------------------------------------------------------------------------
    const runs = section("Runs", table(["run", "status", "held out [95% interval]", `against ${labels[0]}`, "tokens", "time"],
      entries.map((entry, at) => [name(at), badge(entry.status),
        element("span", {}, element("b", {}, figure(entry.value, entry.metric)), ` ${interval(entry.low, entry.high, entry.metric)}`),
        at ? difference(entry.difference, entry.metric) : element("span", { class: "faint" }, "the baseline"), tokens(entry.tokens), time(entry.seconds)]), { caption: "Runs" }));
    const compared = await Promise.all(ids.slice(1).map((id) => get("/api/compare", { a: ids[0], b: id, limit: 1 })));
    const keys = [...new Set(compared.flatMap((pair) => pair.config.map(([key]) => key)))];
    const configs = compared.map((pair) => new Map(pair.config.map(([key, a, b]) => [key, { a, b }])));
    const first = (key) => configs.find((config) => config.has(key)).get(key).a;
    const tests = compared.flatMap((pair, at) => (pair.refused && !pair.metrics.length ? [{ refused: pair.refused }] : pair.metrics).map((metric) => ({ ...metric, at: at + 1 })));
    const paired = section("Paired differences",
      element("p", { class: "small" }, `On the same problems, from ${labels[0]}. Differences of shares are in points, in brackets their 95% interval. p: McNemar's exact test, or a sign-flip permutation test if problems have several completions.`),
      table(["run", "set", "figure", "problems", labels[0], "this run", "difference", "gained / lost"], tests.map((one) => [name(one.at),
        one.name && setName(one.name) + (one.steps ? ` (steps ${one.steps.join(" and ")})` : ""), one.metric && one.metric.replaceAll("_", " ") + (one.grader ? ` (grader: ${one.grader})` : ""),
        one.problems?.toLocaleString("en"), figure(one.first, one.metric), figure(one.second, one.metric), difference(one, one.metric), one.refused ? null : `${one.gained} / ${one.lost}`]), { caption: "Paired differences" }));
    const config = section("Config differences", keys.length
      ? table(["key", ...ids.map((_, at) => name(at))], keys.map((key) => [element("code", {}, key), first(key), ...configs.map((one) => one.get(key)?.b ?? first(key))]), { caption: "Config differences" })
      : element("p", {}, "None: the configs are equal."));

    // --- the same problems ---------------------------------------------------------------------------------------------------
    const problems = element("div", { class: "pairs" });
    const counted = element("output", { class: "count" });
    const which = element("select", { "aria-label": "Compared with the baseline" }, ids.slice(1).map((id, at) => element("option", { value: id }, labels[at + 1])));
    const kind = element("select", { "aria-label": "Which problems" }, [["changed", "changed"], ["gained", "gained"], ["lost", "lost"], ["", "all"]].map(([value, text]) => element("option", { value }, text)));
    which.hidden = ids.length < 3;
    const sets = element("select", { "aria-label": "Set" });
    const offerSets = () => {
      const names = compared[ids.indexOf(which.value) - 1].metrics.map((metric) => metric.name);
      sets.replaceChildren(...names.map((set) => element("option", { value: set }, setName(set))));
      sets.hidden = names.length < 2;
    };
    offerSets();
    let offset = 0;
    const side = (at, completions) => element("div", {}, element("h3", {}, name(at)), [completions ?? []].flat().map((one) => covey.completions.card(one)));
    const move = (by) => element("button", { type: "button", onclick: () => { offset = Math.max(0, offset + by * PAGE); list(); } }, by < 0 ? "← previous" : "next →");
    const [previous, next] = [move(-1), move(1)];
    const list = () => load(problems, get("/api/compare", { a: ids[0], b: which.value, set: sets.value || null, show: kind.value, offset, limit: PAGE }), (found) => {
      const total = found.total ?? found.problems?.length ?? 0;
      counted.textContent = found.refused ? "" : `${total ? `${offset + 1} to ${Math.min(offset + PAGE, total)} of ` : ""}${total.toLocaleString("en")} problems`;
      previous.disabled = offset === 0;
      next.disabled = offset + PAGE >= total;
      const b = ids.indexOf(which.value);
      problems.replaceChildren(...(found.refused ? [element("p", { class: "problem" }, `Not compared: ${found.refused}`)] : !total ? [element("p", { class: "empty" }, "No such problem.")] : found.problems.map((one) => element("article", { class: "pair" },
        element("header", {}, element("h2", {}, `Problem ${one.problem}`), element("p", { class: "question" }, covey.completions.readable(one.question ?? "")),
          one.gold === null || one.gold === undefined ? null : element("p", { class: "small" }, `gold answer: ${covey.completions.readable(String(one.gold))}`)),
        element("div", { class: "sides" }, side(0, one.a), side(b, one.b))))));
    });
    which.addEventListener("change", offerSets);
    for (const field of [which, sets, kind]) field.addEventListener("change", () => { offset = 0; list(); });
    const answers = element("section", {}, element("div", { class: "filters" }, which, sets, kind, counted), problems, element("p", { class: "pager" }, previous, next));

    // --- curves ----------------------------------------------------------------------------------------------------------------
    const charts = element("section", { class: "charts", "aria-label": "Curves" });
    const board = covey.charts.board(charts);
    let version = "";
    const drawCurves = async () => {
      const found = await get("/api/curves", { id: ids, after: version });
      if (!found || found.version === version) return;
      version = found.version;
      board.show(found);
    };
    const panes = { Overview: element("div", {}, runs, paired, config), Curves: element("div", {}, charts), Problems: answers };
    const parts = tabs("Parts of the comparison", panes, parameters.get("tab"), (title, byHand) => {
      if (byHand) history.replaceState(null, "", link("compare", { id: ids, tab: title.toLowerCase() }));
    });
    root.append(element("p", { class: "run" }, element("a", { href: link("") }, "Runs"), " / comparison"), element("h1", {}, `${ids.length} runs compared`), parts.element, ...Object.values(panes));
    list();
    await load(charts, drawCurves(), () => {});
    return { changed: (changed) => (!changed || changed.some((id) => ids.includes(id)) ? drawCurves() : false), keys: parts.keys };
  };
})();
