"""The documents' commands train: one step each, with a small model, a small file and short completions.

What they mean beyond those sizes is checked by `test_seed_commands.py`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest
import yaml

from completed import completed
from covey.cli.main import main
from covey.runlog.metrics import read_metrics
from seed_commands import SWEEP, TRAIN, SeedCommand, programs, translated

ROOT = Path(__file__).resolve().parents[2]
SIZES = (
    *("training.max_steps=1", "training.max_completion_length=8", "training.report_to=none"),
    *("evaluation.every_steps=0", "dataset.test_size=4", "dataset.hard_size=0"),
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The current folder holds data in the columns of GSM8K (`words.jsonl`) and of DeepScaleR (`problems.jsonl`)."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.chdir(tmp_path)
    sums = [(f"What is {a} + {b}?", a + b) for a in range(8) for b in range(8)]
    rows = {
        "words.jsonl": [{"question": text, "answer": f"They add up.\n#### {value}"} for text, value in sums],
        "problems.jsonl": [{"problem": text, "answer": str(value), "solution": "Add."} for text, value in sums],
    }
    for name, lines in rows.items():
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")


def small(command: SeedCommand, model: str) -> list[str]:
    """The words of a command for a run of seconds."""
    words = translated(command.line, programs(ROOT / "docs" / "coming_from.md"))
    words_in_gsm8k = command.document == "002" or "dataset=gsm8k" in words
    data = ["dataset.path=words.jsonl", "dataset.answer_extractor=gsm8k"]
    data = data if words_in_gsm8k else ["dataset.path=problems.jsonl"]
    size = ["model.reasoning_vocab_size=full"] if command.meaning.get("model.reasoning_vocab_size") else []
    preset = [f"+preset={command.preset}"] if command.selects == "refused" else []  # for its larger batch
    return [*words, f"model.name={model}", *preset, *data, *size, *SIZES]


def only_run() -> Path:
    (found,) = [file for folder in (".", "out", "checkpoints") for file in Path(folder).glob("*/metrics.jsonl")]
    return found.parent


@pytest.mark.parametrize("command", TRAIN, ids=lambda one: f"{one.document} {' '.join(one.line.split()[-3:])}")
def test_one_step(command: SeedCommand, tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(small(command, tiny_model))
    assert code == 0, capsys.readouterr().err
    run = only_run()
    (step,) = [row for row in read_metrics(run / "metrics.jsonl") if "train/loss" in row]
    assert step["step"] == 1
    assert math.isfinite(step["train/loss"])
    assert (run / "train.log").stat().st_size > 0  # 002: tail -f …/train.log
    assert (run / "final_model").is_dir()  # 003: ./out/{exp_name}/final_model
    resolved = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in command.changes.items():
        group, _, field = key.partition(".")
        if key in ("output_dir", "run_name"):
            assert {"output_dir": run.parent.as_posix(), "run_name": run.name}[key] == value
        elif group == "training" and field not in ("max_steps", "max_completion_length", "report_to"):
            assert resolved[group][field] == value
    adapters = (run / "final_model" / "adapter_model.safetensors").exists()
    assert adapters == (resolved["model"]["lora"]["rank"] is not None)
    if command.selects == "run":
        assert adapters
        assert resolved["training"]["learning_rate"] == command.meaning["training.learning_rate"]


@pytest.mark.parametrize("preset", ["agent_tunix", "rlvr_vocab", "open_r1", "maxent_grpo"])
def test_a_preset_trains(preset: str, tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    extracted = ["dataset.path=words.jsonl", "dataset.answer_extractor=gsm8k"]
    data = extracted if preset == "agent_tunix" else ["dataset.path=problems.jsonl"]
    code = main(["train", f"+preset={preset}", f"model.name={tiny_model}", *data, *SIZES])
    assert code == 0, capsys.readouterr().err
    assert [row["step"] for row in read_metrics(only_run() / "metrics.jsonl") if "train/loss" in row] == [1]


def test_the_same_command_resumes_from_its_checkpoints(tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """002: `checkpoint_dir=./checkpoints/ckpts/`."""
    (command,) = [one for one in TRAIN if "checkpoint_dir" in one.line]
    words = [*small(command, tiny_model), "training.max_steps=2", "training.save_steps=1"]
    assert main([*words, "stop_after_steps=1"]) == 0
    assert main(words) == 0, capsys.readouterr().err
    rows = read_metrics(Path("checkpoints/ckpts/metrics.jsonl"))
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2]


@pytest.mark.long
def test_the_sweep_trains_its_jobs(tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*small(SWEEP, tiny_model), "run_name=sweep"]) == 0, capsys.readouterr().err
    rates = []
    for config in sorted(Path("out/sweep").glob("*/config.yaml")):
        steps = [row for row in read_metrics(config.parent / "metrics.jsonl") if "train/loss" in row]
        assert len(steps) == 1
        rates.append(yaml.safe_load(config.read_text())["training"]["learning_rate"])
    assert sorted(rates) == [1e-6, 3e-6, 1e-5]


def test_the_launcher_trains(tmp_path: Path) -> None:
    """001: `bash training.sh`, in a clone whose environment is there."""
    clone = tmp_path / "clone"
    for folder in ("scripts", ".venv/bin"):
        (clone / folder).mkdir(parents=True)
    (clone / "training.sh").write_text((ROOT / "training.sh").read_text())
    (clone / "scripts" / "setup.sh").write_text("")
    covey = clone / ".venv" / "bin" / "covey"
    covey.write_text(f'#!/usr/bin/env bash\nexec {sys.executable} -m covey.cli.main "$@"\n')
    covey.chmod(0o755)
    environment = {**os.environ, "RUN_NAME": "launched", "PYTHONPATH": str(ROOT / "src")}
    words = ("dataset.train_size=64", "training.per_device_train_batch_size=8", *SIZES)
    done = completed(["bash", str(clone / "training.sh"), *words], cwd=tmp_path, env=environment, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_metrics(tmp_path / "out" / "launched" / "metrics.jsonl")
    assert [row["step"] for row in rows if "train/loss" in row] == [1]
