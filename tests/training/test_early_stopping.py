"""`callbacks=[early_stopping]`: a run stops when held-out accuracy no longer rises, and counts as finished.

Pinned here: what counts as a gain, by hand; that a run ends at the right step with all that a finished one has, also
when it was stopped in between; and that it is refused where nothing is evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from covey.api import train
from covey.config import EvaluationConfig, compose
from covey.errors import ConfigError
from covey.training.callbacks import evaluations_without_gain, load_callbacks
from covey.training.checkpoint.write import note_evaluation


@pytest.mark.parametrize(
    ("accuracies", "threshold", "expected"),
    [
        ([], 0.0, 0),
        ([0.3], 0.0, 0),
        ([0.3, 0.3], 0.0, 1),  # equal is not a gain
        ([0.3, 0.4, 0.35, 0.4], 0.0, 2),
        ([0.3, 0.2, 0.1, 0.5], 0.0, 0),
        ([0.3, 0.305, 0.309], 0.01, 2),  # small gains do not add up: each is measured from the last best
        ([0.3, 0.305, 0.315], 0.01, 0),
    ],
)
def test_what_counts_as_a_gain(accuracies: list[float], threshold: float, expected: int) -> None:
    assert evaluations_without_gain(accuracies, threshold) == expected


def test_it_reads_the_trainers_state() -> None:
    (callback,) = load_callbacks(["early_stopping"], EvaluationConfig(early_stopping_patience=2))
    state, control = TrainerState(), TrainerControl()
    stopped = []
    for step, accuracy in enumerate([0.2, 0.4, 0.4, 0.3]):
        state.global_step = step
        note_evaluation(state, "eval_accuracy", accuracy)
        callback.on_evaluate(TrainingArguments("x", use_cpu=True), state, control)
        stopped.append(control.should_training_stop)
    assert stopped == [False, False, False, True]


def test_it_is_refused_where_nothing_is_evaluated() -> None:
    with pytest.raises(ConfigError, match=r"callbacks=\[early_stopping\].*evaluation\.every_steps=0"):
        compose(["callbacks=[early_stopping]", "evaluation.every_steps=0"])


@pytest.mark.slow
def test_a_run_ends_early_and_is_finished(tiny_model: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model.name": tiny_model,
        "output_dir": str(tmp_path),
        "callbacks": ["early_stopping"],
        "evaluation.early_stopping_patience": 2,
        "evaluation.every_steps": 1,
        "training.max_steps": 6,
        "training.save_steps": 1,
        "training.per_device_train_batch_size": 8,
        "training.gradient_accumulation_steps": 1,
        "training.num_generations": 4,
        "training.max_completion_length": 4,
        "dataset.train_size": 12,
        "dataset.test_size": 4,
        "dataset.hard_size": 0,
    }
    # A random model is never right: no evaluation beats the one before training, and the second one ends the run.
    straight = train(overrides={**settings, "run_name": "straight"})
    assert (straight.finished, straight.step) == (True, 2)
    assert straight.reason == "2 evaluations brought no new best (callbacks=[early_stopping])"
    for name in ("final_model/README.md", "summary.json", "report.html"):
        assert (straight.run.root / name).exists(), name
    assert train(overrides={**settings, "run_name": "straight"}).trained is False
    first = train(overrides={**settings, "run_name": "resumed", "stop_after_steps": 1})
    assert (first.finished, first.step) == (False, 1)
    again = train(overrides={**settings, "run_name": "resumed"})
    assert (again.finished, again.step) == (True, 2)
