"""The best checkpoint on the held-out problems: found, kept, linked, reported, and the same after a resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import TrainerState

from covey.cli.main import main
from covey.errors import RunDirectoryError
from covey.evaluation.estimators import Estimate
from covey.evaluation.run import EvaluationResult
from covey.evaluation.stored import find_target
from covey.runlog.directory import RunDirectory
from covey.training import run as training_run
from covey.training.checkpoint.write import deciding_metric, evaluated, event_metrics, is_new_best, note_evaluation

ACCURACY = {0: 0.9, 1: 0.2, 2: 0.6, 3: 0.4, 4: 0.6, 5: 0.3, 6: 0.1}
"""By step. Step 0 does not count, and of equal ones the earlier is the best: step 2."""

Train = Callable[..., Path]


@pytest.fixture
def train(tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    def scripted(job: training_run._Job) -> dict[str, EvaluationResult]:
        value = ACCURACY[job.trainer.state.global_step]
        return {"test": EvaluationResult(Estimate(value, value - 0.1, value + 0.1), 1.0, 5.0, 0.0, [])}

    monkeypatch.setattr(training_run, "_evaluate", scripted)

    def call(name: str, *words: str) -> Path:
        settings = (
            *("model=starter", f"model.name={tiny_model}", f"output_dir={tmp_path}", f"run_name={name}"),
            *("training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=1"),
            *("training.num_generations=4", "training.max_completion_length=4", "training.max_steps=6"),
            *("training.save_steps=3", "evaluation.every_steps=1", "dataset.test_size=4", "dataset.train_size=12"),
        )
        assert main(["train", *settings, *words]) == 0
        return tmp_path / name

    return call


def checkpoints(run: Path) -> set[str]:
    return {path.name for path in run.glob("checkpoint-*")}


def test_the_best_is_kept_linked_and_reported(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("run", "training.save_total_limit=1")
    assert "best, at step" not in capsys.readouterr().out  # no step improved on the model before training
    assert checkpoints(run) == {"checkpoint-2", "checkpoint-6"}  # the best and the newest
    assert (run / "best_model").readlink() == Path("checkpoint-2")
    assert json.loads((run / "summary.json").read_text())["best_checkpoint"] == "checkpoint-2"
    assert "60.0% held-out" not in (run / "report.html").read_text(encoding="utf-8")
    state = TrainerState.load_from_json(str(run / "checkpoint-6" / "trainer_state.json"))
    assert (state.best_metric, state.best_global_step) == (0.6, 2)
    assert evaluated(state) == [(step, value) for step, value in ACCURACY.items() if step < 6] + [(6, 0.1)]
    for named in (find_target(str(run), "best"), find_target(str(run / "best_model"))):
        assert (named.source, named.run, named.state) == (str(run / "checkpoint-2"), run, "best")
    assert find_target(str(run), "6").state == "checkpoint-6"
    with pytest.raises(RunDirectoryError, match=r"no whole checkpoint 3.*\(2, 6\)"):
        find_target(str(run), "3")
    with pytest.raises(RunDirectoryError, match=r"no whole checkpoint 3.*\(2, 6\)"):  # pruned
        find_target(str(run / "checkpoint-3"))


def test_a_resumed_run_remembers_it(train: Train) -> None:
    straight, stopped = train("straight"), train("stopped", "stop_after_steps=3")
    assert (stopped / "best_model").readlink() == Path("checkpoint-2")
    (stopped / "best_model").unlink()  # killed between the checkpoint and the link
    train("stopped", "stop_after_steps=1")
    train("stopped")
    assert checkpoints(stopped) == checkpoints(straight) == {"checkpoint-2", "checkpoint-6"}
    states = [json.loads((run / "checkpoint-6" / "trainer_state.json").read_text()) for run in (straight, stopped)]
    for key in ("best_metric", "best_global_step", "log_history"):
        assert [_timeless(state[key]) for state in states[:1]] == [_timeless(state[key]) for state in states[1:]]
    assert RunDirectory(stopped).best_checkpoint() == stopped / "checkpoint-2"


def test_it_can_be_switched_off(train: Train) -> None:
    assert (train("run", "stop_after_steps=2") / "best_model").is_symlink()
    run = train("run", "evaluation.keep_best=false", "overwrite=true")
    assert checkpoints(run) == {"checkpoint-3", "checkpoint-6"}
    assert not (run / "best_model").is_symlink()
    with pytest.raises(RunDirectoryError, match="no best checkpoint"):
        find_target(str(run), "best")


def test_every_callback_gets_evaluations(train: Train, tmp_path: Path) -> None:
    listener = tmp_path / "listener.py"
    listener.write_text(_LISTENER)
    run = train("run", f"callbacks=[{listener}:Listener]", "evaluation.before_training=false")
    assert checkpoints(run) == {"checkpoint-2", "checkpoint-4"}  # the one that stopped the run also saved
    assert json.loads((tmp_path / "heard.json").read_text()) == [[1, 0.2], [2, 0.6], [3, 0.4], [4, 0.6]]


def test_what_counts_as_the_best() -> None:
    state = TrainerState()
    for step, (value, best) in enumerate([(0.9, False), (0.0, True), (0.0, False), (0.5, True), (0.5, False)]):
        state.global_step = step
        note_evaluation(state, "eval_accuracy", value)
        assert is_new_best(state) is best
    state.global_step = 5
    assert not is_new_best(state)  # not evaluated
    state.global_step = 3
    note_evaluation(state, "eval_accuracy", 0.7)  # repeated after a resume: it and later ones are replaced
    assert evaluated(state) == [(0, 0.9), (1, 0.0), (2, 0.0), (3, 0.7)]


def test_another_metric_from_now_on() -> None:
    """As in a run of an older version that has rewards of its own only: what its grader found does not count."""
    state = TrainerState(best_metric=0.5, best_global_step=1)
    state.log_history = [{"eval_accuracy": 0.4, "step": 0}, {"eval_accuracy": 0.5, "step": 1}, {"loss": 1.0, "step": 2}]
    state.global_step = 2
    note_evaluation(state, "eval_reward", -3.0)
    assert evaluated(state) == [(2, -3.0)]
    assert is_new_best(state)
    assert (state.best_metric, state.best_global_step) == (-3.0, 2)
    state.global_step = 3
    note_evaluation(state, "eval_reward", -4.0)
    assert not is_new_best(state)
    assert state.log_history[2] == {"loss": 1.0, "step": 2}


def test_which_metric_decides() -> None:
    rewards = {"eval/reward": 1.5, "eval/reward/mine": 2.0, "eval/reward_low": 1.0, "time/evaluation": 2.0}
    row = {"eval/accuracy": 0.4, "eval_hard/accuracy": 0.1, **rewards}
    assert deciding_metric(row, None) == "eval_accuracy"
    assert deciding_metric(row, "reward/mine") == "eval_reward/mine"
    assert deciding_metric(rewards, None) == "eval_reward"
    assert deciding_metric(rewards, "accuracy") is None
    assert deciding_metric({"eval_hard/accuracy": 0.1}, None) == "eval_accuracy"
    assert deciding_metric({"time/evaluation": 2.0}, None) is None
    assert event_metrics(rewards) == {"eval_reward": 1.5, "eval_reward/mine": 2.0, "eval_reward_low": 1.0}
    assert event_metrics({"eval_hard/accuracy": 0.1}) == {"eval_accuracy": 0.1}
    assert event_metrics({"time/evaluation": 2.0}) == {}


def _timeless(value: object) -> object:
    if not isinstance(value, list):
        return value
    return [{key: one for key, one in entry.items() if "time" not in key} for entry in value]


_LISTENER = """
import json
from pathlib import Path
from transformers import TrainerCallback

class Listener(TrainerCallback):
    heard = []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.heard.append([state.global_step, metrics["eval_accuracy"]])
        Path(__file__).with_name("heard.json").write_text(json.dumps(self.heard))
        if state.global_step == 4:
            control.should_save = control.should_training_stop = True
"""
