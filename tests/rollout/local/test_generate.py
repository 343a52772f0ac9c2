"""Sampling outside of training: against a plain loop, and the caller's state is unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.model.prompts import render
from covey.rollout import LocalEngine, SamplingSettings, generate

PROMPTS = [[{"role": "user", "content": text}] for text in ("What is 3 + 4?", "What is 120 + 4567?", "hello")]


@pytest.fixture(scope="module")
def model_and_tokenizer(tiny_model: str) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)


def greedy_by_hand(model: Any, tokenizer: Any, prompt: list[dict[str, str]], length: int) -> list[int]:
    ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
    found: list[int] = []
    with torch.no_grad():
        while len(found) < length and (not found or found[-1] != tokenizer.eos_token_id):
            found.append(int(model(torch.tensor([ids + found])).logits[0, -1].argmax()))
    return found


def test_greedy_equals_a_plain_loop_without_padding(model_and_tokenizer: tuple[Any, Any]) -> None:
    model, tokenizer = model_and_tokenizer
    engine = LocalEngine(model, tokenizer, batch_size=2)
    done = generate(engine, tokenizer, PROMPTS, SamplingSettings(12, temperature=0.0), seed=0)
    for prompt, generation in zip(PROMPTS, done, strict=True):
        expected = greedy_by_hand(model, tokenizer, prompt, 12)
        assert generation.text == tokenizer.decode(expected, skip_special_tokens=True)
        assert generation.length == len(expected)
        assert generation.truncated == (expected[-1] != tokenizer.eos_token_id)


def test_a_completion_ends_at_the_first_end_token(model_and_tokenizer: tuple[Any, Any]) -> None:
    model, tokenizer = model_and_tokenizer
    sampling = SamplingSettings(60)
    done = generate(LocalEngine(model, tokenizer), tokenizer, PROMPTS[:1] * 64, sampling, seed=1)
    ended = [g for g in done if not g.truncated]
    assert ended, "with 64 random completions some end by chance"
    assert all(g.length < 60 for g in ended)
    assert all(g.length == 60 for g in done if g.truncated)
    assert all("<|im_end|>" not in str(g.text) for g in done)


def test_the_seed_decides_and_the_callers_state_is_unchanged(
    model_and_tokenizer: tuple[Any, Any],
) -> None:
    model, tokenizer = model_and_tokenizer
    model.train()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    engine = LocalEngine(model, tokenizer)
    first = generate(engine, tokenizer, PROMPTS, SamplingSettings(8), seed=5)
    assert torch.equal(torch.rand(2), expected)
    assert model.training
    assert generate(engine, tokenizer, PROMPTS, SamplingSettings(8), seed=5) == first
    assert generate(engine, tokenizer, PROMPTS, SamplingSettings(8), seed=6) != first


def test_the_chat_template_gets_the_arguments(tiny_model: str) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template += "{% if brief %}Be brief.{% endif %}"
    prompt = [{"role": "user", "content": "2 + 2?"}]
    engine, greedy = LocalEngine(model, tokenizer), SamplingSettings(8, temperature=0.0)
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    by_hand = [text, text + "Be brief."]
    rendered = [render(tokenizer, prompt, arguments) for arguments in (None, {"brief": True})]
    assert rendered == by_hand
    first, second = (
        generate(engine, tokenizer, [prompt], greedy, seed=0, chat_template_kwargs=arguments)
        for arguments in (None, {"brief": True})
    )
    assert first != second
