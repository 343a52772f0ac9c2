"""A run whose prompts never ask for the form that its rewards look for is refused.

Pinned here: which rewards ask for which form, against what they give to completions with and without it; where a form
may come from (system prompt, rows, chat template, the model's own tokens); that training refuses, that the advice and
`ignore_checks` work, and that the built-in task brings its prompt to any model but a starter.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from covey.cli.main import main
from covey.config import load
from covey.errors import RewardError
from covey.model.prompts import prompt_ids
from covey.rewards import RewardSettings, find
from covey.rewards.registry import REGISTRY
from covey.training.checks.data import check_form
from covey.training.checks.findings import Mark

TURNS = "{%- for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{%- endfor %}"
PLAIN = TURNS + "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINKS = TURNS + "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
STRIPS = "{#- m.content.split('</think>')[-1] of <think> #}" + PLAIN  # it knows of the tag, as Qwen3's does
QUESTION = "What is 1 + 1?"
BOTH = "Write <think>…</think><answer>…</answer>."


def _tokenizer(template: str = PLAIN, *more: str) -> PreTrainedTokenizerFast:
    """One token for each byte, and those that are named."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate(signs)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    named = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    found = PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, **named)
    found.add_tokens(list(more))
    return found


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a model of random weights that knows no tags."""
    folder, tokenizer = tmp_path_factory.mktemp("pretrained"), _tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "eos_token_id": tokenizer.eos_token_id}
    Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _found(funcs: str, tokenizer: Any, system: str = "", question: str = QUESTION, *words: str) -> Any:
    """What the check finds; None for nothing."""
    messages = [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": question}]
    prompts = prompt_ids(tokenizer)([messages, messages])
    config = load([f"rewards.funcs=[{funcs}]", *words])
    known: Any = SimpleNamespace(config=config, tokenizer=tokenizer, prompts=prompts)
    return next(iter(check_form(known)), None)


@pytest.mark.parametrize(
    ("funcs", "template", "system", "question", "lacking"),
    [
        ("exact_match,format", PLAIN, "", QUESTION, "<think> and <answer>, without which exact_match, format can"),
        ("accuracy,format", PLAIN, "Reply with the number.", QUESTION, "<think> and <answer>, without which format"),
        ("exact_match,format", PLAIN, BOTH, QUESTION, ""),
        ("exact_match,format", PLAIN, "", f"{QUESTION} {BOTH}", ""),  # the rows ask
        ("format", PLAIN, "Write <think>…</think> and your answer.", QUESTION, "for <answer>, without"),
        ("think_format", THINKS, "", QUESTION, ""),  # the template begins it
        ("think_format", STRIPS, "", QUESTION, ""),
        ("format", STRIPS, "", QUESTION, "for <answer>, without"),
        ("countdown", PLAIN, "", QUESTION, r"for <answer> or \boxed, without which countdown"),
        ("countdown", PLAIN, r"Put it into \boxed{}.", QUESTION, ""),
        ("accuracy", PLAIN, "", QUESTION, ""),
        ("cosine_scaled,reasoning_steps,repetition_penalty", PLAIN, "", QUESTION, ""),
    ],
)
def test_which_prompts_ask(funcs: str, template: str, system: str, question: str, lacking: str) -> None:
    found = _found(funcs, _tokenizer(template), system, question)
    if lacking:
        assert found.mark is Mark.WRONG
        assert found.key == "prompt_form"
        assert lacking in found.result
    else:
        assert found is None or found.mark is Mark.FINE


def test_a_tag_that_is_a_token_of_the_model_needs_no_asking() -> None:
    assert "<answer>" in _found("format", _tokenizer(PLAIN, "<think>")).result
    assert _found("format", _tokenizer(PLAIN, "<think>", "<answer>")).mark is Mark.FINE


def test_tags_of_other_names_are_those_that_count() -> None:
    named = "rewards.think_tag=reason", "rewards.answer_tag=final"
    found = _found("format", _tokenizer(), BOTH, QUESTION, *named)
    assert "<reason> and <final>" in found.result
    assert "between <reason> and </reason>, then write the answer between <final> and </final>" in found.advice
    assert _found("format", _tokenizer(), "<reason> <final>", QUESTION, *named).mark is Mark.FINE


def test_a_reward_without_weight_is_left_out() -> None:
    assert _found("accuracy,format", _tokenizer(), "", QUESTION, "training.reward_weights=[1.0,0.0]") is None


TAGLESS = ("42", "The answer is 42.", r"Step 1: so \boxed{42}.", "First, 40 + 2 = 42. Finally, 42 is it.", "#### 42")
TAGGED = "<think>\nFirst, 40 + 2.\n</think>\n<answer>42</answer>"
GOLDS = {
    "countdown": '{"numbers": [40, 2], "target": 42}',
    "graph_coloring": '{"vertices": "ABC", "edges": ["AB", "BC"], "given": {"A": "red", "B": "green"}}',
}
RIGHT = {"countdown": "40 + 2", "graph_coloring": "C=red"}
OTHERS = {*("reasoning_gym", "code", "binary_code", "cf_code", "code_format"), *("len", "soft_overlong")}
OTHERS.add("repetition_penalty")
"""Rewards of programs, of a library, and penalties."""


@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - OTHERS))
def test_a_reward_asks_for_a_form_just_if_it_gives_nothing_without(name: str) -> None:
    reward, right = find(name, RewardSettings()), RIGHT.get(name, "42")
    texts = [*(text.replace("42", right) for text in TAGLESS), TAGGED.replace("42", right)]
    if name in GOLDS:  # the box is one of the forms
        texts[2] = "Step 1: so it is clear."
    values = reward.batch(prompts=[QUESTION] * 6, completions=texts, answer=[GOLDS.get(name, "42")] * 6)
    assert values[-1] > 0
    assert (max(values[:-1]) <= 0) == bool(reward.asks)


def test_a_reward_of_ones_own_says_what_it_asks_for(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    body = "def planned(prompts, completions, **kwargs):\n    return [0.0] * len(completions)\n"
    file.write_text(f"{body}planned.asks = ['<plan>']\n")
    found = _found(f"{file}:planned", _tokenizer())
    assert f"for <plan>, without which {file}:planned can only give 0" in found.result
    assert "dataset.system_prompt=" not in found.advice  # there is no ready one
    assert _found(f"{file}:planned", _tokenizer(), "Begin with <plan>.").mark is Mark.FINE
    other = tmp_path / "other.py"
    other.write_text(f"{body}planned.asks = '<plan>'\n")
    with pytest.raises(RewardError, match=r"asks='<plan>' must be a list of the texts"):
        find(f"{other}:planned", RewardSettings())


def test_training_refuses_and_its_advice_works(
    pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"What is {n} + 1?", "answer": n + 1}) + "\n" for n in range(9)))
    own = [f"model.name={pretrained}", f"dataset.path={rows}", "dataset.test_size=1", f"output_dir={tmp_path}"]
    own += ["run_name=run", "training.max_steps=1", "training.max_completion_length=4", "training.save_strategy=no"]
    assert main(["doctor", *own]) == 1
    assert main(["train", *own]) != 0
    error = " ".join(capsys.readouterr().err.split())
    assert "nothing asks the model for <think> and <answer>" in error
    assert "'ignore_checks=[prompt_form]' trains all the same" in error
    (word,) = shlex.split(error[error.index('"dataset.system_prompt') : error.index(", or take rewards")])
    assert main(["doctor", *own, word]) == 0
    assert main(["train", *own, "ignore_checks=[prompt_form]"]) == 0
    capsys.readouterr()
    assert main(["doctor", *own[:1], *own[3:], "run_name=other"]) == 0  # the built-in task brings its prompt
    assert "Think between <think> and </think>" in capsys.readouterr().out
