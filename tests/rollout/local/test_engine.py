"""The local engine: against a plain loop, with the caller's state unchanged, and with weights that are exchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import EngineError
from covey.evaluation.run import evaluate
from covey.model.prompts import render
from covey.rollout import LocalEngine, SamplingSettings, generate
from covey.rollout.local import decode

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


def test_synced_weights_are_those_that_sample(tiny_model: str) -> None:
    """Greedy, against an engine that was made with the other weights."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    models = [AutoModelForCausalLM.from_pretrained(tiny_model) for _ in range(2)]
    torch.manual_seed(0)
    for parameter in models[1].parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    engine, other = (LocalEngine(model, tokenizer) for model in models)
    prompts, greedy = [[5, 6, 7], [8, 9]], SamplingSettings(12, temperature=0.0)
    before, expected = engine.generate(prompts, greedy), other.generate(prompts, greedy)
    assert before != expected
    assert engine.version is None
    engine.sync(((name, weight.data) for name, weight in models[1].named_parameters()), 7)
    assert engine.generate(prompts, greedy) == expected
    assert engine.version == 7
    models[1].get_parameter("model.norm.weight").data.fill_(9.0)  # the engine's own copy stays as it is
    assert engine.generate(prompts, greedy) == expected
    for name, weight in (("model.other", torch.zeros(2)), ("model.norm.weight", torch.zeros(2))):
        with pytest.raises(EngineError, match=f"no weight {name} of shape \\[2\\]"):
            engine.sync([(name, weight)], 8)


def test_log_probabilities_are_returned_when_asked_for(model_and_tokenizer: tuple[Any, Any]) -> None:
    model, tokenizer = model_and_tokenizer
    engine = LocalEngine(model, tokenizer)
    (plain,) = engine.generate([[5, 6, 7]], SamplingSettings(8), seed=3)
    (one,) = engine.generate([[5, 6, 7]], SamplingSettings(8, logprobs=True), seed=3)
    assert (plain.logps, plain.ids) == (None, one.ids)
    with torch.no_grad():
        logits_TV = model.eval()(torch.tensor([[5, 6, 7, *one.ids]])).logits[0, 2:-1]
    expected_T = logits_TV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(one.logps), expected_T, atol=1e-5)


def test_packed_weights_are_kept_while_weights_do_not_change(tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made once for a whole evaluation; outside of it, each call samples from the weights of then."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    made, pack = list[Any](), decode.PlainDecoder.__init__
    monkeypatch.setattr(decode.PlainDecoder, "__init__", lambda self, model: (made.append(self), pack(self, model))[1])
    engine, greedy = LocalEngine(model, tokenizer, batch_size=1), SamplingSettings(12, temperature=0.0)
    rows = Dataset.from_list([{"prompt": prompt, "answer": "7"} for prompt in PROMPTS])

    def texts() -> list[str]:
        return [
            tokenizer.decode(greedy_by_hand(model, tokenizer, one, 12), skip_special_tokens=True) for one in PROMPTS
        ]

    torch.manual_seed(0)
    before = texts()
    found = evaluate(engine, tokenizer, rows, greedy, batch_size=2, seed=0)
    assert [one.completion for one in found.completions] == before
    assert len(made) == 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    assert [one.text for one in generate(engine, tokenizer, PROMPTS, greedy, seed=0)] == texts() != before
    assert len(made) == 2
    assert [
        one.completion for one in evaluate(engine, tokenizer, rows, greedy, batch_size=2, seed=0).completions
    ] == texts()
    assert len(made) == 3
