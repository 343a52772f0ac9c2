"""`covey train` called in process on a tiny model: what it writes, resumes and rejects."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.cli.main import main
from covey.runlog.metrics import read_metrics
from run_sizes import SMALL

Train = Callable[..., tuple[int, str, str]]


def words(model: str, folder: Path, *overrides: str) -> list[str]:
    return [
        *("train", "model=starter", f"model.name={model}", f"output_dir={folder}", "run_name=run", *SMALL),
        *("training.max_steps=4", "training.save_steps=2", "evaluation.every_steps=2"),
        *("dataset.test_size=6", "dataset.hard_size=3", *overrides),
    ]


@pytest.fixture
def train(tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    """Run `covey train` into tmp_path; returns exit code, stdout and stderr with their lines joined."""

    def call(*overrides: str) -> tuple[int, str, str]:
        code = main(words(tiny_model, tmp_path, *overrides))
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), " ".join(captured.err.split())

    return call


@pytest.fixture(scope="module")
def straight(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("straight")
    assert main(words(tiny_model, folder)) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def after_one_step(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped after its first step. Tests take a copy."""
    folder = tmp_path_factory.mktemp("stopped")
    assert main(words(tiny_model, folder, "stop_after_steps=1")) == 0
    return folder / "run"


@pytest.fixture
def finished(straight: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(straight, tmp_path / "run", symlinks=True))


@pytest.fixture
def stopped(after_one_step: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(after_one_step, tmp_path / "run", symlinks=True))


def without_times(file: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in read_metrics(file)]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_run_writes_what_the_readme_lists(train: Train, tmp_path: Path) -> None:
    code, out, _ = train()
    assert code == 0
    run = tmp_path / "run"
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "eval/accuracy" in row] == [0, 2, 4]
    assert all("eval_hard/accuracy" in row for row in rows if "eval/accuracy" in row)
    assert rows[0].keys().isdisjoint({"train/reward"})
    assert {"train/reward", "train/kl", "train/rewards/exact_match/mean", "time/step"} <= rows[1].keys()
    assert {p.name for p in run.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["max_steps"] == 4
    assert json.loads((run / "environment.json").read_text())["packages"]["trl"]
    assert json.loads((run / "summary.json").read_text())["held_out"][0]["name"] == "held-out accuracy"
    evaluated = [json.loads(line) for line in (run / "evaluation" / "test-step-000004.jsonl").read_text().splitlines()]
    assert len(evaluated) == 6
    assert {"prompt", "answer", "completion", "outcome"} <= evaluated[0].keys()
    assert "held-out accuracy" in out
    assert "final_model" in out
    (tmp_path / "new").touch()
    assert {path.stat().st_mode for path in run.rglob("*") if path.is_file()} == {(tmp_path / "new").stat().st_mode}

    model = AutoModelForCausalLM.from_pretrained(run / "final_model")
    tokenizer = AutoTokenizer.from_pretrained(run / "final_model")
    assert len(tokenizer) == model.config.vocab_size
    last = AutoModelForCausalLM.from_pretrained(run / "checkpoint-4")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), last.parameters(), strict=True))


def test_a_resumed_run_equals_the_uninterrupted_one(train: Train, straight: Path, tmp_path: Path) -> None:
    code, out, _ = train("run_name=stopped", "stop_after_steps=1")
    assert code == 0
    assert "Stopped after step 1, with a checkpoint. Reason: " in out
    assert "The same command resumes from it." in out
    assert not (tmp_path / "stopped" / "final_model").exists()
    code, out, _ = train("run_name=stopped", "stop_after_steps=2")
    assert "Resuming from checkpoint-1" in out
    assert train("run_name=stopped", "resume=true")[0] == 0
    stopped = tmp_path / "stopped"
    assert without_times(stopped / "metrics.jsonl") == without_times(straight / "metrics.jsonl")
    weights = "final_model/model.safetensors"
    assert (stopped / weights).read_bytes() == (straight / weights).read_bytes()
    assert snapshot(stopped / "completions") == snapshot(straight / "completions")
    assert snapshot(stopped / "evaluation") == snapshot(straight / "evaluation")


SIGNALLING_REWARD = """
import os, signal
from pathlib import Path

def variety(completions, **columns):
    calls = Path(__file__).with_suffix(".calls")
    if len(completions) != 8:  # held-out ones
        return [0.0 for _ in completions]
    calls.write_text(calls.read_text() + "." if calls.exists() else ".")
    if len(calls.read_text()) == 3:  # after the trial call, in the second step
        os.kill(TRAINER, signal.SIGTERM)  # rewards by name run in a worker process, not in the trainer's
    return [float(len(set(c[-1]["content"]))) for c in completions]
"""


