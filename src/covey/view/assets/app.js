"use strict";
// Which page is shown, the events of the server, and the keys.
(() => {
  const { element } = covey;
  const { announce } = covey.parts;
  const main = document.getElementById("main");
  const KEYS = [
    ["j, k", "next and previous run"], ["Enter", "open the run"], ["x", "select the run"], ["c", "compare the selected runs"],
    ["b", "make the run the baseline, or not"], ["t", "edit its tags and note"], ["1, 2, 3", "parts of a run: overview, completions, config"],
    ["/", "to the filter or the search"], ["r, s", "all runs, search"], ["arrows", "in a list, a chart or the tabs: move"],
    ["+, −, 0", "in a chart: zoom in, out, back"], ["Esc", "close what is on top; leave a field"], ["?", "this list"],
  ];
  let page = {};
  let visit = 0;

  const open = async () => {
    const [name, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
    const [draw, parameters] = [covey.pages[name || "runs"] ?? covey.pages.runs, new URLSearchParams(search)];
    visit += 1;
    const now = visit;
    page = {};
    for (const link of document.querySelectorAll("nav a")) covey.current(link, link.hash === `#/${name}`, "page");
    document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
    main.setAttribute("aria-busy", "true");
    const root = element("div", { class: "page" });
    try {
      const drawn = await draw(root, parameters);
      if (now !== visit) return; // another page was asked for meanwhile
      page = drawn ?? {};
    } catch (error) {
      if (now !== visit) return;
      document.title = "Not shown · Covey";
      root.replaceChildren(element("h1", {}, "This cannot be shown"), element("p", { class: "problem", role: "alert" }, error.message),
        element("p", {}, element("a", { href: "#/" }, "All runs")));
    }
    main.replaceChildren(root);
    main.removeAttribute("aria-busy");
    main.setAttribute("aria-label", document.title.replace(/ · Covey$/, "")); // said when it gets the focus
    scrollTo(0, 0);
    if (now > 1) main.focus({ preventScroll: true });
  };

  // Files change faster than pages are drawn: changes that come meanwhile are taken together.
  // Drawing takes a third of the time at most.
  let waiting = null;
  let drawing = false;
  const changed = async (ids) => {
    waiting = ids === null || waiting === "all" ? "all" : [...(waiting ?? []), ...ids];
    if (drawing) return;
    drawing = true;
    while (waiting !== null) {
      const taken = waiting === "all" ? null : waiting;
      waiting = null;
      const began = performance.now();
      try {
        if (await page.changed?.(taken) !== false) announce("");
      } catch (error) {
        announce(error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, 2 * (performance.now() - began)));
    }
    drawing = false;
  };
  // A page that nobody sees listens to nothing: browsers have six connections to one server, for all pages together.
  let events = null;
  const listen = () => {
    events?.close();
    events = null;
    if (document.hidden) return;
    events = new EventSource("/api/events");
    events.addEventListener("changed", (event) => changed(JSON.parse(event.data).runs));
    events.addEventListener("runs", () => changed(null));
    events.addEventListener("error", () => announce(events.readyState === EventSource.CLOSED
      ? "The server does not know this page, so what you see may be old: `covey view` was started again. Open the address that it has printed."
      : "The connection is lost: what you see may be old. Start `covey view` again if it was stopped."));
    events.addEventListener("open", () => changed(null)); // what has changed before
  };
  document.addEventListener("visibilitychange", listen);
  listen();

  // Whoever speaks to the computer, or hits keys by accident, can turn off those that act alone.
  const help = () => {
    const single = element("input", { type: "checkbox", checked: covey.kept("keys") !== "off", onchange: () => covey.keep("keys", single.checked ? "on" : "off") });
    const dialog = element("dialog", { class: "form", "aria-label": "Keyboard shortcuts", onclose: () => dialog.remove() }, element("h2", {}, "Keys"),
      element("dl", { class: "keys" }, KEYS.map(([keys, text]) => element("div", {}, element("dt", {}, element("kbd", {}, keys)), element("dd", {}, text)))),
      element("label", { class: "switch" }, single, " Shortcuts of a single key are on"),
      element("form", { method: "dialog" }, element("button", { class: "main-button" }, "Close")));
    document.body.append(dialog);
    dialog.showModal();
  };
  const go = (hash) => () => { location.hash = hash; };
  const everywhere = { "?": help, r: go("#/"), s: go("#/search"), "/": () => main.querySelector("input[type=search]")?.focus() };
  document.getElementById("keys").addEventListener("click", help);
  document.querySelector(".skip").addEventListener("click", (event) => { // its address names no page
    event.preventDefault();
    main.focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const act = page.keys?.[event.key] ?? everywhere[event.key];
    if (!act || covey.kept("keys") === "off") return;
    event.preventDefault();
    act();
  });
  if (location.search) history.replaceState(null, "", location.pathname + location.hash); // the token has become a cookie
  addEventListener("hashchange", open);
  open();
})();
