"use strict";
// Search over the completions of all runs.
(() => {
  const { element } = covey;
  const { get, link } = covey.parts;

  covey.pages.search = async (root, parameters) => {
    document.title = "Search · Covey";
    const field = element("input", { type: "search", value: parameters.get("q") ?? "", placeholder: "Words in prompts, completions and answers", "aria-label": "Search" });
    const found = element("ol", { class: "hits" });
    const count = element("output", { class: "count" });
    let asked = 0;
    // The words around a hit, with the hit marked; text stays text.
    const excerpt = (text, q) => {
      const at = text.toLowerCase().indexOf(q.toLowerCase());
      if (at < 0) return [text.slice(0, 240)];
      const start = Math.max(0, at - 90);
      return [start ? "…" : "", text.slice(start, at), element("mark", {}, text.slice(at, at + q.length)), text.slice(at + q.length, at + q.length + 150)];
    };
    const hit = (one, q) => element("li", {}, element("a", { href: link("run", { id: one.id, tab: "completions", source: one.source, row: one.row, q }) },
      element("span", { class: "where" }, [one.id === "." ? one.run ?? "this run" : one.id, one.title ?? one.source, one.step === null || one.step === undefined ? "" : `step ${one.step}`].filter(Boolean).join(" · ")),
      element("span", { class: "excerpt" }, excerpt(one.excerpt ?? one.text ?? one.question ?? "", q))));
    const search = async () => {
      const q = field.value.trim();
      asked += 1;
      const now = asked;
      history.replaceState(null, "", link("search", { q }));
      if (q.length < 2) {
        found.replaceChildren();
        count.textContent = "";
        return;
      }
      try {
        const result = await get("/api/search", { q });
        if (now !== asked) return;
        count.textContent = `${result.total.toLocaleString("en")} found`;
        found.replaceChildren(...result.rows.map((one) => hit(one, q)));
      } catch (error) {
        count.textContent = error.message;
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