def test_a_signal_ends_the_step_and_leaves_a_checkpoint(train: Train, tmp_path: Path) -> None:
    reward = tmp_path / "mine" / "reward.py"
    reward.parent.mkdir()
    reward.write_text(f"TRAINER = {os.getpid()}\n{SIGNALLING_REWARD}")
    funcs = f"rewards.funcs=[exact_match,{reward}:variety]"
    code, out, err = train(funcs)
    assert code == 128 + signal.SIGTERM, err
    assert "SIGTERM" in out
    assert "Stopped after step 2" in out
    assert train(funcs)[0] == 0  # resumes
    assert train(funcs, "run_name=straight")[0] == 0
    found, expected = (without_times(tmp_path / name / "metrics.jsonl") for name in ("run", "straight"))
    assert found == expected
    assert len({row["train/reward"] for row in found[1:]}) > 1


def test_evaluation_does_not_affect_training(train: Train, tmp_path: Path) -> None:
    train("run_name=watched", "evaluation.every_steps=1")
    train("run_name=unwatched", "evaluation.every_steps=0")
    weights = "final_model/model.safetensors"
    assert (tmp_path / "watched" / weights).read_bytes() == (tmp_path / "unwatched" / weights).read_bytes()
    assert not any("eval/accuracy" in row for row in read_metrics(tmp_path / "unwatched" / "metrics.jsonl"))


def test_an_incomplete_checkpoint_is_skipped_and_reported(train: Train, straight: Path, tmp_path: Path) -> None:
    train("stop_after_steps=2")
    broken = tmp_path / "run" / "checkpoint-3"
    shutil.copytree(tmp_path / "run" / "checkpoint-2", broken)
    (broken / "complete.json").unlink()
    (broken / "model.safetensors").write_bytes(b"half")
    code, out, _ = train()
    assert code == 0
    assert "checkpoint-3 is incomplete" in out
    assert "Resuming from checkpoint-2" in out
    assert without_times(tmp_path / "run/metrics.jsonl") == without_times(straight / "metrics.jsonl")


def test_a_finished_run_is_not_changed(train: Train, finished: Path) -> None:
    before = snapshot(finished / "final_model")
    code, out, _ = train()
    assert code == 0
    assert "is finished" in out
    assert "held-out accuracy" in out
    assert snapshot(finished / "final_model") == before


def test_a_run_interrupted_at_its_end_is_completed(train: Train, finished: Path) -> None:
    run = finished
    before, rows = snapshot(run / "final_model"), read_metrics(run / "metrics.jsonl")
    shutil.rmtree(run / "final_model")  # as if the process had died between the last checkpoint and the model
    (run / "summary.json").unlink()
    assert train()[0] == 0
    weights = "model.safetensors"
    assert snapshot(run / "final_model")[weights] == before[weights]
    assert read_metrics(run / "metrics.jsonl") == rows
    assert (run / "summary.json").is_file()


@pytest.mark.parametrize("way", ["overwrite=true", "resume=true"])
def test_settings_that_only_trl_rejects_keep_the_old_run(train: Train, stopped: Path, way: str) -> None:
    before = snapshot(stopped)
    code, _, err = train("training.sync_ref_model=true", "training.beta=0.0", way)
    assert code == 2
    assert "sync_ref_model" in err
    assert snapshot(stopped) == before


def test_a_finished_run_resumes_with_more_steps(train: Train, tmp_path: Path) -> None:
    train("training.max_steps=2")
    assert train("training.max_steps=3", "resume=true")[0] == 0
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2, 3]


def test_another_config_is_rejected_with_the_difference(train: Train, stopped: Path) -> None:
    before = snapshot(stopped)
    code, _, err = train("training.learning_rate=0.25")
    assert code == 1
    assert "training.learning_rate: 0.0" in err
    assert "0.25 now" in err
    for choice in ("run_name", "resume=true", "overwrite=true"):
        assert choice in err
    assert snapshot(stopped) == before
    assert train("training.learning_rate=0.25", "overwrite=true")[0] == 0
    assert read_metrics(stopped / "metrics.jsonl")[-1]["step"] == 4


def test_resume_true_needs_a_checkpoint(train: Train, after_one_step: Path, tmp_path: Path) -> None:
    code, _, err = train("resume=true")
    assert code == 1
    assert "resume=true needs a checkpoint" in err
    assert not (tmp_path / "run").exists()
    run = Path(shutil.copytree(after_one_step, tmp_path / "run", symlinks=True))
    shutil.rmtree(run / "checkpoint-1")
    code, _, err = train("resume=true")
    assert code == 1
    assert "no complete" in err


