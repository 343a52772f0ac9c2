"use strict";
// One completion as an element, for the viewer of completions and for comparisons. Text from models and data only
// becomes text nodes.
//
// covey.completions.card(completion, {tags, most, inThinking, chosen}): its grade, rewards and text, or its turns; `most`
//   is the largest advantage of its group, `inThinking` says that the prompt has opened the thinking tag.
// covey.completions.promptOf(group, kind): the prompt, or of held-out problems the question.
globalThis.covey ??= {};
covey.completions = (() => {
  const LONG = 400; // letters of a result that is folded
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const readable = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)));
  const number = (value, digits = 2) => (value == null ? "–" : value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−")); // no −0
  const words = (name) => name.replaceAll("_", " ");
  const some = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;

  const marked = (outcome) => {
    const kind = outcome ?? null;
    const mark = element("i", `mark ${kind === "right" ? "right" : kind === "wrong" ? "wrong" : "odd"}`);
    mark.textContent = kind === "right" ? "✓" : kind === null ? "·" : kind === "wrong" ? "✗" : "?";
    mark.title = kind === null ? "not graded" : words(kind);
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", mark.title);
    return mark;
  };
  const badges = (one) => {
    const ended = one.ended ?? null;
    const found = one.truncated || ended === "truncated" ? ["truncated"] : [];
    if (ended !== null && ended !== "answered" && ended !== "truncated") found.push(words(ended));
    return found.map((text) => element("span", "cut", text));
  };
  const body = (text, [think, answer], inThinking) => {
    const quoted = (tag) => tag.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const tags = new RegExp(`(</?(?:${quoted(think)}|${quoted(answer)})>)`);
    const shown = element("div", "body");
    const parts = readable(text).split(tags);
    // Where the prompt has opened the thinking, the first tag closes it.
    let kind = inThinking || parts.find((part) => tags.test(part)) === `</${think}>` ? "thinking" : "";
    for (const part of parts) {
      if (part === `<${think}>`) kind = "thinking";
      if (part === `<${answer}>`) kind = "answer";
      if (part) shown.append(element("span", tags.test(part) ? `tag ${kind}` : kind, part));
      if (part === `</${think}>` || part === `</${answer}>`) kind = "";
    }
    return shown;
  };
  const bar = (value, most) => {
    const made = element("span", "bar");
    const filled = element("i", value < 0 ? "minus" : "plus");
    filled.style.width = `${50 * (most ? Math.min(1, Math.abs(value) / most) : 0)}%`;
    made.append(filled);
    return made;
  };
  // The turns of an episode: what the model wrote, its calls, and the results.
  const turns = (messages, tags, inThinking) => {
    const shown = element("ol", "turns");
    let count = 0;
    for (const [text, calls] of messages) {
      const item = element("li", calls ? "turn" : "result");
      if (calls) {
        count += 1;
        item.append(element("span", "label", `turn ${count}`));
        if (text.trim()) item.append(body(text, tags, inThinking && count === 1));
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
  const card = (one, { tags = ["think", "answer"], most = 0, inThinking = false, chosen = false } = {}) => {
    const made = element("article", chosen ? "card chosen" : "card");
    const head = element("header");
    head.append(marked(one.outcome), element("span", "", one.outcome ? words(one.outcome) : "not graded"));
    if (one.length != null) head.append(element("span", "length", some(one.length, "token")));
    head.append(...badges(one));
    const figures = element("dl");
    const add = (name, value, more) => {
      const row = element("div");
      const shown = element("dd", "", value);
      if (more) shown.append(more);
      row.append(element("dt", "", name), shown);
      figures.append(row);
    };
    const each = Object.entries(one.rewards ?? {});
    if (one.reward != null || each.length) add("reward", number(one.reward));
    if (each.length > 1) for (const [name, value] of each) add(words(name), number(value));
    if (one.advantage != null) add("advantage", number(one.advantage), bar(one.advantage, most));
    if (one.weight != null) add("weight in target", `${(100 * one.weight).toFixed(1)}%`);
    if (one.turns) {
      add("turns", number(one.num_turns, 0));
      add("tool calls", number(one.calls, 0) + (one.failures ? `, ${number(one.failures, 0)} failed` : ""));
      if (one.seconds != null) add("in the environment", `${one.seconds} s`);
    }
    for (const [name, value] of Object.entries(one.extra ?? {})) add(words(name), readable(value));
    made.append(head, figures, one.turns ? turns(one.turns, tags, inThinking) : body(one.text, tags, inThinking));
    return made;
  };
  const promptOf = (group, kind) => {
    const shown = element("details", "prompt");
    shown.open = true;
    const title = kind === "training" ? "Prompt, as the model saw it" : "Question";
    shown.append(element("summary", "", title), element("pre", "", readable(group.prompt)));
    return shown;
  };

  return { card, promptOf, marked, badges, element, readable, number, some, words };
})();
