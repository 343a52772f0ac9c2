"""The starter model that ships with the package: its architecture, and that `covey starter` makes it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from chat_templates import template_refusal
from covey import data
from covey.answers.tasks import Graph
from covey.cli.main import main
from covey.config import load
from covey.data.tasks.arithmetic import Difficulty
from covey.data.tasks.countdown import CountdownProblem
from covey.data.tasks.drawing import take
from covey.data.tasks.graph_coloring import ColoringProblem
from covey.evaluation.starter import measure_starter
from covey.model.starter import STARTER_PATH
from covey.model.starter.coldstart import make_tokenizer
from covey.model.starter.styles import careful
from covey.model.starter.tasks import coloring_answer, countdown_answer

TAGGED = "<think>\n1+2=3\n</think>\n<answer>3</answer>"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(STARTER_PATH)


def test_size_architecture_and_precision() -> None:
    weights = STARTER_PATH / "model.safetensors"
    assert weights.stat().st_size <= 4_000_000
    model = AutoModelForCausalLM.from_pretrained(STARTER_PATH)
    assert isinstance(model, Qwen3ForCausalLM)
    assert 0.8e6 <= model.num_parameters() <= 1.2e6
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float32}


def test_tags_survive_decoding_as_shown(tokenizer: Any) -> None:
    ids = tokenizer(TAGGED)["input_ids"] + [tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == TAGGED
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert len(tokenizer(tag)["input_ids"]) == 1


def test_one_token_per_digit_and_any_text(tokenizer: Any) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer("90817")["input_ids"]) == list("90817")
    for text in ("naïve café — 数学 🙂", "a\tb\n\nc", "x=1;y=[2]"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_chat_template(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Bye"},
    ]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYes<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token != tokenizer.eos_token


def test_the_shipped_tokenizer_is_the_one_that_is_made(tokenizer: Any) -> None:
    made = make_tokenizer()
    assert made.get_vocab() == tokenizer.get_vocab()
    assert made.chat_template == tokenizer.chat_template
    text = "".join(careful(p) for p in take(Difficulty(), "train", 1, 50))
    assert made(text)["input_ids"] == tokenizer(text)["input_ids"]


@pytest.mark.parametrize(
    ("options", "card", "proposed"),
    [
        (["--agent"], "with the calculator", "model=starter_agent model.name=made environment=calculator"),
        (["--task", "graph_coloring"], "coverage@8", "model.name=made dataset=graph_coloring"),
    ],
)
def test_the_command_makes_a_model_and_says_how_to_train_it(
    options: list[str],
    card: str,
    proposed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("covey.evaluation.starter._PROBLEMS", 2)
    monkeypatch.setattr("covey.evaluation.starter._TASK_PROBLEMS", 2)
    assert main(["starter", "made", *options, "--steps", "1"]) == 0
    assert f"covey train {proposed}" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained("made").num_parameters() > 0.3e6
    assert card in Path("made/README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("options", "card"), [((), "accuracy"), (("--agent",), "with the calculator")])
def test_the_command_makes_a_model_that_loads_and_is_the_same_each_time(
    options: tuple[str, ...], card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.evaluation.starter._PROBLEMS", 4)
    for name in ("one", "two"):
        assert main(["starter", str(tmp_path / name), *options, "--steps", "2"]) == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "one").num_parameters() > 0
    if options:  # with tools
        assert template_refusal(AutoTokenizer.from_pretrained(tmp_path / "one")) is None
    assert card in (tmp_path / "one" / "README.md").read_text()


def test_a_model_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["starter", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_the_answers_that_a_start_learns_by_hand() -> None:
    """A hidden vertex, each of its neighbours with its colour so far, then its own."""
    graph = Graph("ABCD", ("AB", "AC", "BC", "CD"), ("red", None, None, None))
    problem = ColoringProblem(graph, "B=green C=blue D=red", 4)
    assert coloring_answer(problem) == (
        "<think>\nB: A=red C=? B=green\nC: A=red B=green D=? C=blue\nD: C=blue D=red\n</think>\n"
        "<answer>B=green C=blue D=red</answer>"
    )
    task = CountdownProblem((3, 8, 5), 19, "3 * 8 - 5", ("+", "-", "*", "/"))
    assert countdown_answer(task) == "<think>\n3*8=24\n24-5=19\n</think>\n<answer>3*8-5</answer>"


@pytest.mark.slow
@pytest.mark.parametrize("task", [pytest.param("graph_coloring", marks=pytest.mark.long), "countdown"])
def test_a_start_for_a_task_is_the_same_each_time_and_brings_its_tuning(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("covey.evaluation.starter._TASK_PROBLEMS", 2)
    for name, seed in (("one", "0"), ("two", "0"), ("other", "1")):
        words = ["dataset.difficulty.max_operands=3"] if task == "countdown" else []
        assert main(["starter", str(tmp_path / name), *words, "--task", task, "--steps", "2", "--seed", seed]) == 0
    one, two, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two", "other"))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)
    assert 0.3e6 <= sum(tensor.numel() for tensor in one.values()) <= 1.2e6
    assert "coverage@8" in (tmp_path / "one" / "README.md").read_text()
    assert f"covey train model.name={tmp_path / 'one'} dataset={task}" in capsys.readouterr().out.replace("\n", " ")
    tuned, plain = load([f"model.name={tmp_path / 'one'}", f"dataset={task}"]), load([f"dataset={task}"])
    assert tuned.training == plain.training
    assert tuned.training.learning_rate == 2.5e-4
    assert load(["model.name=some/model"]).training.learning_rate != 2.5e-4
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    config = replace(load([f"dataset={task}"]).dataset, train_size=8, test_size=0, hard_size=0, single_size=0)
    for row in data.load(config, seed=0).train:
        ids = tokenizer.apply_chat_template(row["prompt"], tokenize=True, return_dict=True)["input_ids"]
        assert len(ids) < 110  # what all prompts share is one token


def test_a_start_for_a_task_takes_keys_of_its_dataset_only(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["x", "--task", "graph_coloring", "training.beta=0"], "training.beta=0 is not possible here"),
        (["x", "dataset.train_size=3"], "dataset.train_size=3 is not possible here"),
        (["x", "--task", "countdown", "--agent"], "--agent is for arithmetic"),
        (["x", "--task", "countdown", "dataset.difficulty.max_operands=1"], "max_operands"),
    ):
        assert main(["starter", *words]) == 2, words
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_model_card_is_reproducible(tokenizer: Any) -> None:
    """Measured again with another seed, the figures are near those of the card, and within their documented ranges."""
    model = AutoModelForCausalLM.from_pretrained(STARTER_PATH)
    figures = measure_starter(model, tokenizer, seed=1)
    assert 0.20 <= figures.accuracy.value <= 0.40
    assert figures.when_careful.value >= 0.93
    card = (STARTER_PATH / "README.md").read_text(encoding="utf-8")
    stated = next(line for line in card.splitlines() if line.startswith("| accuracy |")).split("|")[2]
    assert float(stated.strip().rstrip("%")) / 100 == pytest.approx(figures.accuracy.value, abs=0.06)
    config = json.loads((STARTER_PATH / "config.json").read_text())
    assert config["model_type"] == "qwen3"