@pytest.mark.usefixtures("stopped")
def test_resume_false_and_foreign_directories_are_rejected(train: Train, tmp_path: Path) -> None:
    assert "resume=false" in train("resume=false")[2]
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter1.tex").write_text("hello")
    for extra in ("resume=auto", "overwrite=true"):
        code, _, err = train("run_name=thesis", extra)
        assert code == 1
        assert "chapter1.tex" in err
    assert [p.name for p in foreign.iterdir()] == ["chapter1.tex"]


def test_a_checkpoint_by_path_starts_a_branch(train: Train, finished: Path, tmp_path: Path) -> None:
    run = finished
    code, _, err = train(f"resume={run / 'checkpoint-2'}")
    assert code == 1
    assert "checkpoint-4" in err
    assert train("run_name=branch", f"resume={run / 'checkpoint-2'}")[0] == 0
    weights = "final_model/model.safetensors"
    assert (tmp_path / "branch" / weights).read_bytes() == (run / weights).read_bytes()
    assert "checkpoint" in train("run_name=other", f"resume={tmp_path}/nowhere")[2]


def test_the_resolved_config_runs_again(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("run_name=first")
    assert main(["train", "--config", str(tmp_path / "first" / "config.yaml"), "run_name=again"]) == 0
    assert without_times(tmp_path / "again/metrics.jsonl") == without_times(tmp_path / "first/metrics.jsonl")
    assert main(["train", str(tmp_path / "first" / "config.yaml"), "training.max_steps=1"]) == 0
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 3


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.learning_rat=1e-5", ["training.learning_rate"]),
        ("model.name=./no/such/model", ["no/such/model", "nothing at"]),
        ("training.num_generations=3", ["num_generations", "4"]),
        ("dataset.path=missing.jsonl", ["missing.jsonl"]),
        ("training.per_device_train_batch_size=400", ["different prompts", "12"]),
    ],
)
def test_bad_input_is_one_paragraph_and_nothing_is_written(
    train: Train, tmp_path: Path, override: str, expected: list[str]
) -> None:
    code, _, err = train(override)
    assert code in (1, 2)
    assert all(part in err for part in expected), err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model(train: Train, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no config.json" in train(f"model.name={tmp_path / 'empty'}")[2]
    (tmp_path / "empty" / "config.json").write_text("{}")
    assert "no weights" in train(f"model.name={tmp_path / 'empty'}")[2]


def test_gsm8k_from_its_own_file(train: Train, tmp_path: Path, shared_data: Path) -> None:
    rows = (shared_data / "gsm8k_train.jsonl").read_text().splitlines()[:64]
    (tmp_path / "gsm8k.jsonl").write_text("\n".join(rows) + "\n")
    code, out, _ = train("dataset=gsm8k", f"dataset.path={tmp_path / 'gsm8k.jsonl'}", "training.max_steps=1")
    assert code == 0
    assert "final_model" in out
    evaluated = (tmp_path / "run" / "evaluation" / "test-step-000000.jsonl").read_text().splitlines()
    answers = {json.loads(line)["answer"] for line in evaluated}
    assert answers <= {row["answer"].rpartition("####")[2].strip().replace(",", "") for row in map(json.loads, rows)}


@pytest.mark.slow
def test_the_starter_learns(tmp_path: Path) -> None:
    """A short run of the real thing: accuracy, reward and completion length all rise."""
    code = main(
        [
            "train",
            "training.max_steps=16",
            "training.gradient_accumulation_steps=2",
            "evaluation.every_steps=16",
            f"output_dir={tmp_path}",
            "run_name=run",
        ]
    )
    assert code == 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert 0.2 <= rows[0]["eval/accuracy"] <= 0.4
    assert rows[-1]["eval/accuracy"] > rows[0]["eval/accuracy_high"]
    assert rows[-1]["eval/completion_length"] > rows[0]["eval/completion_length"]
    rewards = [row["train/reward"] for row in rows[1:]]
    assert sum(rewards[-4:]) > sum(rewards[:4])


def test_rewards_in_the_trainers_own_process_score_held_out_problems_too(train: Train, tmp_path: Path) -> None:
    reward = tmp_path / "mine.py"
    reward.write_text("def spread(completions, **columns):\n    return [len(c[-1]['content']) for c in completions]\n")
    assert train(f"rewards.funcs=[{reward}:spread]", "rewards.workers=0", "training.max_steps=2")[0] == 0
    in_process = without_times(tmp_path / "run" / "metrics.jsonl")
    assert train(f"rewards.funcs=[{reward}:spread]", "training.max_steps=2", "run_name=pool")[0] == 0
    assert in_process == without_times(tmp_path / "pool" / "metrics.jsonl")
    assert in_process[-1]["eval/reward"] == in_process[-1]["eval/reward/spread"] > 0
    assert not any("accuracy" in name for name in in_process[-1])
