"""A run that ends with an error: what its log, its summary and its report say, and that it goes on afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.cli.main import main
from covey.runlog.directory import RunDirectory
from run_sizes import SMALL

Train = Callable[..., tuple[int, str, str]]

REWARD = """
from pathlib import Path

def deepest(text):
    raise ValueError("this is the <script>cause</script>")

def mine(completions, **columns):
    calls = Path(__file__).with_suffix(".calls")
    if len(completions) == 8:  # of training, not held-out ones
        calls.write_text(calls.read_text() + "." if calls.exists() else ".")
        if len(calls.read_text()) == 3:  # after the trial call, in the second step
            deepest(completions[0])
    return [0.5 for _ in completions]
"""

CALLBACK = """
import shutil
from pathlib import Path

from transformers import TrainerCallback

class Breaks(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            raise KeyError("nowhere")

class Ends(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 1

def delete(args, step):
    for path in Path(args.output_dir).glob("[!.]*") if step == 1 else ():  # `rm -rf run/*`, which keeps the lock
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

class DeletesAtItsEnd(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        delete(args, state.global_step)

class DeletesAtItsLog(TrainerCallback):
    def on_log(self, args, state, control, **kwargs):
        delete(args, state.global_step)

class DeletesAtItsCheckpoint(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        delete(args, state.global_step)
"""


@pytest.fixture
def train(tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    def call(*overrides: str) -> tuple[int, str, str]:
        more = ("training.max_steps=3", "dataset.test_size=6", "dataset.hard_size=0", "training.save_steps=1")
        words = ("model=starter", f"model.name={tiny_model}", *SMALL, *more)
        code = main(["train", *words, f"output_dir={tmp_path}", "run_name=run", *overrides])
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), " ".join(captured.err.split())

    return call


def test_a_reward_that_raises_leaves_a_failed_run_which_resumes(train: Train, tmp_path: Path) -> None:
    run, reward = RunDirectory(tmp_path / "run"), tmp_path / "reward.py"
    reward.write_text(REWARD)
    code, out, err = train(f"rewards.funcs=[{reward}:mine]")
    assert code == 1
    assert "The reward mine failed: it raised ValueError: this is the <script>cause</script> (reward.py, line 5)" in err
    assert "Traceback" not in out + err
    assert f"The run failed: {run.log} has the traceback, and {run.report} what it did until then." in out

    summary = json.loads(run.summary.read_text())
    assert (summary["status"], summary["error"]) == ("failed", "RewardError")
    assert summary["message"].startswith("The reward mine failed: it raised ValueError")
    for trace in (summary["traceback"], run.log.read_text()):  # of the trainer, and of the worker that runs the reward
        assert "covey.errors.RewardError: The reward mine failed" in trace
        assert "in mine" in trace
        assert "in deepest" in trace
    page = run.report.read_text()
    assert "Failed after step 1 of 3: The reward mine failed" in page
    assert "The same command with run_name=run resumes from checkpoint-1." in page
    assert "<script>cause" not in page

    code, out, _ = train(f"rewards.funcs=[{reward}:mine]")  # the next call of the reward does not fail
    assert code == 0
    assert "Resuming from checkpoint-1" in out
    assert "Finished, as all steps are done: 3 steps" in out
    summary = json.loads(run.summary.read_text())
    assert (summary["status"], summary["reason"]) == ("finished", "all steps are done")
    assert "traceback" not in summary
    assert "is finished: nothing is left to do" in train(f"rewards.funcs=[{reward}:mine]")[1]


def test_any_other_error_keeps_its_traceback_and_is_recorded(train: Train, tmp_path: Path) -> None:
    run, callback = RunDirectory(tmp_path / "run"), tmp_path / "callbacks.py"
    callback.write_text(CALLBACK)
    with pytest.raises(KeyError, match="nowhere"):
        train(f"callbacks=[{callback}:Breaks]")
    summary = json.loads(run.summary.read_text())
    assert (summary["status"], summary["message"]) == ("failed", "KeyError: 'nowhere'")
    assert "in on_step_end" in summary["traceback"]
    assert "in on_step_end" in run.log.read_text()
    assert not run.is_locked()


def test_a_failure_after_the_final_model_is_no_finished_run(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "run")

    def breaks(*args: object) -> None:
        raise RuntimeError("too late")

    with monkeypatch.context() as patched:
        patched.setattr("covey.training.run.write_summary", breaks)
        with pytest.raises(RuntimeError, match="too late"):
            train()
    assert run.final_model.is_dir()
    code, out, _ = train()
    assert code == 0
    assert "Resuming from checkpoint-3" in out
    assert json.loads(run.summary.read_text())["status"] == "finished"


def test_a_callback_that_ends_a_run_is_named_as_the_reason(train: Train, tmp_path: Path) -> None:
    callback = tmp_path / "callbacks.py"
    callback.write_text(CALLBACK)
    code, out, _ = train(f"callbacks=[{callback}:Ends]")
    assert code == 0
    assert "Finished, as a callback ended it at step 1 of 3: 1 step" in out


@pytest.mark.parametrize("when", ["End", "Log", "Checkpoint"])
def test_a_run_whose_files_are_deleted_within_a_step_says_so_and_starts_again(
    when: str, train: Train, tmp_path: Path
) -> None:
    callback, run = tmp_path / "callback.py", RunDirectory(tmp_path / "run")
    callback.write_text(CALLBACK)
    code, _, err = train(f"callbacks=[{callback}:DeletesAtIts{when}]")
    assert code == 1
    assert err.endswith(
        f"covey: {run.root} was deleted or moved while the run was being written there, so it was stopped. Move it "
        "back to resume, or start again."
    )
    assert run.is_empty()
    code, _, err = train("stop_after_steps=1")
    assert (code, "Traceback" in err) == (0, False)
    assert [step for step, _ in run.complete_checkpoints()] == [1]
