"""References to keys and environment variables, and words that Hydra's grammar takes only in quotes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.config import compose
from covey.config.compose.build import flatten
from covey.errors import ConfigError


def composed(tmp_path: Path, text: str, *words: str) -> dict[str, Any]:
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    return flatten(compose(words, tmp_path / "r.yaml").config)


def test_keys_that_are_not_set_stand_for_their_defaults(tmp_path: Path) -> None:
    text = 'run_name: s${seed}\nlogging: {notes: "${output_dir}/x, ${training.num_iterations}, ${resume}"}\n'
    plain = composed(tmp_path, "run_name: s0\n")
    found = composed(tmp_path, text)
    assert found.pop("logging.notes") == "out/x, 1, auto"  # 1 as in TRL
    assert found == {key: value for key, value in plain.items() if key != "logging.notes"}
    assert composed(tmp_path, text, "seed=5", "output_dir=there")["logging.notes"].startswith("there/x")
    assert composed(tmp_path, "", "run_name=s${seed}", "seed=4")["run_name"] == "s4"
    with pytest.raises(ConfigError, match="'dataset\\.nothing' not found"):
        composed(tmp_path, "run_name: ${dataset.nothing}\n")


def test_variables_are_read_by_the_type_of_their_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ID": "3", "RATE": "1e-5", "GRAD": "false", "LIST": "[0.25, 0.75]", "BAD": "x3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    text = """
seed: ${oc.env:SLURM_ID}
run_name: ${seed}
dataset: {seed: "${seed}", test_size: "1${oc.env:SLURM_ID}"}
training:
  learning_rate: ${oc.env:SLURM_RATE}
  gradient_checkpointing: ${oc.env:SLURM_GRAD}
  adam_beta1: 0.5
"""
    found = composed(tmp_path, text, "training.adam_beta2=${training.adam_beta1}")
    assert (found["seed"], found["dataset.seed"], found["dataset.test_size"], found["run_name"]) == (3, 3, 13, "3")
    assert found["training.learning_rate"] == 1e-5
    assert found["training.gradient_checkpointing"] is False
    assert found["training.adam_beta2"] == 0.5
    with pytest.raises(ConfigError, match="seed=x3 has the wrong type: it must be an integer"):
        composed(tmp_path, "seed: ${oc.env:SLURM_BAD}\n")
    with pytest.raises(ConfigError, match="seed=3 has the wrong type"):  # as it was typed
        composed(tmp_path, "seed: '3'\n")


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("dataset.path=~/x.jsonl", "dataset.path", "~/x.jsonl"),
        ("dataset.path=/home/josé/x.jsonl", "dataset.path", "/home/josé/x.jsonl"),
        ("model.name=../模型/a-1.5", "model.name", "../模型/a-1.5"),
        ("dataset.path=${oc.env:HOME}/ж.csv", "dataset.path", "/h/ж.csv"),
        ("rewards.funcs=[~/ü.py:f, accuracy, 'é.py:g']", "rewards.funcs", ["~/ü.py:f", "accuracy", "é.py:g"]),
        ("evaluation.benchmark_paths={gsm8k: ~/é.csv}", "evaluation.benchmark_paths", {"gsm8k": "~/é.csv"}),
    ],
)
def test_words_that_need_no_quotes(
    word: str, key: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/h")
    extra = ["evaluation.benchmarks=[gsm8k]"] if "benchmark" in word else []
    assert composed(tmp_path, "", word, *extra)[key] == value


@pytest.mark.parametrize(("raw", "read"), [("007", "7"), ("1e5", "100000.0"), ("0x10", "16"), ("on", "true")])
def test_advice_quotes_what_was_written(raw: str, read: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"put it in quotes: '{raw}'") as caught:
        composed(tmp_path, f"run_name: {raw}  # a name\n")
    assert f"run_name={read} " in str(caught.value)
    assert composed(tmp_path, f"run_name: '{raw}'\n")["run_name"] == raw
