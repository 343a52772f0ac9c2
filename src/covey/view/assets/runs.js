"use strict";
// The leaderboard: every run of the folder, sorted, filtered, and against a baseline; tags and notes are edited here.
(() => {
  const { element } = covey;
  const { NONE, ago, badge, difference, figure, get, interval, intervalBar, isShare, link, post, progress, renew, tagsOf, time, tokens } = covey.parts;

  // Columns: what they are called, what they sort by, and how they show an entry.
  const where = (entry) => (entry.id === "." || entry.id === entry.name ? null : element("span", { class: "where" }, entry.id));
  const held = (entry) => {
    if (entry.value === null || entry.value === undefined) return NONE;
    const about = [entry.metric?.replaceAll("_", " "), entry.grader && `grader: ${entry.grader}`, entry.problems && `${entry.problems.toLocaleString("en")} problems`];
    return element("span", {}, element("b", {}, figure(entry.value, entry.metric)), ` ${interval(entry.low, entry.high, entry.metric)}`,
      isShare(entry.metric) ? intervalBar(entry.low, entry.high, entry.value) : null,
      element("span", { class: "about-figure" }, about.filter(Boolean).join(" · ")));
  };
  const COLUMNS = [
    { key: "name", title: "Run", of: (entry) => entry.name.toLowerCase() },
    { key: "status", title: "Status", of: (entry) => entry.status, cell: (entry) => element("span", {}, badge(entry.status), progress(entry), entry.message ? element("span", { class: "where", title: entry.message }, entry.message) : null) },
    { key: "model", title: "Model and data", of: (entry) => entry.model ?? "", cell: (entry) => element("span", {}, entry.model ?? NONE, element("span", { class: "where" }, entry.data ?? "")) },
    { key: "objective", title: "Objective", of: (entry) => entry.objective ?? "", cell: (entry) => entry.objective ?? NONE },
    { key: "value", title: "Held out [95% interval]", down: true, of: (entry) => entry.value, cell: held },
    { key: "difference", title: "Against the baseline", down: true, baseline: true, of: (entry) => entry.difference?.value, cell: (entry, baseline) => (entry.id === baseline ? element("span", { class: "faint" }, "the baseline") : difference(entry.difference, entry.metric)) },
    { key: "best", title: "Best", down: true, of: (entry) => entry.best?.value, cell: (entry) => (entry.best ? element("span", {}, figure(entry.best.value, entry.metric), element("span", { class: "where" }, `step ${entry.best.step}`)) : NONE) },
    { key: "tokens", title: "Tokens", down: true, of: (entry) => entry.tokens, cell: (entry) => tokens(entry.tokens) },
    { key: "seconds", title: "Time", down: true, of: (entry) => entry.seconds, cell: (entry) => time(entry.seconds) },
    { key: "started", title: "Started", down: true, of: (entry) => Date.parse(entry.started) || (entry.status === "preparing" ? Infinity : null), cell: (entry) => (entry.started ? element("time", { datetime: entry.started, title: new Date(entry.started).toLocaleString() }, ago(entry.started)) : NONE) },
  ];

  covey.pages.runs = async (root, parameters) => {
    let entries = [];
    let shown = [];
    const state = { q: "", status: "", tag: "", kind: "", sort: "-started", baseline: "", ...Object.fromEntries(parameters) };
    const selected = new Set();
    const made = new Map(); // rows of the table by id, with what they were made from

    // --- filters -------------------------------------------------------------------------------------------------------
    const keep = () => {
      const kept = Object.fromEntries(Object.entries(state).filter(([name, value]) => value && !(name === "sort" && value === "-started")));
      history.replaceState(null, "", link("", kept));
    };
    const set = (name, value) => { state[name] = value; keep(); draw(); };
    const search = element("input", { type: "search", placeholder: "Filter by name, model, data, tag or note", "aria-label": "Filter", value: state.q, oninput: () => set("q", search.value) });
    const select = (name, label) => element("select", { "aria-label": label, onchange: (event) => set(name, event.target.value) });
    const fields = { status: select("status", "Status"), kind: select("kind", "Kind"), tag: select("tag", "Tag") };
    const baselineField = element("select", { "aria-label": "Baseline", onchange: () => { state.baseline = baselineField.value; keep(); fetched(); } });
    const count = element("output", { class: "count" });
    const compareButton = element("button", { type: "button", class: "main-button", onclick: () => compare() });
    const clearButton = element("button", { type: "button", onclick: () => { selected.clear(); draw(); } }, "Clear");
    const picked = element("span", { class: "picked", hidden: true }, compareButton, clearButton);
    const filters = element("form", { class: "filters", role: "search", "aria-label": "Filter runs", autocomplete: "off", onsubmit: (event) => event.preventDefault() },
      search, ...Object.values(fields), element("label", {}, "baseline ", baselineField), picked, count);
    const offer = (field, options, value) => {
      renew(field, ...options.map(([name, text]) => element("option", { value: name }, text)));
      field.value = options.some(([name]) => name === value) ? value : "";
      field.hidden = options.length < 3;
    };
    const offerAll = () => {
      const distinct = (of) => [...new Set(entries.flatMap(of))].filter(Boolean).sort().map((name) => [name, name]);
      offer(fields.status, [["", "every status"], ...distinct((entry) => entry.status)], state.status);
      offer(fields.kind, [["", "runs and evaluations"], ...distinct((entry) => entry.kind)], state.kind);
      offer(fields.tag, [["", "every tag"], ...distinct((entry) => entry.tags)], state.tag);
      offer(baselineField, [["", "none"], ...entries.filter((entry) => entry.value !== null).map((entry) => [entry.id, entry.id === "." ? entry.name : entry.id])], state.baseline);
      baselineField.closest("label").hidden = baselineField.hidden;
    };
    const byId = (id) => entries.find((entry) => entry.id === id);
    const matches = (entry) => {
      const text = [entry.name, entry.id, entry.model, entry.data, entry.objective, entry.status, entry.note, ...entry.tags].join("\n").toLowerCase();
      return state.q.toLowerCase().split(/\s+/).every((word) => text.includes(word))
        && (!state.status || entry.status === state.status) && (!state.kind || entry.kind === state.kind)
        && (!state.tag || entry.tags.includes(state.tag));
    };
    const sorted = (some) => {
      const down = state.sort.startsWith("-");
      const column = COLUMNS.find((one) => one.key === state.sort.replace("-", "")) ?? COLUMNS[0];
      const missing = (value) => value === null || value === undefined || value === "";
      return [...some].sort((a, b) => {
        const [x, y] = [column.of(a), column.of(b)];
        if (missing(x) || missing(y)) return missing(x) - missing(y) || a.id.localeCompare(b.id);
        const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
        return (down ? -order : order) || a.id.localeCompare(b.id);
      });
    };

    // --- the table -------------------------------------------------------------------------------------------------------
    const head = element("tr");
    const body = element("tbody");
    const listed = element("table", { class: "runs" }, element("caption", { class: "unseen" }, "Runs"), element("thead", {}, head), body);
    const empty = element("p", { class: "empty", hidden: true });
    const columns = () => COLUMNS.filter((column) => !column.baseline || state.baseline);
    const sortedBy = (column) => {
      if (state.sort.replace("-", "") !== column.key) return (column.down ? "-" : "") + column.key;
      return state.sort.startsWith("-") ? column.key : `-${column.key}`;
    };
    const drawHead = () => {
      const by = state.sort.replace("-", "");
      renew(head, element("th", { scope: "col" }, element("span", { class: "unseen" }, "Selected")), ...columns().map((column) => {
        const order = column.key !== by ? "none" : state.sort.startsWith("-") ? "descending" : "ascending";
        return element("th", { scope: "col", "aria-sort": order, class: column.key },
          element("button", { type: "button", "data-sort": column.key, onclick: () => { set("sort", sortedBy(column)); head.querySelector(`[data-sort="${column.key}"]`).focus(); } },
            column.title, element("span", { "aria-hidden": "true" }, { ascending: " ↑", descending: " ↓", none: "" }[order])));
      }), element("th", { scope: "col" }, element("span", { class: "unseen" }, "Tags and note")));
    };
    const row = (entry) => {
      const box = element("input", { type: "checkbox", "aria-label": `Select ${entry.name}`, onchange: () => { choose(entry.id, box.checked); } });
      const first = element("td", { class: "name" }, element("a", { href: link("run", { id: entry.id }) }, entry.name), where(entry),
        element("span", { class: "tags" }, tagsOf(entry), entry.note ? element("span", { class: "note" }, entry.note) : null));
      const cells = columns().slice(1).map((column) => element("td", { class: column.key, "data-title": column.title }, column.cell(entry, state.baseline)));
      const edit = element("button", { type: "button", class: "edit", "aria-label": `Tags and note of ${entry.name}`, title: "Tags and note (t)", onclick: () => editTags(byId(entry.id)) }, "✎");
      return [element("td", { class: "pick" }, box), first, ...cells, element("td", { class: "actions" }, edit)];
    };
    const draw = () => {
      shown = sorted(entries.filter(matches));
      drawHead();
      const rows = shown.map((entry) => {
        const from = JSON.stringify([entry, state.baseline]);
        const there = made.get(entry.id) ?? { row: element("tr", { "data-id": entry.id }) };
        if (there.from !== from) renew(there.row, ...row(entry));
        there.from = from;
        there.row.classList.toggle("chosen", selected.has(entry.id));
        there.row.querySelector("input").checked = selected.has(entry.id);
        made.set(entry.id, there);
        return there.row;
      });
      if (rows.length !== body.children.length || rows.some((one, at) => one !== body.children[at])) {
        const active = document.activeElement;
        const place = body.contains(active) ? [active.closest("tr").dataset.id, [...active.closest("tr").querySelectorAll("a, input, button")].indexOf(active)] : null;
        body.replaceChildren(...rows);
        if (place) made.get(place[0])?.row.querySelectorAll("a, input, button")[place[1]]?.focus({ preventScroll: true });
      }
      const of = shown.length === entries.length ? "" : `${shown.length.toLocaleString("en")} of `;
      covey.say(count, `${of}${entries.length.toLocaleString("en")} run${entries.length === 1 ? "" : "s"}`);
      picked.hidden = !selected.size;
      compareButton.textContent = selected.size < 2 ? "Select another to compare" : `Compare ${selected.size}`;
      compareButton.disabled = selected.size < 2;
      empty.hidden = shown.length > 0;
      empty.textContent = entries.length ? "No run matches the filter." : "There are no runs in this folder yet. A run appears here as soon as it starts.";
    };
    const choose = (id, on) => {
      if (on) selected.add(id); else selected.delete(id);
      draw();
    };
    const compare = () => {
      if (selected.size < 2) return;
      const first = selected.has(state.baseline) ? [state.baseline] : [];
      location.hash = link("compare", { id: [...new Set([...first, ...shown.map((entry) => entry.id).filter((id) => selected.has(id)).reverse(), ...selected])] });
    };

    // --- tags and notes -----------------------------------------------------------------------------------------------------
    const editTags = (entry) => {
      const tags = element("input", { name: "tags", value: entry.tags.join(", "), list: "known-tags", autocomplete: "off" });
      const note = element("textarea", { name: "note", rows: 4 }, entry.note);
      const problem = element("p", { class: "problem", role: "alert", hidden: true });
      const dialog = element("dialog", { class: "form", "aria-label": `Tags and note of ${entry.name}`, onclose: () => dialog.remove() },
        element("form", {
          method: "dialog",
          onsubmit: async (event) => {
            if (event.submitter?.value === "cancel") return;
            event.preventDefault();
            try {
              const names = [...new Set(tags.value.split(",").map((tag) => tag.trim()).filter(Boolean))];
              const now = await post("/api/tags", { id: entry.id, tags: names, note: note.value.trim() });
              Object.assign(entry, { tags: now.tags, note: now.note });
              dialog.close();
              offerAll();
              draw();
              made.get(entry.id)?.row.querySelector(".edit").focus();
            } catch (error) {
              problem.textContent = error.message;
              problem.hidden = false;
            }
          },
        }, element("h2", {}, entry.name), element("label", {}, "Tags, separated by commas", tags), element("label", {}, "Note", note), problem,
        element("datalist", { id: "known-tags" }, [...new Set(entries.flatMap((one) => one.tags))].map((tag) => element("option", { value: tag }))),
        element("p", { class: "buttons" }, element("button", { value: "save", class: "main-button" }, "Save"), element("button", { value: "cancel", formnovalidate: true }, "Cancel"))));
      document.body.append(dialog);
      dialog.showModal();
    };

    // --- keys ------------------------------------------------------------------------------------------------------------------
    const onRow = () => document.activeElement.closest?.("tr[data-id]");
    const step = (by) => {
      const rows = [...body.children];
      const at = rows.indexOf(onRow());
      rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.querySelector("a").focus();
    };
    const entryHere = () => byId(onRow()?.dataset.id);
    const keys = {
      j: () => step(1), k: () => step(-1), "/": () => search.focus(), c: compare,
      x: () => { const entry = entryHere(); if (entry) choose(entry.id, !selected.has(entry.id)); },
      b: () => { const entry = entryHere(); if (entry) { state.baseline = state.baseline === entry.id ? "" : entry.id; keep(); fetched(); } },
      t: () => { const entry = entryHere(); if (entry) editTags(entry); },
    };

    let asked = 0;
    const fetched = async () => {
      asked += 1;
      const now = asked;
      const found = await get("/api/runs", { baseline: state.baseline });
      if (now !== asked) return;
      entries = found;
      for (const id of selected) if (!entries.some((entry) => entry.id === id)) selected.delete(id);
      offerAll();
      draw();
    };
    document.title = "Runs · Covey";
    try {
      await fetched();
    } catch (error) {
      if (!state.baseline) throw error;
      state.baseline = ""; // it may be gone
      keep();
      await fetched();
    }
    root.replaceChildren(element("h1", {}, "Runs"), filters, element("div", { class: "scroll runs-scroll" }, listed), empty);
    return { changed: fetched, keys };
  };
})();
