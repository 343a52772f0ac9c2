"use strict";
// Search over the completions of all runs.
(() => {
  const { element } = covey;
  const { get, link } = covey.parts;

  covey.pages.search = async (root, parameters) => {
    document.title = "Search · Covey";
    const field = element("input", { type: "search", value: parameters.get("q") ?? "", placeholder: "Words in prompts, completions and answers", "aria-label": "Search" });
    const found = element("div");
    const count = element("output", { class: "count" });
    let asked = 0;
    // The words around a hit, with the hit marked; text stays text.
    const excerpt = (text, q) => {
      const at = text.toLowerCase().indexOf(q.toLowerCase());
      if (at < 0) return [text.slice(0, 240)];
      const start = Math.max(0, at - 90);
      return [start ? "…" : "", text.slice(start, at), element("mark", {}, text.slice(at, at + q.length)), text.slice(at + q.length, at + q.length + 150)];
    };
    const hit = (source, row, q) => element("li", {}, element("a", { href: link("run", { id: source.id, tab: "completions", source: source.source, row: row.row, q }) },
      element("span", { class: "where" }, [row.step === undefined ? "" : `step ${row.step}`, row.outcome?.replaceAll("_", " "), row.question].filter(Boolean).join(" · ")),
      element("span", { class: "excerpt" }, excerpt(row.text, q))));
    const group = (source, q) => element("section", {}, element("h2", {}, source.id === "." ? "This run" : source.id, element("span", { class: "faint" }, ` ${source.title}`)),
      element("ol", { class: "hits" }, source.rows.map((row) => hit(source, row, q))),
      source.total > source.rows.length ? element("p", { class: "more" }, element("a", { href: link("run", { id: source.id, tab: "completions", source: source.source, q }) }, `All ${source.total.toLocaleString("en")} in this run`)) : null);
    const search = async () => {
      const q = field.value.trim();
      asked += 1;
      const now = asked;
      history.replaceState(null, "", link("search", { q: q || null }));
      if (q.length < 2) {
        found.replaceChildren();
        covey.say(count, "");
        return;
      }
      try {
        const result = await get("/api/search", { q });
        if (now !== asked) return;
        covey.say(count, `${result.total.toLocaleString("en")} found`);
        const damaged = result.damaged?.length ? [element("p", { class: "problem" }, result.damaged.join("\n"))] : [];
        found.replaceChildren(...damaged, ...result.found.map((source) => group(source, q)));
      } catch (error) {
        covey.say(count, error.message);
      }
    };
    let waiting = 0;
    field.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 150); });
    root.append(element("h1", {}, "Search"), element("form", { class: "filters", role: "search", onsubmit: (event) => { event.preventDefault(); search(); } }, field, count), found);
    await search();
    setTimeout(() => field.focus());
    return {};
  };
})();
