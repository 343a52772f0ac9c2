"use strict";
// The completions browser. Text from models and data only ever becomes text nodes.
(async () => {
  const root = document.getElementById("completions-browser");
  const ROW = 58; // height of a list item, as in the style sheet
  const packed = Uint8Array.from(atob(document.getElementById("completions").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = await new Response(stream).json();
  const count = data.text.length;
  const of = (number) => data.groups[data.group[number]];
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const readable = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)));
  const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−"));
  const outcome = (at) => (data.outcome[at] === null ? null : data.outcomeNames[data.outcome[at]]);
  const field = (name) => root.querySelector(`[name="${name}"]`);

  // --- filter options ----------------------------------------------------------------------------------------------
  const steps = [...new Set(data.groups.map((group) => group.step))].sort((a, b) => a - b);
  for (const step of steps) field("step").append(new Option(`step ${step}`, step));
  for (const name of data.outcomeNames) field("outcome").append(new Option(name.replaceAll("_", " "), name));
  if (!data.truncated.some((value) => value !== null)) field("truncated").closest("label").hidden = true;
  if (!data.weight.some((value) => value !== null)) field("sort").querySelector('[value="weight"]').remove();
  if (!data.length.some((value) => value !== null)) field("sort").querySelector('[value="length"]').remove();
  const episodes = data.episodes ?? null;
  const ended = (at) => episodes?.ended[at] ?? null;
  if (episodes) {
    field("episode").hidden = false;
    for (const name of ["calls", "seconds"]) field("sort").querySelector(`[value="${name}"]`).hidden = false;
    for (const end of [...new Set(episodes.ended)].filter((value) => value !== null).sort()) {
      field("episode").append(new Option(`ended: ${end.replaceAll("_", " ")}`, `=${end}`));
    }
  } else for (const name of ["calls", "seconds"]) field("sort").querySelector(`[value="${name}"]`).remove();
  const isOf = (at, kind) => {
    if (!kind) return true;
    if (kind.startsWith("=")) return ended(at) === kind.slice(1);
    if (kind === "failed") return (episodes.failures[at] ?? 0) > 0;
    if (kind === "unanswered") return ended(at) !== null && ended(at) !== "answered";
    return ((episodes.calls[at] ?? 0) > 0) === (kind === "called");
  };

  const lowered = new Array(count);
  const searched = (at) => (lowered[at] ??= `${of(at).prompt}\n${data.text[at]}\n${of(at).answer ?? ""}`.toLowerCase());

  // --- filtering and sorting ---------------------------------------------------------------------------------------
  let found = [];
  let chosen = null;
  const compare = {
    step: (a, b) => a - b,
    "reward-down": (a, b) => (data.reward[b] ?? -Infinity) - (data.reward[a] ?? -Infinity) || a - b,
    "reward-up": (a, b) => (data.reward[a] ?? Infinity) - (data.reward[b] ?? Infinity) || a - b,
    "advantage-down": (a, b) => (data.advantage[b] ?? -Infinity) - (data.advantage[a] ?? -Infinity) || a - b,
    "advantage-up": (a, b) => (data.advantage[a] ?? Infinity) - (data.advantage[b] ?? Infinity) || a - b,
    weight: (a, b) => (data.weight[b] ?? -Infinity) - (data.weight[a] ?? -Infinity) || a - b,
    length: (a, b) => (data.length[b] ?? -Infinity) - (data.length[a] ?? -Infinity) || a - b,
    calls: (a, b) => (episodes.calls[b] ?? -Infinity) - (episodes.calls[a] ?? -Infinity) || a - b,
    seconds: (a, b) => (episodes.seconds[b] ?? -Infinity) - (episodes.seconds[a] ?? -Infinity) || a - b,
  };
  const filter = () => {
    const words = field("search").value.toLowerCase();
    const step = field("step").value;
    const result = field("outcome").value;
    const truncated = field("truncated").checked;
    const episode = field("episode").value;
    found = [];
    for (let at = 0; at < count; at += 1) {
      if (step && of(at).step !== Number(step)) continue;
      if (result === "not right" ? outcome(at) === "right" : result && outcome(at) !== result) continue;
      if (truncated && !data.truncated[at]) continue;
      if (!isOf(at, episode)) continue;
      if (words && !searched(at).includes(words)) continue;
      found.push(at);
    }
    found.sort(compare[field("sort").value]);
    root.querySelector(".count").textContent = `${found.length.toLocaleString("en")} of ${count.toLocaleString("en")}`;
    list.scrollTop = 0;
    space.style.height = `${found.length * ROW}px`;
    drawn = "";
    draw();
    if (found.length && !found.includes(chosen)) choose(found[0], false);
  };

  // --- the list: only visible items are rendered -------------------------------------------------------------------
  const list = root.querySelector(".list");
  const space = list.querySelector(".space");
  let drawn = "";
  const marked = (at) => {
    const kind = outcome(at);
    const mark = element("i", `mark ${kind === "right" ? "right" : kind === "wrong" ? "wrong" : "odd"}`);
    mark.textContent = kind === "right" ? "✓" : kind === null ? "·" : kind === "wrong" ? "✗" : "?";
    mark.title = kind === null ? "not graded" : kind.replaceAll("_", " ");
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", mark.title);
    return mark;
  };
  const badges = (at) => {
    const end = ended(at);
    const found = [];
    if (data.truncated[at] || end === "truncated") found.push("truncated");
    if (end !== null && end !== "answered" && end !== "truncated") found.push(end.replaceAll("_", " "));
    const made = found.map((text) => element("span", "cut", text));
    if (episodes?.calls[at]) made.push(element("span", "used", `${episodes.calls[at]} call${episodes.calls[at] === 1 ? "" : "s"}`));
    return made;
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
    const last = Math.min(found.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
    const key = `${first}-${last}-${chosen}`;
    if (key === drawn) return;
    drawn = key;
    const lines = [];
    for (let place = first; place < last; place += 1) {
      const at = found[place];
      const line = element("div", at === chosen ? "line chosen" : "line");
      line.id = `completion-${at}`;
      line.setAttribute("role", "option");
      line.setAttribute("aria-selected", String(at === chosen));
      line.setAttribute("aria-posinset", place + 1);
      line.setAttribute("aria-setsize", found.length);
      line.style.top = `${place * ROW}px`;
      line.dataset.at = at;
      const head = element("span", "head");
      head.append(marked(at), element("span", "", `step ${of(at).step}`));
      head.append(...badges(at));
      head.append(element("span", "figures", `r ${number(data.reward[at])}  A ${number(data.advantage[at])}`));
      line.append(head, element("span", "text", readable(data.text[at].slice(0, 160).replace(/\s+/g, " "))));
      lines.push(line);
    }
    space.replaceChildren(...lines);
    const active = lines.find((line) => line.classList.contains("chosen"));
    if (active) list.setAttribute("aria-activedescendant", active.id); else list.removeAttribute("aria-activedescendant");
  };
  list.addEventListener("scroll", () => requestAnimationFrame(draw));
  list.addEventListener("click", (event) => {
    const line = event.target.closest(".line");
    if (line) choose(Number(line.dataset.at), true);
  });
  list.addEventListener("keydown", (event) => {
    if (!found.length) return;
    if (event.key === "Enter") {
      choose(chosen, true);
      if (!detail.contains(document.activeElement)) detail.focus({ preventScroll: true });
      return;
    }
    const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (!by) return;
    event.preventDefault();
    const place = Math.min(found.length - 1, Math.max(0, found.indexOf(chosen) + by));
    choose(found[place], false);
    list.scrollTop = Math.min(Math.max(list.scrollTop, (place + 1) * ROW - list.clientHeight), place * ROW);
    draw();
  });

  // --- one group, side by side -------------------------------------------------------------------------------------
  const [think, answer] = data.tags;
  const quoted = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const tags = new RegExp(`(</?(?:${quoted(think)}|${quoted(answer)})>)`);
  const body = (text, inThinking) => {
    const shown = element("div", "body");
    let kind = inThinking ? "thinking" : "";
    for (const part of readable(text).split(tags)) {
      if (part === `<${think}>`) kind = "thinking";
      if (part === `<${answer}>`) kind = "answer";
      if (part) shown.append(element("span", tags.test(part) ? `tag ${kind}` : kind, part));
      if (part === `</${think}>` || part === `</${answer}>`) kind = "";
    }
    return shown;
  };
  const bar = (value, most) => {
    const made = element("span", "bar");
    const filled = element("i");
    const share = most ? Math.min(1, Math.abs(value) / most) : 0;
    filled.style.width = `${50 * share}%`;
    filled.className = value < 0 ? "minus" : "plus";
    made.append(filled);
    return made;
  };
  const detail = root.querySelector(".detail");
  const card = (at, most, inThinking) => {
    const made = element("article", at === chosen ? "card chosen" : "card");
    const head = element("header");
    const kind = outcome(at);
    head.append(marked(at), element("span", "", kind ? kind.replaceAll("_", " ") : "not graded"));
    if (data.length[at] !== null) head.append(element("span", "length", `${data.length[at]} tokens`));
    head.append(...badges(at).filter((badge) => badge.className === "cut"));
    const figures = element("dl");
    const add = (name, value, more) => {
      const row = element("div");
      const shown = element("dd", "", value);
      if (more) shown.append(more);
      row.append(element("dt", "", name), shown);
      figures.append(row);
    };
    add("reward", number(data.reward[at]));
    if (data.rewardNames.length > 1) data.rewardNames.forEach((name, n) => add(name.replaceAll("_", " "), number(data.rewards[n][at])));
    add("advantage", number(data.advantage[at]), data.advantage[at] === null ? null : bar(data.advantage[at], most));
    if (data.weight[at] !== null) add("weight in target", `${(100 * data.weight[at]).toFixed(1)}%`);
    const messages = episodes?.messages[at] ?? null;
    if (messages) {
      add("turns", number(episodes.turns[at], 0));
      const failed = episodes.failures[at] ? `, ${number(episodes.failures[at], 0)} failed` : "";
      add("tool calls", number(episodes.calls[at], 0) + failed);
      if (episodes.seconds[at] !== null) add("in the environment", `${episodes.seconds[at]} s`);
    }
    for (const [name, values] of Object.entries(data.extra)) if (values[at] !== null) add(name, readable(values[at]));
    made.append(head, figures);
    if (messages) made.append(turns(messages, inThinking)); else made.append(body(data.text[at], inThinking));
    return made;
  };
  // The turns of an episode: what the model wrote, its calls, and the results.
  const LONG = 400;
  const turns = (messages, inThinking) => {
    const shown = element("ol", "turns");
    let count = 0;
    for (const [text, calls] of messages) {
      const item = element("li", calls ? "turn" : "result");
      if (calls) {
        count += 1;
        item.append(element("span", "label", `turn ${count}`));
        if (text.trim()) item.append(body(text, inThinking));
        for (const [name, given] of calls) {
          const call = element("div", "call");
          call.append(element("b", "", readable(name)), element("span", "", `(${readable(given)})`));
          item.append(call);
        }
      } else if (text.length > LONG) {
        const folded = element("details");
        folded.append(element("summary", "", `result: ${text.length.toLocaleString("en")} letters, ${readable(text.slice(0, 80))}…`));
        folded.append(element("div", "text", readable(text)));
        item.append(folded);
      } else item.append(element("span", "label", "result"), element("div", "text", text ? readable(text) : "(empty)"));
      shown.append(item);
    }
    if (!messages.length) shown.append(element("li", "turn", "no turn"));
    return shown;
  };
  const choose = (at, asked) => {
    chosen = at;
    const group = data.group[at];
    const members = [];
    for (let other = 0; other < count; other += 1) if (data.group[other] === group) members.push(other);
    const { step, prompt, answer: goldAnswer } = data.groups[group];
    const most = Math.max(...members.map((other) => Math.abs(data.advantage[other] ?? 0)));
    const head = element("div", "about");
    head.append(element("h3", "", `Step ${step}: a group of ${members.length}`));
    const right = members.filter((other) => outcome(other) === "right").length;
    const modes = data.extra.mode ?? []; // which right answer a completion is
    const named = [...new Set(members.map((other) => modes[other] ?? null))].filter((mode) => mode !== null);
    if (named.length) members.sort((one, other) => (modes[one] == null) - (modes[other] == null) || named.indexOf(modes[one]) - named.indexOf(modes[other]));
    const different = named.length ? `, ${named.length} different answer${named.length > 1 ? "s" : ""}` : "";
    head.append(element("p", "", `${right} right${different}` + (goldAnswer === null ? "" : ` · gold answer: ${readable(goldAnswer)}`)));
    const back = element("button", "back", "← list");
    back.type = "button";
    back.addEventListener("click", () => {
      root.classList.remove("opened");
      list.focus();
    });
    const shown = element("details", "prompt");
    shown.open = true;
    shown.append(element("summary", "", "Prompt, as the model saw it"), element("pre", "", readable(prompt)));
    const inThinking = prompt.trimEnd().endsWith(`<${think}>`);
    const cards = element("div", "cards");
    let above;
    for (const other of members) {
      const mode = modes[other] ?? null;
      if (named.length && mode !== above) {
        const alike = members.filter((one) => (modes[one] ?? null) === mode).length;
        cards.append(element("h4", "mode", `${mode === null ? "other completions" : readable(mode)} (${alike})`));
        above = mode;
      }
      cards.append(card(other, most, inThinking));
    }
    detail.replaceChildren(back, head, shown, cards);
    detail.scrollTop = 0;
    if (asked) {
      root.classList.add("opened");
      if (back.offsetParent) back.focus({ preventScroll: true }); // narrow screens only, where the list is hidden
    }
    drawn = "";
    draw();
  };

  root.querySelector("form").addEventListener("submit", (event) => event.preventDefault()); // Enter must not reload the page
  let waiting = 0;
  field("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 120);
  });
  for (const name of ["step", "outcome", "truncated", "episode", "sort"]) field(name).addEventListener("change", filter);
  new ResizeObserver(() => { drawn = ""; draw(); }).observe(list);
  root.removeAttribute("aria-busy");
  filter();
})();
