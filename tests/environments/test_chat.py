"""Tokens of conversations with tools, over all chat templates that TRL ships."""

from __future__ import annotations

import random
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chat_templates import (
    SHIPPED,
    TOOLS,
    family_of,
    make_tokenizer,
    random_results,
    random_turn,
    template_refusal,
)
from covey.environments.chat import ToolChat

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
    assert "Set model.chat_template to " in refusal


def test_the_template_that_a_refusal_names_works() -> None:
    tokenizer = make_tokenizer("qwen2_5_vl")
    proposed = re.search("`(model.chat_template=[^`]+)`", template_refusal(tokenizer) or "")
    assert proposed is not None
    key, _, file = shlex.split(proposed[1])[0].partition("=")
    assert key == "model.chat_template"
    tokenizer.chat_template = Path(file).read_text(encoding="utf-8")
    assert template_refusal(tokenizer) is None


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
            cut = sampled[:-1]  # by a limit: the end of the turn is added
            assert tokens + cut + chat.suffix_ids(cut, results, TOOLS) == whole
            tokens = tokens + sampled + chat.suffix_ids(sampled, results, TOOLS)
            assert tokens == whole, chat.tokenizer.decode(tokens) + "\n≠\n" + chat.tokenizer.decode(whole)


def test_a_turn_that_another_stop_token_ended_gets_no_second_end() -> None:
    chat = chat_of("qwen2_5")
    chat = ToolChat(chat.tokenizer, stop_token_ids=[chat.tokenizer.eos_token_id, chat.tokenizer.pad_token_id])
    end, pad = chat.tokenizer.eos_token_id, chat.tokenizer.pad_token_id
    result = [{"role": "tool", "name": "add", "content": "4"}]
    after = chat.suffix_ids([5, end], result)
    assert chat.suffix_ids([5, pad], result) == after
    assert chat.suffix_ids([5], result) == [end, *after]
    assert chat.tokenizer.decode(after).startswith("\n<|im_start|>user\n<tool_response>\n4\n</tool_response>")


PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}<|end|>\n\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call>(?P<name>\w+) ",
            "close_pattern": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": r"<\|end\|>", "content": "text"},
    },
}


def own_tokenizer(template: str = PLAIN) -> Any:
    tokenizer = make_tokenizer("qwen2_5")
    tokenizer.add_tokens(["<|end|>", "<|assistant|>", "<|user|>", "<|tool|>", "<call>", "</call>"])
    tokenizer.chat_template, tokenizer.response_template = template, RESPONSE
    return tokenizer


def test_an_end_of_turn_that_is_not_eos_and_is_followed_by_line_breaks() -> None:
    tokenizer = own_tokenizer()
    chat = ToolChat.of(tokenizer, stop_token_ids=[tokenizer.convert_tokens_to_ids("<|end|>")])
    prompt = chat.render([{"role": "user", "content": "2 + 2?"}], TOOLS)
    turn = tokenizer('<call>add {"a": 2, "b": 2}</call><|end|>')["input_ids"]
    parsed = chat.parse(turn, prefix=prompt, tools=TOOLS)
    assert parsed["tool_calls"] == [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}]
    suffix = tokenizer.decode(chat.suffix_ids(turn, [{"role": "tool", "name": "add", "content": "4"}]))
    assert suffix == "\n\n<|tool|>4<|end|>\n\n<|assistant|>"


def test_a_template_that_changes_what_it_has_rendered_is_refused() -> None:
    template = "{{ messages | length }}" + PLAIN
    refusal = template_refusal(own_tokenizer(template))
    assert refusal is not None
    assert "renders a turn of the model differently once a result follows it" in refusal


def test_a_template_without_a_parser_and_no_template_are_refused() -> None:
    tokenizer = own_tokenizer()
    tokenizer.response_template = None
    assert "response_template" in (template_refusal(tokenizer) or "")
    tokenizer.chat_template = None
    assert "no chat template" in (template_refusal(tokenizer) or "")


def test_checking_a_tokenizer_does_not_change_it() -> None:
    tokenizer = make_tokenizer("qwen3")
    assert template_refusal(tokenizer) is None
    assert tokenizer.response_template is None
    assert ToolChat.of(tokenizer).tokenizer.response_template is not None


@pytest.mark.parametrize("template", ABLE)
def test_whatever_a_model_writes_is_a_message(template: str) -> None:
    chat, family = chat_of(template), family_of(template)
    chooser = random.Random(template)
    prompt = chat.render([{"role": "user", "content": "What is 17 · 25?"}], TOOLS)
    markup = sorted(chat.tokenizer.get_added_vocab().values())
    for _ in range(60):
        messages = [{"role": "user", "content": "What is 17 · 25?"}, random_turn(chooser, family, calls=True)]
        turn = chat.tokenizer.apply_chat_template(messages, tools=TOOLS, return_dict=False)[len(prompt) :]
        for _ in range(chooser.randint(0, 4)):
            turn.insert(chooser.randrange(len(turn) + 1), chooser.choice([*markup, *range(256)]))
        message = chat.parse(turn[: chooser.randint(1, len(turn))], prefix=prompt, tools=TOOLS)
        assert isinstance(message["content"], str)
        for call in message.get("tool_calls") or []:
            assert isinstance(call["function"]["name"], str)


def test_a_template_that_refuses_two_results_is_refused() -> None:
    template = "{% if messages | length > 3 %}{{ raise_exception('one result only') }}{% endif %}" + PLAIN
    refusal = template_refusal(own_tokenizer(template))
    assert refusal is not None
    assert "refuses a conversation of the roles user, assistant, tool, tool. It says: one result only" in refusal


def test_a_template_that_writes_results_otherwise_with_tools() -> None:
    template = PLAIN.replace("<|{{ m.role }}|>", "<|{{ m.role }}|>{{ 'with tools: ' if tools else '' }}")
    tokenizer = own_tokenizer(template)
    chat = ToolChat.of(tokenizer, stop_token_ids=[tokenizer.convert_tokens_to_ids("<|end|>")])
    result = [{"role": "tool", "name": "add", "content": "4"}]
    turn = [5, *chat.stop_token_ids]
    assert tokenizer.decode(chat.suffix_ids(turn, result, TOOLS)).startswith("\n\n<|tool|>with tools: 4<|end|>")
    assert tokenizer.decode(chat.suffix_ids(turn, result)).startswith("\n\n<|tool|>4<|end|>")
