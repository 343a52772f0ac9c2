"use strict";
// The viewer of completions, which reports and `covey view` share. Text from models and data only becomes text nodes.
//
// After completion_card.js:
// covey.completions.show(root, provider, {source, row, q, chosen}) builds the viewer in the element `root`, beginning
//   with this source, completion and search if given; `chosen(source, row)` is called when one is selected. Returns
//   {refresh()}, to be called when the run's files have changed: it keeps what is selected.
// covey.completions.remote(get, id): the provider of a run in `covey view`; get(path, parameters) promises its JSON.
//
// A provider has sources(): [{source, kind, title, steps, tags}]; list(query): {total, count, rows, facets} with a page of
// short rows; group(source, row): {prompt, question, answer, step, problem, completions}, see report/completions.py.
(() => {
  const ROW = 78; // height of a list item, as in the style sheet
  const PAGE = 60; // short rows that are asked for at once
  const ORDERS = {
    step: "by step", "reward-down": "highest reward", "reward-up": "lowest reward",
    "advantage-down": "highest advantage", "advantage-up": "lowest advantage", "weight-down": "highest target weight",
    "length-down": "longest", "calls-down": "most tool calls", "seconds-down": "longest in the environment",
  };
  const EPISODES = { called: "called a tool", uncalled: "called no tool", failed: "a call failed", unanswered: "without an answer" };

  const { card, promptOf, marked, badges, element, readable, number, some, words } = covey.completions;

  // --- providers ---------------------------------------------------------------------------------------------------
  const remote = (get, id) => ({
    sources: () => get("/api/sources", { id }),
    list: (query) => get("/api/completions", { id, ...query }),
    group: (source, row) => get("/api/completion", { id, source, row }),
  });

  const isOf = (one, kind) => {
    if (!kind) return true;
    if (kind.startsWith("=")) return one.ended === kind.slice(1);
    if (kind === "failed") return one.failures > 0;
    if (kind === "unanswered") return one.ended != null && one.ended !== "answered";
    return one.calls > 0 === (kind === "called");
  };
  const embedded = (data) => {
    const rows = data.groups.flatMap((group) => group.completions.map((one) => ({ group, one, all: { ...group, ...one } })));
    rows.forEach((row, at) => { row.one.row = row.all.row = String(at); });
    const bySource = new Map();
    for (const row of rows) {
      if (!bySource.has(row.group.source)) bySource.set(row.group.source, []);
      bySource.get(row.group.source).push(row);
    }
    const of = (source) => bySource.get(source) ?? [];
    const distinct = (source, name) => [...new Set(of(source).map((row) => row.all[name]))].filter((value) => value != null);
    const facets = (source) => ({
      outcomes: distinct(source, "outcome").sort(), ends: distinct(source, "ended").sort(),
      has: ["reward", "advantage", "weight", "length", "truncated", "calls", "seconds"].filter((name) => of(source).some((row) => row.all[name] != null)),
    });
    const searched = (row) => (row.lowered ??= `${row.group.prompt}\n${row.one.text}\n${row.group.answer ?? ""}`.toLowerCase());
    const short = (row, q) => {
      const found = q ? row.one.text.toLowerCase().indexOf(q) : -1;
      const begin = found > 120 ? found - 60 : 0;
      return { ...row.all, question: row.group.question.slice(0, 160), text: (begin ? "…" : "") + row.one.text.slice(begin, begin + 160) };
    };
    const list = async ({ source, q, step, outcome, truncated, episode, sort, offset, limit }) => {
      const lowered = (q ?? "").toLowerCase();
      let found = of(source).filter((row) => (!step || row.all.step === Number(step)) && (!truncated || row.all.truncated)
        && (!outcome || (outcome === "not right" ? row.all.outcome !== "right" : row.all.outcome === outcome))
        && isOf(row.all, episode) && (!lowered || searched(row).includes(lowered)));
      const [name, way] = (sort ?? "step").split("-");
      const key = (row) => (row.all[name] == null ? Infinity : way === "down" ? -row.all[name] : row.all[name]);
      if (way) found = found.map((row) => [key(row), row]).sort(([a], [b]) => (a === b ? 0 : a - b)).map(([, row]) => row);
      const shown = found.slice(offset, offset + limit).map((row) => short(row, lowered));
      return { total: found.length, count: of(source).length, rows: shown, facets: facets(source) };
    };
    const steps = (source) => distinct(source, "step").sort((a, b) => a - b);
    return {
      sources: async () => data.sources.map((one) => ({ ...one, steps: steps(one.source), tags: data.tags })),
      list,
      group: async (source, row) => rows[Number(row)].group,
    };
  };

  // --- the viewer --------------------------------------------------------------------------------------------------
  const control = (tag, name, label) => {
    const made = element(tag);
    made.name = name;
    made.setAttribute("aria-label", label);
    return made;
  };
  const show = (root, provider, { source = null, row = null, q = "", chosen: told = () => {} } = {}) => {
    const form = element("form", "filters");
    form.hidden = true; // until it is known what there is to filter by
    for (const [name, value] of [["role", "search"], ["aria-label", "Filters"], ["autocomplete", "off"]]) form.setAttribute(name, value);
    const fields = {
      source: control("select", "source", "Which completions"),
      search: control("input", "search", "Search"),
      step: control("select", "step", "Step"),
      outcome: control("select", "outcome", "Outcome"),
      episode: control("select", "episode", "Episode"),
      sort: control("select", "sort", "Sort order"),
      truncated: control("input", "truncated", "truncated"),
    };
    fields.search.type = "search";
    fields.search.placeholder = "Search the texts";
    fields.search.value = q;
    fields.truncated.type = "checkbox";
    const truncated = element("label");
    truncated.append(fields.truncated, " truncated");
    const counted = element("output", "count");
    form.append(fields.source, fields.search, fields.step, fields.outcome, fields.episode, fields.sort, truncated, counted);
    const split = element("div", "split");
    const list = element("div", "list");
    const space = element("div", "space");
    const detail = element("div", "detail");
    for (const [one, role, label] of [[list, "listbox", "Completions"], [detail, "region", "Group of the selected completion"]]) {
      one.tabIndex = 0;
      one.setAttribute("role", role);
      one.setAttribute("aria-label", label);
    }
    space.setAttribute("role", "presentation");
    list.append(space);
    split.append(list, detail);
    const notes = element("p", "small notes"); // files that cannot be read
    notes.setAttribute("role", "status");
    notes.textContent = "Reading the completions …";
    root.replaceChildren(form, notes, split);

    let sources = [];
    let total = 0;
    let pages = new Map(); // of the present filters: a number to its rows, or to undefined while they are asked for
    let stale = new Map(); // those before the files changed, shown until the new ones are there
    let asked = 0; // counts requests, so that an answer that comes late is dropped
    let opened = 0;
    let chosen = row; // the row that is selected, and its place in the list
    let place = -1;
    let drawn = "";
    const about = () => sources.find((one) => one.source === fields.source.value) ?? sources[0] ?? { tags: ["think", "answer"] };
    const query = (offset) => {
      const given = { source: about().source, q: fields.search.value, step: fields.step.value, outcome: fields.outcome.value,
        episode: fields.episode.value, sort: fields.sort.value, truncated: fields.truncated.checked ? "1" : "" };
      return { ...Object.fromEntries(Object.entries(given).filter(([, value]) => value)), offset, limit: PAGE };
    };
    const options = (field, found) => { // pairs of a value and its text; keeps what is selected
      const before = field.value;
      if (JSON.stringify([...field.options].map((one) => [one.value, one.text])) === JSON.stringify(found)) return;
      field.replaceChildren(...found.map(([value, text]) => new Option(text, value)));
      field.value = found.some(([value]) => value === before) ? before : found[0]?.[0] ?? "";
    };
    const offer = ({ outcomes, ends, has }) => {
      options(fields.outcome, [["", "all outcomes"], ...(outcomes.length ? [["not right", "not right"]] : []), ...outcomes.map((name) => [name, words(name)])]);
      options(fields.episode, [["", "all episodes"], ...Object.entries(EPISODES), ...ends.map((name) => [`=${name}`, `ended: ${words(name)}`])]);
      options(fields.sort, Object.entries(ORDERS).filter(([name]) => name === "step" || has.includes(name.split("-")[0])));
      fields.episode.hidden = !has.includes("calls");
      truncated.hidden = !has.includes("truncated");
      fields.outcome.hidden = !outcomes.length;
    };

    // The list: only visible items are rendered, and asked for.
    const fetched = async (page) => {
      if (pages.has(page)) return pages.get(page);
      const now = asked;
      pages.set(page, undefined);
      const found = await provider.list(query(page * PAGE));
      if (now !== asked) return undefined;
      pages.set(page, found.rows);
      return found.rows;
    };
    const line = (one, at) => {
      const made = element("div", one?.row === chosen ? "line chosen" : "line");
      made.id = `completion-${at}`;
      made.setAttribute("role", "option");
      made.setAttribute("aria-selected", String(one !== undefined && one.row === chosen));
      made.setAttribute("aria-posinset", at + 1);
      made.setAttribute("aria-setsize", total);
      made.style.top = `${at * ROW}px`;
      made.dataset.at = at;
      if (!one) return made;
      made.dataset.row = one.row;
      const head = element("span", "head");
      const where = [one.problem == null ? "" : `problem ${one.problem}`, one.step == null ? "" : `step ${one.step}`];
      head.append(marked(one.outcome), element("span", "", where.filter(Boolean).join(", ")), ...badges(one));
      if (one.calls) head.append(element("span", "used", some(one.calls, "call")));
      const advantage = one.advantage == null ? "" : `  A ${number(one.advantage)}`;
      head.append(element("span", "figures", one.reward == null ? advantage : `r ${number(one.reward)}${advantage}`));
      const flat = (text) => readable(text.replace(/\s+/g, " "));
      made.append(head, element("span", "question", flat(one.question ?? "")), element("span", "text", flat(one.text)));
      return made;
    };
    const draw = () => {
      const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
      const last = Math.min(total, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
      const needed = [];
      for (let page = Math.floor(first / PAGE); page * PAGE < last; page += 1) needed.push(page);
      const key = `${first}-${last}-${chosen}-${needed.map((page) => pages.get(page) !== undefined)}`;
      if (key === drawn) return;
      drawn = key;
      const lines = [];
      for (let at = first; at < last; at += 1) lines.push(line((pages.get(Math.floor(at / PAGE)) ?? stale.get(Math.floor(at / PAGE)))?.[at % PAGE], at));
      space.replaceChildren(...lines);
      const active = lines.find((one) => one.classList.contains("chosen"));
      if (active) list.setAttribute("aria-activedescendant", active.id); else list.removeAttribute("aria-activedescendant");
      for (const page of needed) if (!pages.has(page)) fetched(page).then(draw, failed);
      highlight();
    };

    const toList = () => {
      root.classList.remove("opened");
      list.focus({ preventScroll: true });
    };
    const highlight = () => { // what was searched for
      if (!globalThis.Highlight) return;
      const wanted = fields.search.value.toLowerCase();
      const ranges = [];
      if (wanted) {
        const walk = document.createTreeWalker(split, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {
          if (!walk.currentNode.parentElement.closest(".body, .call, .question, .text, pre")) continue;
          const text = walk.currentNode.data.toLowerCase();
          for (let at = text.indexOf(wanted); at >= 0 && ranges.length < 2000; at = text.indexOf(wanted, at + wanted.length)) {
            if (at + wanted.length > walk.currentNode.length) break;
            const range = new Range();
            range.setStart(walk.currentNode, at);
            range.setEnd(walk.currentNode, at + wanted.length);
            ranges.push(range);
          }
        }
      }
      CSS.highlights.set("covey-found", new Highlight(...ranges));
    };

    // One group, side by side.
    const open = async (wanted, byHand) => {
      chosen = wanted;
      opened += 1;
      const now = opened;
      draw();
      const of = about();
      const group = await provider.group(of.source, wanted);
      if (now !== opened) return;
      told(of.source, wanted);
      const members = [...group.completions];
      const most = Math.max(0, ...members.map((one) => Math.abs(one.advantage ?? 0)));
      const head = element("div", "about");
      const where = [group.problem == null ? "" : `Problem ${group.problem}`, group.step == null ? "" : group.problem == null ? `Step ${group.step}` : String(group.step)];
      const size = of.kind === "training" ? `a group of ${members.length}` : some(members.length, "completion");
      head.append(element("h3", "", `${where.filter(Boolean).join(", step ")}: ${size}`));
      const modeOf = (one) => one.extra?.mode ?? null; // which right answer a completion is
      const named = [...new Set(members.map(modeOf))].filter((mode) => mode !== null);
      if (named.length) members.sort((one, other) => (modeOf(one) === null) - (modeOf(other) === null) || named.indexOf(modeOf(one)) - named.indexOf(modeOf(other)));
      const graded = members.some((one) => one.outcome);
      const facts = graded ? [`${members.filter((one) => one.outcome === "right").length} right`] : [];
      if (named.length) facts.push(some(named.length, "different answer"));
      if (group.answer != null) facts.push(`gold answer: ${readable(group.answer)}`);
      head.append(element("p", "", facts.join(" · ")));
      const back = element("button", "back", "← list");
      back.type = "button";
      back.addEventListener("click", toList);
      const cards = element("div", "cards");
      const how = { tags: of.tags, most, inThinking: group.prompt.trimEnd().endsWith(`<${of.tags[0]}>`) };
      let above;
      for (const one of members) {
        if (named.length && modeOf(one) !== above) {
          above = modeOf(one);
          const alike = members.filter((other) => modeOf(other) === above).length;
          cards.append(element("h4", "mode", `${above === null ? "other completions" : readable(above)} (${alike})`));
        }
        cards.append(card(one, { ...how, chosen: one.row === wanted }));
      }
      detail.replaceChildren(back, head, promptOf(group, of.kind), cards);
      detail.scrollTop = 0;
      if (byHand) {
        root.classList.add("opened");
        if (back.offsetParent) back.focus({ preventScroll: true }); // narrow screens only, where the list is hidden
      }
      highlight();
    };
    const choose = async (at, byHand) => {
      place = at;
      const rows = pages.get(Math.floor(at / PAGE)) ?? await fetched(Math.floor(at / PAGE));
      if (rows?.[at % PAGE] && place === at) await open(rows[at % PAGE].row, byHand);
    };

    // Filters.
    const filter = async ({ keep = false } = {}) => {
      asked += 1;
      const now = asked;
      const found = await provider.list(query(0));
      if (now !== asked) return;
      covey.say(notes, (found.damaged ?? []).join(" "));
      form.hidden = false;
      stale = keep ? pages : new Map();
      pages = new Map([[0, found.rows]]);
      total = found.total;
      offer(found.facets);
      counted.setAttribute("aria-live", keep ? "off" : "polite"); // that a run goes on is no news
      covey.say(counted, `${total.toLocaleString("en")} of ${found.count.toLocaleString("en")}`);
      if (!keep) list.scrollTop = 0;
      space.style.height = `${total * ROW}px`;
      drawn = "";
      const at = found.rows.findIndex((one) => one.row === chosen);
      if (at >= 0) place = at;
      draw();
      if (!total && !keep) detail.replaceChildren();
      else if (!keep && at < 0 && !row) await choose(0, false);
      else if (!detail.hasChildNodes() && chosen !== null) await open(chosen, row !== null);
      row = null;
      if (found.partial) setTimeout(() => { if (now === asked) filter({ keep: true }).catch(failed); }, 2000); // what to filter by is not all known
    };
    const refresh = async ({ begin = false } = {}) => {
      sources = await provider.sources();
      options(fields.source, sources.map((one) => [one.source, one.title + (one.count == null ? "" : ` (${one.count.toLocaleString("en")})`)]));
      if (begin && sources.some((one) => one.source === source)) fields.source.value = source;
      source = null;
      fields.source.hidden = sources.length < 2;
      const steps = about().steps ?? [];
      options(fields.step, [["", "all steps"], ...steps.map((step) => [String(step), `step ${step}`])]);
      fields.step.hidden = steps.length < 2;
      await filter({ keep: !begin });
    };

    list.addEventListener("scroll", () => requestAnimationFrame(draw));
    list.addEventListener("click", (event) => {
      const clicked = event.target.closest(".line");
      if (clicked) choose(Number(clicked.dataset.at), true).catch(failed);
    });
    list.addEventListener("keydown", (event) => {
      if (!total) return;
      if (event.key === "Enter") {
        choose(Math.max(place, 0), true).catch(failed);
        if (!detail.contains(document.activeElement)) detail.focus({ preventScroll: true });
        return;
      }
      const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
      const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
      if (!by) return;
      event.preventDefault();
      const at = Math.min(total - 1, Math.max(0, place + by));
      list.scrollTop = Math.min(Math.max(list.scrollTop, (at + 1) * ROW - list.clientHeight), at * ROW);
      choose(at, false).catch(failed);
    });
    detail.addEventListener("keydown", (event) => { if (event.key === "Escape") toList(); });
    form.addEventListener("submit", (event) => event.preventDefault()); // Enter must not reload the page
    const failed = (error) => covey.say(notes, `This could not be read: ${error.message}`);
    let waiting = 0;
    fields.search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => filter().catch(failed), 120);
    });
    for (const name of ["step", "outcome", "truncated", "episode", "sort"]) fields[name].addEventListener("change", () => filter().catch(failed));
    fields.source.addEventListener("change", () => {
      chosen = null;
      fields.step.value = fields.outcome.value = "";
      refresh({ begin: true }).catch(failed);
    });
    new ResizeObserver(() => { drawn = ""; draw(); }).observe(list);
    refresh({ begin: true }).catch(failed).finally(() => root.removeAttribute("aria-busy"));
    return { refresh: () => refresh().catch(failed) };
  };

  Object.assign(covey.completions, { show, remote });

  // A report holds its completions, compressed.
  const unpacked = async (text) => {
    const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };
  const packed = document.getElementById("completions-data");
  if (packed) unpacked(packed.textContent).then((data) => show(document.getElementById("completions-browser"), embedded(data)));
})();
