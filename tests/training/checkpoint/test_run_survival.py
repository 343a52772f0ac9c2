"""What a run directory survives, through `covey train`: flipped bytes, lost records, other invocations, older versions.

Pinned here: a byte flipped in any file of the newest checkpoint leads to the one before it; what a version without
checksums wrote is resumed from; history that `metrics.jsonl` has lost is restored; a damaged side file costs that file
only; the resume plan is made under the lock, a finished run keeps every byte, and a deleted folder is reported.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main
from covey.config import Config, load
from covey.errors import RunDirectoryError
from covey.runlog import CHECKPOINT_MARKER, RunDirectory, read_metrics
from covey.training import run as run_module
from covey.training.checkpoint.resume import plan_resume, what_is_wrong

Train = Callable[..., tuple[int, str, str]]


def words(model: str, folder: Path, name: str, *more: str) -> list[str]:
    return [
        *("train", "model=starter", f"model.name={model}", f"output_dir={folder}", f"run_name={name}"),
        *("training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=1"),
        *("training.num_generations=4", "training.max_completion_length=4", "training.max_steps=4"),
        *("training.save_steps=1", "training.save_total_limit=10", "evaluation.every_steps=2", "rewards.workers=0"),
        *("dataset.test_size=4", "dataset.hard_size=0", "dataset.train_size=12", *more),
    ]


@pytest.fixture(autouse=True)
def wide_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path longer than the console is wide would be broken in the middle."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture(scope="module")
def runs(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`straight`, and `stopped` after three steps."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(words(tiny_model, folder, "straight")) == 0
    assert main(words(tiny_model, folder, "stopped", "stop_after_steps=3")) == 0
    return folder


@pytest.fixture
def stopped(runs: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(runs / "stopped", tmp_path / "run", symlinks=True)))


@pytest.fixture
def resume(tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    def call(*more: str) -> tuple[int, str, str]:
        code = main(words(tiny_model, tmp_path, "run", *more))
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), " ".join(captured.err.split())

    return call


@pytest.fixture
def config(stopped: RunDirectory) -> Config:
    return load(recipe=stopped.config)


def flip(file: Path, at: int | None = None) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 4
    file.write_bytes(content)


def rows(run: Path) -> list[dict[str, Any]]:
    found = read_metrics(run / "metrics.jsonl")
    return [{name: v for name, v in row.items() if not name.startswith(("time/", "memory/"))} for row in found]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_straight(run: RunDirectory, runs: Path) -> None:
    assert rows(run.root) == rows(runs / "straight")
    weights = "final_model/model.safetensors"
    assert (run.root / weights).read_bytes() == (runs / "straight" / weights).read_bytes()
    assert contents(run.evaluation) == contents(runs / "straight" / "evaluation")


def test_a_flipped_byte_in_any_file_leads_to_the_checkpoint_before(stopped: RunDirectory, config: Config) -> None:
    newest = stopped.checkpoint(3)
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    names = {path.name for path in files}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json", "progress_0.pt", "metrics.jsonl"} <= names
    assert what_is_wrong(newest) is None
    for file in files:
        before = file.read_bytes()
        flip(file)
        assert what_is_wrong(newest) is not None, file.name
        file.write_bytes(before)
    for at in range(0, (newest / CHECKPOINT_MARKER).stat().st_size, 7):  # never taken for one of another version
        flip(newest / CHECKPOINT_MARKER, at)
        what_is_wrong(newest)
        flip(newest / CHECKPOINT_MARKER, at)
    assert plan_resume(config, stopped).checkpoint == newest
    flip(newest / "progress_0.pt")
    start = plan_resume(config, stopped)
    assert start.checkpoint == stopped.checkpoint(2)
    assert start.notes[0].startswith("checkpoint-3 is damaged (progress_0.pt changed")
    with pytest.raises(RunDirectoryError, match="checkpoint-3 is not a checkpoint to resume from: it is damaged"):
        plan_resume(load([f"resume={newest}"], recipe=stopped.config), stopped)


def test_a_damaged_optimiser_is_reported_and_the_run_still_equals_the_straight_one(
    stopped: RunDirectory, resume: Train, runs: Path
) -> None:
    flip(stopped.checkpoint(3) / "optimizer.pt")
    code, out, _ = resume()
    assert code == 0
    assert "checkpoint-3 is damaged (optimizer.pt changed since it was written), so it is skipped." in out
    assert "Resuming from checkpoint-2" in out
    assert_straight(stopped, runs)


def test_no_run_starts_over_damaged_checkpoints(stopped: RunDirectory, config: Config) -> None:
    for _, path in stopped.checkpoints():
        flip(path / "model.safetensors")
    with pytest.raises(RunDirectoryError, match=r"No checkpoint of .* can be resumed from: checkpoint-3 is damaged"):
        plan_resume(config, stopped)


def test_a_run_by_a_version_without_checksums_is_resumed_with_its_history(
    stopped: RunDirectory, resume: Train, runs: Path
) -> None:
    for step, path in stopped.checkpoints():
        shutil.rmtree(path / "records")
        sizes = {file.name: file.stat().st_size for file in path.iterdir() if file.name != CHECKPOINT_MARKER}
        (path / CHECKPOINT_MARKER).write_text(json.dumps({"step": step, "format": 1, "bytes": sizes}))
    lines = stopped.metrics.read_bytes().splitlines(keepends=True)
    stopped.metrics.write_bytes(b"".join([lines[0], lines[1], lines[3]]))
    code, out, _ = resume()
    assert code == 0
    assert "metrics.jsonl had lost or changed 1 rows (step 2 to 2), which were restored" in out
    found, straight = rows(stopped.root), rows(runs / "straight")
    assert [row["step"] for row in found] == [0, 1, 2, 3, 4]
    assert found[2] == {name: value for name, value in straight[2].items() if name in found[2]}
    assert {"train/loss", "train/reward", "train/grad_norm"} <= found[2].keys()
    assert found[:2] + found[3:] == straight[:2] + straight[3:]


@pytest.mark.parametrize("damage", ["missing", "cut", "scrambled"])
def test_metrics_are_restored(stopped: RunDirectory, resume: Train, runs: Path, damage: str) -> None:
    content = stopped.metrics.read_bytes()
    stopped.metrics.write_bytes(
        {"missing": b"", "cut": content[:100], "scrambled": content.replace(b"step", b"st\0p")}[damage]
    )
    if damage == "missing":
        stopped.metrics.unlink()
    code, out, _ = resume()
    assert code == 0
    assert "metrics.jsonl had lost or changed 4 rows (step 0 to 3), which were restored from the checkpoint" in out
    assert_straight(stopped, runs)


def test_a_damaged_side_file_costs_that_file_only(stopped: RunDirectory, resume: Train, runs: Path) -> None:
    parquet = sorted(stopped.completions.glob("*.parquet"))[0]
    parquet.write_bytes(parquet.read_bytes()[:50])
    stopped.environment.write_text('{"form')
    stopped.config.write_text(stopped.config.read_text()[:200])
    broken = stopped.evaluation / "mine"
    broken.mkdir()
    (broken / "summary.json").write_text("{")
    code, out, err = resume()
    assert code == 0, err
    assert "config.yaml" in out
    assert "The copy in checkpoint-3 is used." in out
    assert (stopped.final_model / "model.safetensors").is_file()
    assert stopped.report.is_file()
    assert rows(stopped.root) == rows(runs / "straight")
    assert json.loads(stopped.environment.read_text())["packages"]


def test_a_finished_run_keeps_every_byte(runs: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(runs / "straight")
    assert not {name for name in before if name.endswith("README.md")} - {"final_model/README.md"}  # TRL's cards
    assert main(words(tiny_model, runs, "straight")) == 0
    assert "is finished" in capsys.readouterr().out
    assert contents(runs / "straight") == before


def test_a_finished_run_without_its_checkpoints_is_still_finished(runs: Path, tmp_path: Path, resume: Train) -> None:
    run = RunDirectory(Path(shutil.copytree(runs / "straight", tmp_path / "run", symlinks=True)))
    for _, path in run.checkpoints():
        shutil.rmtree(path)
    before = contents(run.root)
    assert "is finished" in resume()[1]
    run.summary.unlink()
    del before["summary.json"]
    assert resume()[0] == 0
    assert contents(run.root) == before


def test_a_finished_run_without_its_metrics_is_still_finished(runs: Path, tmp_path: Path, resume: Train) -> None:
    run = RunDirectory(Path(shutil.copytree(runs / "straight", tmp_path / "run", symlinks=True)))
    run.metrics.write_bytes(b"nonsense\n" + run.metrics.read_bytes())
    code, out, _ = resume()
    assert code == 0
    assert "is finished" in out
    assert "metrics.jsonl, line 1, is not a row of metrics" in out


def test_the_plan_and_the_end_are_under_the_lock(
    tmp_path: Path, resume: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = {}

    def watch(name: str) -> None:
        real = getattr(run_module, name)

        def spy(*args: Any, **more: Any) -> Any:
            locked[name] = RunDirectory(tmp_path / "run").is_locked()
            return real(*args, **more)

        monkeypatch.setattr(run_module, name, spy)

    watch("plan_resume")
    watch("write_summary")
    assert resume("training.max_steps=1")[0] == 0
    assert locked == {"plan_resume": True, "write_summary": True}


def test_an_invocation_that_comes_too_early_is_refused_at_once(stopped: RunDirectory, resume: Train) -> None:
    (stopped.checkpoint(3) / CHECKPOINT_MARKER).unlink()  # it is being written
    before = contents(stopped.root)
    with stopped.lock():
        code, out, err = resume()
    assert code == 1
    assert "is being written by another process" in err
    assert out == ""
    assert contents(stopped.root) == before


@pytest.mark.parametrize("more", ["resume=true", "training.num_generations=3", "dataset.path=missing.jsonl"])
def test_a_refused_start_leaves_nothing(tiny_model: str, tmp_path: Path, more: str) -> None:
    assert main(words(tiny_model, tmp_path / "not" / "there", "run", more)) in (1, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_folder(tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for folder, name in ((tmp_path, "file"), (tmp_path / "file", "run"), (tmp_path / "file" / "deep", "run")):
        assert main(words(tiny_model, folder, name)) == 1
        assert f"{tmp_path / 'file'} is a file" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "file").read_text() == "mine"


_DELETES = """
import shutil
from pathlib import Path

