"""A reward from a file gets rows as they were written: in training and its evaluations, resumed, by `covey eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checked_runs import words
from covey.cli.main import main

_REWARD = """
def seen(prompts, completions, meta, level, **kwargs):
    with open({log!r}, "a") as file:
        for prompt, *values in zip(prompts, meta, level):
            file.write(repr((prompt[-1]["content"], *values)) + "\\n")
    return [len(str(completion)) % 3 / 2 for completion in completions]
"""


@pytest.mark.slow
def test_a_reward_gets_its_columns_as_they_were_written(tmp_path: Path) -> None:
    metas: list[Any] = [{"a": 1}, {"b": [1, 2.0, "x", None]}, None, 7, {"c": {"d": {}}}, [], "null"]
    rows = [
        {"prompt": f"What is {i} + 1?", "answer": i + 1, "meta": metas[i % 7], "level": (1, 2.5, 2**70)[i % 3]}
        for i in range(24)
    ]
    data, log, reward = tmp_path / "rows.jsonl", tmp_path / "log.txt", tmp_path / "own.py"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward.write_text(_REWARD.format(log=str(log)))
    wanted = {repr((row["prompt"], row["meta"], row["level"])) for row in rows}
    keys = ["dataset.task=null", f"dataset.path={data}", f"rewards.funcs=['{reward}:seen']", "training.save_steps=1"]
    run = words(tmp_path, *keys, "evaluation.every_steps=1")
    commands = {
        "train": ["train", *run],
        "resume": ["train", *run, "resume=true", "training.max_steps=2"],
        "eval": ["eval", str(tmp_path / "out" / "run")],
    }
    for name, command in commands.items():
        log.write_text("")
        assert main(command) == 0, name
        seen = set(log.read_text().splitlines())
        assert seen <= wanted, name
        assert len(seen) >= 4, name
