"use strict";
// Parts that the pages share: requests, links, figures, tables. A page is a function (root, parameters) that draws itself
// into `root` and returns what follows changes of files, {changed(ids)}, which answers false where it has asked for nothing;
// both optional.
covey.pages = Object.create(null);
covey.parts = (() => {
  const { element } = covey;
  const { duration, format } = covey.plot;
  const NONE = "–";

  // --- requests ------------------------------------------------------------------------------------------------------
  const query = (parameters) => {
    const found = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters)) {
      for (const one of [value].flat()) if (one !== null && one !== undefined) found.append(name, one);
    }
    return found.toString();
  };
  const answered = async (response) => {
    if (response.status === 304) return null;
    const text = await response.text();
    let content = null;
    try { content = JSON.parse(text); } catch { /* told below */ }
    if (response.ok && content !== null) return content;
    if (response.status === 401 || response.status === 403) throw new Error("The server does not know this page: open the address that `covey view` has printed, which ends with its token.");
    throw new Error(content?.error ?? content?.detail ?? (text.slice(0, 300) || `The server answered ${response.status}.`));
  };
  const ask = (path, options) => fetch(path, options).then(answered, () => {
    throw new Error("The server does not answer. If `covey view` was stopped, start it again and open the address that it prints.");
  });
  const get = (path, parameters = {}) => ask(`${path}?${query(parameters)}`);
  const post = (path, body) => ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const link = (page, parameters = {}) => `#/${page}${query(parameters) ? `?${query(parameters)}` : ""}`;

  // Draws with what is promised; says why it cannot.
  const load = async (root, promised, draw) => {
    root.setAttribute("aria-busy", "true");
    try {
      draw(await promised);
    } catch (error) {
      root.replaceChildren(element("p", { class: "problem", role: "alert" }, error.message));
    } finally {
      root.removeAttribute("aria-busy");
    }
  };

  // --- figures ---------------------------------------------------------------------------------------------------------
  const NUMBERS = /^(reward|completion_length|turns|tool_calls|tool_failures|environment_seconds|distinct(_if_solved)?@\d+)(\/|$)/;
  const isShare = (metric) => !NUMBERS.test(metric ?? "");
  const figure = (value, metric) => (value === null || value === undefined ? NONE : format(value, isShare(metric) ? "percent" : "number"));
  const bare = (value, metric) => figure(value, metric).replace("%", "");
  const interval = (low, high, metric) => (low === null || low === undefined ? "" : `[${bare(low, metric)} to ${bare(high, metric)}]`);
  const sign = (value, metric) => (value > 0 ? "+" : "") + bare(value, metric);
  const pText = (p) => (p === null || p === undefined ? "" : `p = ${p < 0.001 ? p.toExponential(1).replace("-", "−") : Number(p.toPrecision(2))}`);
  const tokens = (count) => (count ? new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(count) : NONE);
  const time = (seconds) => (seconds ? duration(Math.round(seconds)) : NONE);
  const ago = (iso) => {
    const seconds = (Date.now() - Date.parse(iso)) / 1000;
    if (!Number.isFinite(seconds)) return NONE;
    for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
      if (seconds >= size) return new Intl.RelativeTimeFormat("en").format(-Math.floor(seconds / size), unit);
    }
    return "just now";
  };
  // A difference with its interval and its test: coloured only where the test tells it from chance.
  const difference = (found, metric) => {
    if (!found) return element("span", { class: "faint" }, NONE);
    if (found.refused) return element("span", { class: "refused", title: found.refused }, `not compared: ${found.refused}`);
    const { value, low, high, p } = found;
    const kind = low === null || low === undefined || (low <= 0 && high >= 0) ? "same" : value > 0 ? "up" : "down";
    return element("span", { class: "difference" },
      element("b", { class: `change ${kind}` }, sign(value, metric)), ` ${low === null || low === undefined ? "" : `[${sign(low, metric)} to ${sign(high, metric)}]`}`,
      element("span", { class: "p" }, pText(p)));
  };
  // The 95% interval of a share on a line from 0 to 100%.
  const intervalBar = (low, high, value) => {
    const bar = element("span", { class: "interval", "aria-hidden": "true" }, element("i", { class: "span" }), element("i", { class: "dot" }));
    Object.assign(bar.children[0].style, { left: `${100 * (low ?? value)}%`, width: `${100 * ((high ?? value) - (low ?? value))}%` });
    bar.children[1].style.left = `${100 * value}%`;
    return bar;
  };
  const progress = (entry) => {
    const of = entry.max_steps ? ` / ${entry.max_steps.toLocaleString("en")}` : "";
    if (!entry.step && !entry.max_steps) return null;
    const shown = [`${(entry.step ?? 0).toLocaleString("en")}${of}`];
    if (entry.max_steps && ["training", "preparing"].includes(entry.status)) {
      shown.push(element("progress", { max: entry.max_steps, value: entry.step ?? 0, "aria-label": "steps" }));
    }
    return element("span", { class: "steps" }, ...shown);
  };
  const setName = (name) => ({ test: "held-out", hard: "harder set" })[name] ?? name;
  const badge = (status) => element("span", { class: `badge ${status}` }, status);
  const tagsOf = (entry) => entry.tags.map((tag) => element("span", { class: "tag-chip" }, tag));

  // A table: heads are texts, rows are arrays of texts or elements.
  const table = (heads, rows, attributes = {}) => element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": attributes.caption },
    element("table", {}, element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map((cell) => element("td", {}, cell ?? NONE)))))));
  // Gives an element these children, and keeps those that are the same already: what is being clicked or read stays.
  const renew = (parent, ...children) => {
    children.forEach((child, at) => {
      const now = parent.childNodes[at];
      if (now?.localName === "details") child.open = now.open;
      if (!now) parent.append(child);
      else if (!now.isEqualNode(child)) now.replaceWith(child);
    });
    while (parent.childNodes.length > children.length) parent.lastChild.remove();
  };
  const section = (title, ...children) => element("section", {}, element("h2", {}, title), ...children);
  // Panes of which one is shown: `panes` maps titles to elements; `chosen(title, byHand)` follows the choice.
  const tabs = (label, panes, wanted, chosen) => {
    const names = Object.keys(panes);
    const key = (title) => title.toLowerCase().replaceAll(" ", "-");
    const show = (title, byHand) => {
      names.forEach((name, at) => {
        panes[name].hidden = name !== title;
        list.children[at].setAttribute("aria-selected", String(name === title));
        list.children[at].tabIndex = name === title ? 0 : -1;
        if (byHand && name === title) list.children[at].focus();
      });
      chosen(title, byHand);
    };
    const list = element("div", { class: "tabs", role: "tablist", "aria-label": label }, names.map((name, at) => element("button", {
      type: "button", role: "tab", id: `tab-${key(name)}`, "aria-controls": panes[name].id ||= `pane-${key(name)}`, onclick: () => show(name, true),
      onkeydown: (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (by) show(names[(at + by + names.length) % names.length], true);
      },
    }, name)));
    names.forEach((name) => {
      panes[name].setAttribute("role", "tabpanel");
      panes[name].setAttribute("aria-labelledby", `tab-${key(name)}`);
    });
    show(names.find((name) => key(name) === wanted) ?? names[0], false);
    return { element: list, keys: Object.fromEntries(names.map((name, at) => [String(at + 1), () => show(name, true)])) };
  };
  const announce = (text) => {
    const status = document.getElementById("connection");
    covey.say(status, text);
    status.hidden = !text;
  };

  return { NONE, ago, announce, badge, difference, figure, get, interval, intervalBar, isShare, link, load, post, progress, renew, section, setName, table, tabs, tagsOf, time, tokens };
})();