def deletes(completions, trainer_state, **columns):
    if trainer_state.global_step == 1:
        shutil.rmtree(Path(__file__).parent / "run")
    return [float(len(completion[-1]["content"])) for completion in completions]
"""


def test_a_folder_that_is_deleted_during_the_run(tmp_path: Path, resume: Train) -> None:
    (tmp_path / "reward.py").write_text(_DELETES)
    code, _, err = resume(f"rewards.funcs=[{tmp_path / 'reward.py'}:deletes]")
    assert code == 1
    assert f"{tmp_path / 'run'} was deleted or moved while the run was being written there" in err
    assert "Traceback" not in err


_RECIPE = """
model_name_or_path: {model}
output_dir: {folder}/data/mine
overwrite_output_dir: true
resume_from_checkpoint: {resume}
learning_rate: 1.0e-03
max_completion_length: 4
num_generations: 4
per_device_train_batch_size: 4
gradient_accumulation_steps: 1
max_steps: 3
save_steps: 1
logging_steps: 1
report_to: none
eval_strategy: "no"
"""


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_recipe_of_another_project_resumes_at_the_second_call(
    value: str, tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(_RECIPE.format(model=tiny_model, folder=tmp_path, resume=value))
    command = ["train", "--config", str(recipe), "dataset=arithmetic", "dataset.train_size=12", "dataset.test_size=4"]
    command += ["rewards.workers=0", "model=starter", f"model.name={tiny_model}", "dataset.hard_size=0"]
    assert main([*command, "stop_after_steps=2"]) == 0
    run = tmp_path / "data" / "mine"
    weights = (run / "checkpoint-2" / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert main(command) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert output.count("overwrite_output_dir") == 1
    assert f"Resuming from checkpoint-2 of {run}" in output
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2, 3]
    assert (run / "checkpoint-2" / "model.safetensors").read_bytes() == weights
