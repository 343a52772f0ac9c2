"""`covey train` and `covey eval` with environments and tools in their processes: rows, records, resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.chat_templates import make_tokenizer
from tests.support.tool_trainers import small_model

from covey.cli.main import main
from covey.runlog.metrics import read_metrics
from same_run import STEPS, words
from stopped_runs import contents

GAME = '''
import os
import random

class Letters:
    """Rewards the letters of a random place in the alphabet; which rows it got is printed."""

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def reset(self, target, **row):
        print("ROW", repr((target, row)), flush=True)
        self.target, self.drawn = target, random.random()
        return f"Say {target}."

    def say(self, what: str) -> str:
        """
        Say something.

        Args:
            what: What to say.
        """
        return what

    def get_reward(self) -> float:
        return self.scale * self.drawn

class Other(Letters):
    pass

def early(completions, environments, **columns):
    """A reward that reads the environments."""
    return [environment.drawn for environment in environments]
'''
ROWS: list[dict[str, Any]] = [{"target": i, "state": {"a": i} if i % 2 else {"b": [i, 0.3]}} for i in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("environment")
    tokenizer = make_tokenizer("qwen2_5")
    small_model(tokenizer).save_pretrained(path / "model")
    tokenizer.save_pretrained(path / "model")
    (path / "game.py").write_text(GAME)
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def small(folder: Path, name: str, *more: str) -> list[str]:
    return [
        *("train", f"model.name={folder / 'model'}", f"output_dir={folder}", f"run_name={name}"),
        *("training.max_steps=2", "training.per_device_train_batch_size=4", "training.num_generations=2"),
        *("training.max_completion_length=6", "evaluation.every_steps=2", "dataset.test_size=2", *more),
    ]


def test_rows_without_prompts_are_trained_on_and_evaluated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"environment.factory={folder / 'game.py'}:Letters", f"dataset.path={folder / 'rows.jsonl'}"]
    assert main(small(folder, "rows", *given, "environment.settings.scale=0.5")) == 0
    run = folder / "rows"
    metrics = list(read_metrics(run / "metrics.jsonl"))
    trained = [row for row in metrics if "train/reward" in row]
    assert all(0 < row["train/rewards/Letters/mean"] < 0.5 for row in trained)
    assert all(row["train/reward"] == pytest.approx(row["train/rewards/Letters/mean"]) for row in trained)
    assert [row["environment/timeouts"] + row["environment/crashes"] for row in trained] == [0.0, 0.0]
    assert 0 < metrics[0]["eval/accuracy"] < 0.5
    seen = [line.removeprefix("ROW ") for line in (run / "train.log").read_text().splitlines() if "ROW" in line]
    known = {repr((row["target"], {"state": row["state"]})) for row in ROWS}
    assert len(seen) >= 2 * 4 + 2 * 2
    assert set(seen) <= known
    before = {path.name for path in (run / "evaluation").iterdir()}
    assert main(["eval", str(run)]) == 0
    assert {path.name for path in (run / "evaluation").iterdir()} > before
    code = json.loads((run / "environment.json").read_text())
    assert any(name.endswith("game.py:Letters") for name in code["code"])
    capsys.readouterr()


def test_one_of_several_without_a_dataset_and_a_reward_that_reads_them(folder: Path) -> None:
    game = folder / "game.py"
    (folder / "none.py").write_text(GAME.replace("self, target, **row", "self, seed, **row").replace("target", "seed"))
    factory = f"environment.factory={{a: {folder / 'none.py'}:Letters, b: {folder / 'none.py'}:Other}}"
    words_given = [factory, f"rewards.funcs=[{game}:early]"]
    assert main(small(folder, "several", *words_given)) == 0
    (last,) = [row for row in read_metrics(folder / "several" / "metrics.jsonl") if row["step"] == 2]
    assert last["eval/reward/early"] == pytest.approx(last["eval/accuracy"], abs=1e-6)  # that of the environments
    means = [last[f"train/rewards/{name}/mean"] for name in ("Letters", "Other")]
    known = [mean for mean in means if mean is not None]  # a batch of two groups may be of one environment
    assert known
    assert last["train/rewards/early/mean"] == pytest.approx(sum(known) / len(known), abs=1e-6)


def test_tools_alone_keep_the_default_task(folder: Path) -> None:
    assert main(small(folder, "tools", "environment=calculator", "dataset.hard_size=0", "dataset.train_size=16")) == 0
    (last,) = [row for row in read_metrics(folder / "tools" / "metrics.jsonl") if row["step"] == 2]
    assert last["train/tools/call_frequency"] == 0.0
    assert "train/rewards/exact_match/mean" in last


@pytest.mark.slow
def test_a_run_with_an_environment_that_was_stopped_is_the_same_run(folder: Path) -> None:
    given = [f"environment.factory={folder / 'game.py'}:Letters", f"dataset.path={folder / 'rows.jsonl'}"]
    more = ["rewards.funcs=[]", *given, "training.num_iterations=2"]
    whole = words(str(folder / "model"), folder, "whole", *more)
    assert main(whole) == 0
    parts = words(str(folder / "model"), folder, "parts", *more)
    assert main([*parts, "stop_after_steps=3"]) in (0, 130)
    assert main(parts) == 0
    rows = {name: untimed(folder / name) for name in ("parts", "whole")}
    assert rows["parts"] == rows["whole"]
    assert len({row["train/rewards/Letters/mean"] for row in rows["whole"] if "train/rewards/Letters/mean" in row}) > 2
    found, expected = (contents(folder / name / f"checkpoint-{STEPS}") for name in ("parts", "whole"))
    assert torch.equal(found["random"], expected["random"])
    for kind in ("weights", "moments"):
        assert all(torch.equal(found[kind][key], value) for key, value in expected[kind].items())


def untimed(run: Path) -> list[dict[str, Any]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [
        {k: v for k, v in row.items() if not k.startswith(("time/", "memory/")) and "seconds" not in k} for row in rows
    ]


def test_other_code_or_settings_are_another_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"environment.factory={folder / 'game.py'}:Letters", f"dataset.path={folder / 'rows.jsonl'}"]
    assert main(small(folder, "same", *given, "evaluation.every_steps=0")) == 0
    capsys.readouterr()
    assert main(small(folder, "same", *given, "evaluation.every_steps=0", "environment.max_turns=3")) == 1
    assert "environment.max_turns: 16 there, 3 now" in capsys.readouterr().err
