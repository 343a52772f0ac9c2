"""A run directory of commit c148dad (MaxEnt by its class's name, LoRA of rank 4, two steps) does all that it did there.

It was trained from the starter as the folder `base`, with a reward of its own; the report and the curves were removed.
"""

from __future__ import annotations

import json
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from covey.cli.main import main
from covey.errors import CoveyError
from covey.evaluation.stored import read_stored
from covey.importing import import_object
from covey.model.starter import STARTER_PATH
from covey.runlog.metrics import read_metrics
from old_run import OLD, copied

NAMES = (Path(__file__).parent / "recorded_names.txt").read_text(encoding="utf-8").split()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, with what it was trained from."""
    monkeypatch.chdir(tmp_path)
    run = copied(Path("out/run"))
    Path("base").symlink_to(STARTER_PATH)
    (code,) = run.glob("code/rewards-*.py")
    shutil.copy(code, "rewards.py")
    return run


def command() -> list[str]:
    """The words that it was started with."""
    return shlex.split(json.loads((OLD / "environment.json").read_text())["command"])[1:]


def test_the_command_that_started_it_finds_it_finished(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same words still make the config that it recorded, or they would be refused."""
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "README.md"}
    assert main(command()) == 0
    assert "is finished: nothing is left to do" in " ".join(capsys.readouterr().out.split())
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_it_resumes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, weights = read_metrics(run / "metrics.jsonl"), load_file(run / "final_model" / "adapter_model.safetensors")
    assert main(["train", f"{run}/config.yaml", "run_name=run", "resume=true", "training.max_steps=3"]) == 0
    found = read_metrics(run / "metrics.jsonl")
    assert found[:3] == rows
    assert [row["step"] for row in found] == [0, 1, 2, 3]
    assert found[3]["train/objective/beta"] != rows[2]["train/objective/beta"]
    assert "Resuming from checkpoint-2" in capsys.readouterr().out
    trained = load_file(run / "final_model" / "adapter_model.safetensors")
    assert trained.keys() == weights.keys()
    assert all((0 < (trained[name] - old).abs().max() < 0.1) for name, old in weights.items())


def test_it_is_reported(run: Path) -> None:
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    for shown in ("43.8%", "50.0%", "covey.objective.maxent:MaxEnt", "rewards.py:variety"):
        assert shown in page


def test_it_is_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it said then of its own first and last steps."""
    files = [str(run / "evaluation" / f"test-step-{step:06}.jsonl") for step in (0, 2)]
    assert main(["compare", *files, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["differences"]
    held_out = json.loads((run / "summary.json").read_text())["held_out"][0]
    assert {key: found[key] for key in held_out["paired"]} == pytest.approx(held_out["paired"])
    shutil.copytree(run, "out/other", symlinks=True)
    assert main(["compare", str(run), "out/other"]) == 0


def test_it_is_evaluated_on_the_problems_of_then(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Greedily, as it was; another CPU may round another token up."""
    greedy = ("evaluation=greedy", "evaluation.max_completion_length=48")
    assert main(["eval", str(run), *greedy, "--out", "again"]) == 0
    capsys.readouterr()
    old, new = read_stored(run / "evaluation" / "test-final-greedy"), read_stored(Path("again/test"))
    assert old.settings["data"].items() <= new.settings["data"].items()
    assert new.settings["sampling"] == old.settings["sampling"]
    assert new.summary["accuracy"]["value"] == pytest.approx(old.summary["accuracy"]["value"], abs=0.13)
    assert main(["compare", str(run / "evaluation" / "test-final-greedy"), "again/test"]) == 0
    assert "on 16 problems" in capsys.readouterr().out


def test_the_program_that_it_recorded_can_be_run() -> None:
    """`covey sweep` and job scripts run it by this name."""
    program = json.loads((OLD / "environment.json").read_text())["command"].split()[0]
    module = program.partition("/src/")[2].removesuffix(".py").replace("/", ".")
    assert callable(import_module(module).main)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_runs_have_recorded_resolves(name: str) -> None:
    """Covey's own objectives, rewards, environments, engines and callbacks, as c148dad named them in configs."""
    found: Any = import_object(name, "objective.name", CoveyError)
    assert found.__name__ == name.rpartition(":")[2]
