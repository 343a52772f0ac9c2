"""Rounds that an engine has written ahead, in the trainer: which weights wrote them, exact resumes, what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import stopped_runs
from covey import GRPOTrainer
from covey.errors import ConfigError, EngineError
from covey.rollout import Capabilities
from covey.training.asynchronous.schedule import Schedule
from covey.training.asynchronous.settings import Asynchronous
from fake_engine import FakeEngine
from stepping_engine import SteppingEngine
from stopped_runs import ACCUMULATED, REUSED, SPARSE_LOGS, STEPS, contents, logged
from trainers import build_trainer

LONG: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "steps_per_generation": 4,
    "gradient_accumulation_steps": 2,
}
SHORT: dict[str, Any] = {"steps_per_generation": 1, "gradient_accumulation_steps": 2}


def run(
    model: str,
    folder: Path,
    settings: dict[str, Any],
    stop: int | None = None,
    resume: Path | None = None,
    asynchronous: Asynchronous | None = None,
    engine: Any = None,
) -> GRPOTrainer:
    """A run of seven steps over six prompts, two a round, whose engine writes by a hash of the weights."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    engine = engine or SteppingEngine(vocabulary=len(tokenizer) // 8, end=tokenizer.eos_token_id)
    more = {"engine": engine, "asynchronous": asynchronous or Asynchronous(1)}
    trainer = build_trainer(
        GRPOTrainer,
        model,
        folder,
        prompts=6,
        more=more,
        **{"max_steps": STEPS, "save_steps": 100, "per_device_train_batch_size": 8, **settings},
    )
    if stop is not None:
        trainer.add_callback(stopped_runs.StopAfter(stop))
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    assert isinstance(trainer, GRPOTrainer)
    return trainer


def same(found: Path, expected: Path) -> None:
    ours, theirs = contents(found), contents(expected)
    for part in ("weights", "moments"):
        assert all(torch.equal(ours[part][name], tensor) for name, tensor in theirs[part].items()), part
    assert torch.equal(ours["random"], theirs["random"])
    assert ours["scheduler"] == theirs["scheduler"]


@pytest.mark.parametrize(
    ("settings", "stops", "staleness"),
    [
        pytest.param(LONG, (1,), 1, id="within-a-round"),
        pytest.param(LONG, (2, 3), 2, id="late-in-a-round", marks=pytest.mark.slow),
        pytest.param(ACCUMULATED, (1, 4), 1, id="accumulated", marks=pytest.mark.slow),
        pytest.param(REUSED, (1, 3), 2, id="reused", marks=pytest.mark.slow),
        pytest.param(SPARSE_LOGS, (2,), 3, id="sparse-logs", marks=pytest.mark.slow),
        pytest.param(SHORT, (1, 5), 3, id="several-rounds-a-step", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_equals_one_that_never_stopped(
    tiny_model: str, tmp_path: Path, settings: dict[str, Any], stops: tuple[int, ...], staleness: int
) -> None:
    ahead = Asynchronous(staleness)
    straight = run(tiny_model, tmp_path / "straight", settings, asynchronous=ahead)
    whole = Schedule.read(tmp_path / "straight" / "schedule.jsonl")
    for stop in stops:
        folder = tmp_path / str(stop)
        run(tiny_model, folder, settings, stop, asynchronous=ahead)
        found = run(tiny_model, folder, settings, None, folder / f"checkpoint-{stop}", ahead)
        same(folder / f"checkpoint-{STEPS}", tmp_path / "straight" / f"checkpoint-{STEPS}")
        assert logged(found) == logged(straight)
        assert found.latest_completions == straight.latest_completions
        assert Schedule.read(folder / "schedule.jsonl").rounds == whole.rounds
    assert all("staleness/mean" in row for row in logged(straight))
    assert max(row["staleness/max"] for row in logged(straight)) == min(staleness, max(whole.rounds))


def test_a_round_is_written_by_the_weights_of_its_version(tiny_model: str, tmp_path: Path) -> None:
    engine = SteppingEngine(vocabulary=40)
    trainer = run(tiny_model, tmp_path, {"save_steps": 1}, asynchronous=Asynchronous(2), engine=engine)
    assert engine.loaded == [0, 1, 2, 3, 4]  # of seven rounds, each is a step
    expected = SteppingEngine()
    saved = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    expected.sync(saved.items(), 4)
    assert engine.weights == expected.weights
    assert [call["version"] for call in engine.calls] == [0, 0, 0, 1, 2, 3, 4]
    assert [row["staleness/mean"] for row in logged(trainer)] == [0, 1, 2, 2, 2, 2, 2]
    assert trainer.latest_completions["weight_version"] == [4] * 8
    assert not (tmp_path / "rollouts").exists()


def test_completions_that_arrive_are_trained_on_with_their_own_prompts(tiny_model: str, tmp_path: Path) -> None:
    trainer = run(tiny_model, tmp_path, {}, asynchronous=Asynchronous(2, "arrival", "continue"))
    recorded = Schedule.read(tmp_path / "schedule.jsonl")
    assert sum(len(groups) for groups in recorded.rounds.values()) == 2 * STEPS
    replayed = run(
        tiny_model, tmp_path / "again", {}, asynchronous=Asynchronous(2, "arrival", "continue", recorded.path)
    )
    same(tmp_path / "again" / f"checkpoint-{STEPS}", tmp_path / f"checkpoint-{STEPS}")
    assert replayed.latest_completions == trainer.latest_completions


def test_an_error_of_the_engine_ends_the_training(tiny_model: str, tmp_path: Path) -> None:
    engine = SteppingEngine()

    def fails(call: int) -> None:
        if call == 2:
            raise OSError("no more paper")

    engine.fails = fails
    with pytest.raises(EngineError, match=r"SteppingEngine.*no more paper"):
        run(tiny_model, tmp_path, {}, engine=engine)
    assert engine.closed.is_set()
    assert not any(thread.name == "rollouts" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("settings", "more", "named"),
    [
        ({"vllm_importance_sampling_correction": False}, {}, "vllm_importance_sampling_correction"),
        ({}, {"resample_groups": 2}, "resample_groups"),
        ({}, {"engine": "no log-probs"}, "Capabilities.logprobs"),
    ],
)
def test_what_cannot_be_combined_is_refused(
    tiny_model: str, tmp_path: Path, settings: dict[str, Any], more: dict[str, Any], named: str
) -> None:
    if "engine" in more:
        more = {"engine": FakeEngine(tiny_model, None)}
    more |= {"asynchronous": Asynchronous(1)}
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=6, more=more, max_steps=1, **settings)
    with pytest.raises(ConfigError, match=named):
        trainer.train()


def test_an_engine_must_be_able_to_go_on(tiny_model: str, tmp_path: Path) -> None:
    class Whole(SteppingEngine):
        capabilities = Capabilities(logprobs=True, seeded=True, row_limits=True, row_seeds=True)

    with pytest.raises(ConfigError, match=r"async_partial=continue.*Capabilities.interruptible"):
        run(tiny_model, tmp_path, {}, asynchronous=Asynchronous(1, partial="continue"), engine=Whole())


def test_in_turns_there_is_no_thread(tiny_model: str, tmp_path: Path) -> None:
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=6, max_steps=1)
    trainer.train()
    assert trainer.asynchronous is None
    assert not any(thread.name == "rollouts" for thread in threading.enumerate())
    assert not (tmp_path / "schedule.jsonl").exists()
    assert not any("staleness" in name for row in trainer.state.log_history for name in row)
