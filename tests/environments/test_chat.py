"""Tokens of conversations with tools, over all chat templates that TRL ships."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from chat_templates import (
    SHIPPED,
    TOOLS,
    family_of,
    make_tokenizer,
    random_results,
    random_turn,
)
from covey.environments.chat import ToolChat, template_refusal

REFUSED = {
    "cohere": "refuses",
    "cohere2": "leaves out the results",
    "deepseek_r1_distill": "leaves out the tool call",
    "deepseekv3": "cannot be parsed",
    "diffusion_gemma": "cannot be parsed",
    "gemma": "refuses",
    "gemma3": "refuses",
    "idefics3": "refuses",
    "lfm2": "leaves out the tool call",
    "llama3": "leaves out the tool call",
    "llava_next": "refuses",
    "muse_glimmer": "cannot be parsed",
    "phi3": "leaves out the results",
    "phi3_5": "leaves out the results",
    "qwen2_5_vl": "leaves out the tool call",
    "smolvlm": "refuses",
}
ABLE = [name for name in SHIPPED if name not in REFUSED]
EPISODES = 25
LOSSY = ("gemma4", "lfm2")
"""Their templates write null and quotes in ways that TRL's parsers do not read."""


def chat_of(template: str, **arguments: Any) -> ToolChat:
    tokenizer, family = make_tokenizer(template), family_of(template)
    stops = tokenizer.convert_tokens_to_ids([family.eos, *family.stops])
    return ToolChat.of(tokenizer, arguments, stop_token_ids=stops)


@pytest.mark.parametrize("template", REFUSED)
def test_templates_without_tools_are_refused_with_the_reason(template: str) -> None:
    refusal = template_refusal(make_tokenizer(template))
    assert refusal is not None
    assert REFUSED[template] in refusal


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("template", ABLE)
def test_no_token_drifts_at_the_turns_of_random_episodes(template: str, thinks: bool) -> None:
    chat, family = chat_of(template, enable_thinking=thinks), family_of(template)
    if not thinks:
        family = replace(family, thinking=None)
    markup = sorted(chat.tokenizer.get_added_vocab())
    for seed in range(EPISODES):
        chooser = random.Random(f"{template} {seed}")
        messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 17 · 25?"}]
        if chooser.random() < 0.3:
            messages.insert(0, {"role": "system", "content": "Use tools."})
        tokens = chat.render(messages, TOOLS)
        for _ in range(chooser.randint(1, 4)):
            turn = random_turn(chooser, family, calls=True)
            messages += [turn, *random_results(chooser, turn, markup)]
            whole = chat.render(messages, TOOLS)
            assert whole[: len(tokens)] == tokens, "the turn is not canonical: its beginning is not the prompt's end"
            rest = whole[len(tokens) :]
            length = next(index for index, token in enumerate(rest) if token in chat.stop_token_ids) + 1
            sampled = rest[:length]
            parsed = chat.parse(sampled, prefix=tokens, tools=TOOLS)
            if not template.startswith(LOSSY):
                assert [call["function"] for call in parsed["tool_calls"]] == [
                    c["function"] for c in turn["tool_calls"]
                ]
            results = messages[-len(turn["tool_calls"]) :]
            tokens = tokens + sampled + chat.suffix_ids(sampled, results, TOOLS)
            assert tokens == whole, chat.tokenizer.decode(tokens) + "\n≠\n" + chat.tokenizer.decode(whole)
