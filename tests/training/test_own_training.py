"""Runs with a user's own objective: by name, as an object, stateful, resumed, by several processes.

The numbers of `RunningBaseline` (tests/support) are worked out again from the rewards that a run records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import covey
from covey import GRPOTrainer
from covey.cli.main import main
from covey.config import load
from covey.errors import ConfigError, RunDirectoryError, TrainingError
from covey.objective import GRPO, MaxEnt, Objective
from covey.runlog import read_completions, read_metrics
from covey.training.doctor import examine
from own_objective import RunningBaseline
from same_run import without_times
from trainers import build_trainer

TINY: Mapping[str, Any] = {
    **{"training.per_device_train_batch_size": 8, "training.gradient_accumulation_steps": 1},
    **{"training.num_generations": 4, "training.max_completion_length": 8, "training.save_steps": 1},
    **{"training.learning_rate": 0.01, "training.lr_scheduler_type": "constant", "training.warmup_steps": 0},
    **{"dataset.train_size": 12, "dataset.test_size": 4, "dataset.hard_size": 0, "evaluation.every_steps": 4},
    **{"rewards.workers": 0, "training.max_steps": 4},
}


def baseline(**settings: float) -> RunningBaseline:
    return RunningBaseline(RunningBaseline.Settings(**settings))


def assert_same(found: Path, expected: Path) -> None:
    assert without_times(found) == without_times(expected)
    assert read_completions(found / "completions") == read_completions(expected / "completions")
    weights, others = (load_file(run / "final_model" / "model.safetensors") for run in (found, expected))
    assert all(torch.equal(weights[name], others[name]) for name in others)


def reward_of(row: Mapping[str, Any]) -> float:
    return float(row["exact_match"]) + float(row["format"])


def test_an_object_trains_and_its_columns_are_recorded(tmp_path: Path) -> None:
    """And the console shows at the end what the command shows."""
    out = StringIO()
    weights = {"training.reward_weights": [1.0, 1.0], "training.max_completion_length": 16, "training.max_steps": 2}
    result = covey.train(
        overrides={**TINY, **weights, "output_dir": str(tmp_path), "run_name": "own"},
        objective=baseline(decay=0.75),
        console=Console(file=out, width=120),
    )
    rows, metrics = read_completions(tmp_path / "own" / "completions"), read_metrics(tmp_path / "own/metrics.jsonl")
    assert len(rows) == 16
    assert any(reward_of(row) for row in rows)
    expected = 0.25
    for step in (1, 2):
        batch = [row for row in rows if row["step"] == step]
        assert metrics[step]["train/objective/baseline"] == pytest.approx(expected, abs=1e-7)
        for row in batch:
            assert row["over_baseline"] == pytest.approx(reward_of(row) - expected, abs=1e-6)
            assert row["advantage"] == pytest.approx(row["over_baseline"], abs=1e-6)
            assert row["batch"] == step
        expected = 0.75 * expected + 0.25 * sum(map(reward_of, batch)) / 8
    assert list(rows[0])[-4:] == ["group", "rendered_prompt", "over_baseline", "batch"]
    for text in ("held-out accuracy", "final_model", "report.html", "2 steps, "):
        assert text in out.getvalue(), text
    config = load(recipe=result.run.config)
    assert config.objective.name == "own_objective:RunningBaseline"
    assert config.objective.settings == {"decay": 0.75, "start": 0.25}


@pytest.mark.slow
def test_a_stopped_run_resumes_as_if_it_had_not_stopped(tiny_model: str, tmp_path: Path) -> None:
    """By the same call, and by the command, which finds the class by its name."""
    settings = {**TINY, "model.name": tiny_model, "output_dir": str(tmp_path), "rewards.funcs": ["format", "length"]}

    def train(name: str, objective: Any, **more: Any) -> Any:
        return covey.train(overrides={**settings, "run_name": name, **more}, objective=objective)

    straight = train("straight", baseline(decay=0.9)).run.root
    assert len({row["train/objective/baseline"] for row in read_metrics(straight / "metrics.jsonl")[1:]}) == 4
    assert train("stopped", baseline(decay=0.9), stop_after_steps=2).finished is False
    with pytest.raises(RunDirectoryError, match=r"objective\.settings: \{'decay': 0\.9, .* there, \{'decay': 0\.5,"):
        train("stopped", baseline())
    with pytest.raises(RunDirectoryError, match=r"objective\.name: own_objective:RunningBaseline there, grpo now"):
        train("stopped", None)
    assert train("stopped", baseline(decay=0.9), stop_after_steps=1).step == 3
    config = tmp_path / "stopped" / "config.yaml"
    assert main(["train", "--config", str(config), f"output_dir={tmp_path}", "run_name=stopped"]) == 0
    assert_same(tmp_path / "stopped", straight)


@pytest.mark.slow
def test_by_name_with_settings(tiny_model: str, tmp_path: Path) -> None:
    """The same run as with the object."""
    file = Path(__file__).parents[1] / "support" / "own_objective.py"
    settings = {**TINY, "model.name": tiny_model, "output_dir": str(tmp_path), "training.max_steps": 2}
    named = {"objective.name": f"{file}:RunningBaseline", "objective.settings": {"decay": 0.9}}
    covey.train(overrides={**settings, **named, "run_name": "named"})
    covey.train(overrides={**settings, "run_name": "given"}, objective=baseline(decay=0.9))
    assert_same(tmp_path / "named", tmp_path / "given")


@pytest.mark.slow
def test_one_of_coveys_is_the_run_of_its_name(tiny_model: str, tmp_path: Path) -> None:
    settings = {**TINY, "model.name": tiny_model, "output_dir": str(tmp_path), "training.max_steps": 1}
    given = covey.train(overrides={**settings, "run_name": "given"}, objective=MaxEnt(tau=0.7))
    keys = {"objective.name": "maxent", "objective.maxent_tau": 0.7}
    named = covey.train(overrides={**settings, **keys, "run_name": "named"})
    assert load(recipe=given.run.config).objective == load(recipe=named.run.config).objective
    assert_same(given.run.root, named.run.root)
    weights = [row["maxent_weight"] for row in read_completions(given.run.completions)]
    assert [sum(weights[:4]), sum(weights[4:])] == pytest.approx([1, 1])


def test_mistakes_are_found_before_the_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(*_: Any) -> Any:
        raise AssertionError("the model was looked for")

    monkeypatch.setattr("covey.training.examination.check_model", loads)
    own = {**TINY, "output_dir": str(tmp_path), "objective.name": "own_objective:RunningBaseline"}
    with pytest.raises(ConfigError, match=r"objective\.settings\.deacy is not .* Did you mean decay\? \(Set "):
        covey.train(overrides={**own, "objective.settings": {"deacy": 1.0}})
    with pytest.raises(ConfigError, match=r"objective\.settings\.decay=slow has the wrong type: it must be a number"):
        covey.train(overrides={**own, "objective.settings": {"decay": "slow"}}, objective=RunningBaseline)
    with pytest.raises(ConfigError, match="of type dict has no method advantages"):
        covey.train(overrides=own, objective={})  # type: ignore[arg-type]

    class Picky(GRPO):
        def for_run(self, *, max_completion_length: int, **_: Any) -> Any:
            raise ConfigError(f"not for {max_completion_length} tokens")

    with pytest.raises(ConfigError, match="not for 8 tokens"):
        covey.train(overrides=TINY, objective=Picky())
    monkeypatch.undo()  # doctor goes on to the model
    words = ["objective.name=own_objective:RunningBaseline", "objective.settings={deacy: 1}", "dataset=arithmetic"]
    found = {finding.check: finding for finding in examine(load([*words, "dataset.train_size=64"]))}
    assert "objective.settings.deacy" in found["objective"].result
    assert not list(tmp_path.iterdir())


def test_naming_a_file_does_not_load_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('loaded')")
    assert load([f"objective.name={tmp_path}/mine.py:Mine"]).objective.built_in is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["objective.name=maxnt"], r"objective\.name=maxnt is not an objective\. Did you mean maxent\?"),
        (["objective.name=mine.py:"], r"=mine\.py: is not an objective.* file\.py:Class or package\.module:Class"),
        (
            ["objective=maxent", "objective.settings={tau: 1}"],
            r"settings=.* which has objective\.maxent_tau, .*leave it",
        ),
        (["objective.settings={tau: 1}"], "objective.name=grpo, which has no settings: leave it out"),
        (
            ["objective.name=a.py:B", "objective.maxent_tau=1"],
            r"maxent_tau=1 belongs to objective=maxent, .*name=a\.py:B",
        ),
    ],
)
def test_the_config_refuses(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(words)


# -- In a script's trainer


class Kept(Objective):
    """Not storable."""

    def advantages(self, rewards_PG: torch.Tensor, mask_PG: torch.Tensor, **_: Any) -> Any:
        return rewards_PG * 0, {}, {"variety": rewards_PG}

    def state_dict(self) -> Any:
        return {"inside": [{1, 2}]}

    def load_state_dict(self, state: Any) -> None: ...


def test_state_that_cannot_be_stored(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"of the objective Kept\['inside'\]\[0\] holds .*type set, which"):
        build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=2, more={"objective": Kept()})


def test_a_column_under_the_name_of_a_reward(tiny_model: str, tmp_path: Path) -> None:
    @dataclass
    class Variety(Kept):
        state_dict = load_state_dict = None  # type: ignore[assignment]

    trainer = build_trainer(
        GRPOTrainer, tiny_model, tmp_path, prompts=2, more={"objective": Variety()}, max_steps=1, save_strategy="no"
    )
    with pytest.raises(
        TrainingError, match="The objective Variety returned the column 'variety', a name that a reward"
    ):
        trainer.train()


@pytest.mark.parametrize("stop", [1, 3])
def test_state_and_columns_are_in_a_checkpoint(tiny_model: str, tmp_path: Path, stop: int) -> None:
    """Each generation batch is used for two steps, so a checkpoint may lie in the middle of one."""

    def run(folder: Path, checkpoint: Path | None = None) -> Any:
        settings = {"max_steps": 4, "save_steps": 1, "num_iterations": 2, "loss_type": "grpo"}
        more = {"objective": baseline(decay=0.9)}
        trainer = build_trainer(GRPOTrainer, tiny_model, folder, prompts=6, more=more, **settings)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return trainer

    straight = run(tmp_path / "straight")
    resumed = run(tmp_path / "resumed", tmp_path / "straight" / f"checkpoint-{stop}")
    assert resumed.latest_completions == straight.latest_completions
    assert set(straight.latest_completions["batch"]) == {2}
    expected, found = (
        load_file(tmp_path / name / "checkpoint-4/model.safetensors") for name in ("straight", "resumed")
    )
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    stored = torch.load(tmp_path / "straight" / "checkpoint-1" / "progress_0.pt", weights_only=True)
    assert stored["objective_state"]["batches"] == 1
    assert len(stored["objective_columns"]["over_baseline"]) == 4
    assert json.dumps(stored["objective_columns"])
