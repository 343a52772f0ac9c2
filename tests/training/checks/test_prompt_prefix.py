"""Prompts that open the thinking tag: detected, reported, and prepended to what is scored.

Pinned here: which endings of a rendered prompt count and which do not; rewards by name and evaluations score the whole
answer, in worker processes and without; callables and the length in tokens stay as they are.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import datasets
import pytest
from transformers import AutoTokenizer

from covey import data
from covey.config import ModelConfig, load
from covey.evaluation.run import evaluate
from covey.model.load import load_tokenizer
from covey.model.prompts import thinking_prefix
from covey.model.starter import STARTER_PATH
from covey.rewards.runner import RewardRunner
from covey.rollout import Completion, SamplingSettings
from covey.training.checks.data import check_prompt_prefix
from covey.training.checks.findings import Mark
from fake_engine import ScriptedEngine

MESSAGES = "{%- for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{%- endfor %}"
PLAIN = MESSAGES + "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
DEEPSEEK = MESSAGES + "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{{ '' }}{% endif %}"
BEGUN = MESSAGES + "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\nOkay{% endif %}"
NO_THINKING = MESSAGES + "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
BARE = "{{ messages[-1].content }}"

ASKED = "1 + 1? Write <think>…</think><answer>…</answer>."
REST = "easy</think><answer>2</answer>"


@pytest.mark.parametrize(
    ("template", "asked", "prefix"),
    [
        (PLAIN, ASKED, ""),
        (PLAIN, "Begin with <think>", ""),  # only mentions it
        (DEEPSEEK, ASKED, "<think>\n"),
        (BEGUN, ASKED, "<think>\nOkay"),
        (NO_THINKING, ASKED, ""),
        (BARE, f"{ASKED}\nAssistant: <think>", "<think>"),
        (BARE, "Begin with <think>, please", ""),
    ],
)
def test_what_counts_as_a_prompt_prefix(template: str, asked: str, prefix: str) -> None:
    tokenizer = load_tokenizer(ModelConfig(name="starter", chat_template=template))
    prompt = [{"role": "user", "content": asked}]
    assert thinking_prefix(tokenizer, prompt, "think") == prefix
    assert thinking_prefix(tokenizer, prompt, "reasoning") == ""
    config = load(["model=starter"])
    loaded = data.LoadedData(datasets.Dataset.from_list([{"prompt": prompt, "answer": "2"}]), {}, [])
    known: Any = SimpleNamespace(config=config, tokenizer=tokenizer, loaded=loaded)
    assert [finding.mark for finding in check_prompt_prefix(known)] == [Mark.WARNING] * bool(prefix)


def test_a_plain_prompt_that_ends_with_the_tag() -> None:
    tokenizer = load_tokenizer(ModelConfig(name="starter"))
    assert thinking_prefix(tokenizer, "Assistant: <think>\n", "think") == "<think>\n"
    assert thinking_prefix(tokenizer, "Say <think> first.", "think") == ""


@pytest.mark.parametrize("workers", [0, 1])
def test_rewards_by_name_see_the_whole_answer(workers: int) -> None:
    seen: list[Any] = []

    def own(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
        seen.extend(completions)
        return [0.0] * len(completions)

    texts = [REST, f"<think>{REST}", "<answer>2</answer>"]  # the second opens the tag by itself
    for completions in (texts, [[{"role": "assistant", "content": text}] for text in texts]):
        seen.clear()
        names: list[Any] = ["format", "exact_match", "think_format", "cosine_scaled", own]
        batch: dict[str, Any] = {"prompts": ["p"] * 3, "completions": completions, "answer": ["2"] * 3}
        with RewardRunner(names[:3], workers=workers) as runner:
            assert [f(**batch) for f in runner.functions] == [[0, 1, 0]] * 3
        with RewardRunner(names, workers=workers) as runner:
            runner.prompt_prefix = "<think>"
            format_rewards, exact, think, cosine, mine = [f(**batch) for f in runner.functions]
        assert (format_rewards, exact, think) == ([1, 1, 0], [1, 1, 0], [1, 1, 0])
        assert cosine[0] == cosine[1]  # now equally long
        assert mine == [0.0] * 3
        assert seen == completions


BEGUN_ROWS = [
    [{"role": "user", "content": ASKED}],
    [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "Well. <think>\nea"}],
    [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "<think>no</think>"}],
]


@pytest.mark.parametrize("workers", [0, 1])
def test_thinking_that_a_prefill_has_begun_belongs_to_its_row(workers: int) -> None:
    completions = ["<answer>2</answer>", "sy</think><answer>2</answer>", "<answer>2</answer>"]
    for prefix, scores in (("", [0, 1, 0]), ("<think></think>", [1, 1, 0])):
        with RewardRunner(["format"], workers=workers) as runner:
            runner.prompt_prefix = prefix
            assert runner.functions[0](prompts=BEGUN_ROWS, completions=completions, answer=["2"] * 3) == scores
    for n, wanted in ((1, 1.0), (2, 0.0)):
        rows = datasets.Dataset.from_list([{"prompt": BEGUN_ROWS[n], "answer": "2"}])
        engine = ScriptedEngine([Completion([1] * 5, truncated=False, text=completions[n])])
        tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH)
        result = evaluate(engine, tokenizer, rows, SamplingSettings(8), batch_size=1, seed=0)
        assert (result.format, result.completions[0].completion) == (wanted, completions[n])
        loaded = data.LoadedData(rows, {}, [])
        known: Any = SimpleNamespace(config=load(["model=starter"]), tokenizer=tokenizer, loaded=loaded)
        assert [finding.mark for finding in check_prompt_prefix(known)] == [Mark.WARNING] * int(wanted)


def test_evaluations_grade_the_whole_answer() -> None:
    rows = datasets.Dataset.from_list([{"prompt": [{"role": "user", "content": ASKED}], "answer": "2"}])
    engine = ScriptedEngine([Completion([1] * 5, truncated=False, text=REST)])
    tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH)
    for prefix, share in (("", 0.0), ("<think>\n", 1.0)):
        settings = {"batch_size": 1, "seed": 0, "prompt_prefix": prefix}
        result = evaluate(engine, tokenizer, rows, SamplingSettings(8), **settings)
        assert (result.format, result.accuracy.value) == (share, 1.0)
        assert result.completions[0].completion == REST
