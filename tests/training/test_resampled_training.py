"""Training with resampling: a step is as if the final batch had been drawn in the first place.

A plain step on that batch has the same gradient and the same row of metrics; nothing changes where every group has
signal; a resumed run is the same run; the number of processes does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from covey import GRPOTrainer
from covey.objective import MaxEnt
from forked import run_two
from resampled import PLAIN, asked_numbers, numbers_alike, resampled_trainer
from stopped_runs import ACCUMULATED, REUSED, assert_resume_is_exact, logged, run
from trainers import build_trainer, variety


def row_of(trainer: GRPOTrainer) -> dict[str, Any]:
    """What was logged, but for times and what resampling adds."""
    (row,) = [row for row in trainer.state.log_history if "loss" in row]
    return {name: v for name, v in row.items() if "time" not in name and not name.startswith("resampling/")}


@pytest.mark.parametrize("objective", [None, MaxEnt(fit="listwise")], ids=["grpo", "maxent"])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_a_step_is_that_of_the_final_batch(
    tiny_model: str, tmp_path: Path, objective: MaxEnt | None, loss_type: str
) -> None:
    """Prompts 0, 2 and 3 have no signal; 3 and 4 are drawn for 0 and 2, and 5 for 3."""
    settings: dict[str, Any] = {"loss_type": loss_type, "beta": 0.05, "scale_rewards": "batch"}
    more = {"objective": objective}
    trainer = resampled_trainer(tiny_model, tmp_path / "a", range(7), 4, silent={0, 2, 3}, more=more, **settings)
    trainer.train()
    plain = resampled_trainer(tiny_model, tmp_path / "b", [4, 1, 5], 0, silent={0, 2, 3}, more=more, **settings)
    plain.train()

    assert asked_numbers(trainer) == [[0, 1, 2], [3, 4], [5]]
    assert trainer.gradient.keys() == plain.gradient.keys()
    assert any(gradient.abs().max() > 1e-4 for gradient in plain.gradient.values())
    for name, gradient in plain.gradient.items():
        assert torch.equal(trainer.gradient[name], gradient), name
    found, expected = row_of(trainer), row_of(plain)
    assert found.pop("epoch") < expected.pop("epoch")  # the data differ in size
    generated = sum(len(prompt) + len(ids) for part in trainer.rounds for prompt, ids in part)
    trained = sum(len(prompt) + len(ids) for part in plain.rounds for prompt, ids in part)
    assert (found.pop("num_tokens"), expected.pop("num_tokens")) == (generated, trained)
    assert trainer.state.num_input_tokens_seen == generated  # the next step counts on from here
    assert numbers_alike(found, expected)
    assert trainer.latest_completions == plain.latest_completions
    logged = next(row for row in trainer.state.log_history if "loss" in row)
    assert logged["frac_reward_zero_std"] == 0
    assert logged["resampling/groups_without_signal"] == 2
    assert logged["resampling/groups_drawn"] == 3
    assert logged["resampling/completions"] == 24
    assert logged["resampling/tokens"] == generated - trained > 0


def test_where_every_group_has_signal_nothing_changes(tiny_model: str, tmp_path: Path) -> None:
    """The same prompts in the same order over several passes, the same random numbers, the same weights."""
    rows, weights = [], []
    for most in (0, 2):
        trainer = build_trainer(
            GRPOTrainer,
            tiny_model,
            tmp_path / str(most),
            prompts=7,
            reward=length_and_place,
            more={"resample_groups": most},
            max_steps=6,
            gradient_accumulation_steps=2,
            mask_truncated_completions=False,
        )
        trainer.train()
        rows.append([{k: v for k, v in row.items() if not k.startswith("resampling/")} for row in logged(trainer)])
        weights.append({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
    assert rows[0] == rows[1]
    assert len({row["loss"] for row in rows[0]}) > 1
    assert all(torch.equal(weights[1][name], tensor) for name, tensor in weights[0].items())


def length_and_place(completions: list[Any], **_: Any) -> list[float]:
    """Never equal within a group."""
    lengths = variety(completions)
    return [length + 0.01 * place for place, length in enumerate(lengths)]


def equal_when_odd(prompts: list[Any], completions: list[Any], log_extra: Callable[..., None], **_: Any) -> list[float]:
    """The same for all completions of every second question."""
    log_extra("note", [str(completion) for completion in completions])
    scored = zip(prompts, length_and_place(completions), strict=True)
    return [1.0 if int(prompt[-1]["content"].split()[2]) % 2 else reward for prompt, reward in scored]


RESAMPLED: dict[str, Any] = {"reward": equal_when_odd, "more": {"resample_groups": 3}}


@pytest.mark.parametrize(
    ("settings", "stops"),
    [(ACCUMULATED, (1, 3)), (REUSED, (1, 2, 5))],
    ids=["accumulation", "reused-generations"],
)
def test_stop_and_go_equals_the_straight_run(
    tiny_model: str, tmp_path: Path, settings: dict[str, Any], stops: tuple[int, ...]
) -> None:
    assert_resume_is_exact(tiny_model, tmp_path, {**settings, **RESAMPLED}, stops)
    trainer = run(tiny_model, tmp_path / "again", {**settings, **RESAMPLED}, None, None)
    assert sum(row.get("resampling/groups_replaced", 0) for row in logged(trainer)) > 0
    # What a reward logged about a completion stays in its row.
    columns = trainer.latest_completions
    assert columns["note"] == [str(completion) for completion in columns["completion"]]


def test_evaluation_draws_nothing(tiny_model: str, tmp_path: Path) -> None:
    trainer = resampled_trainer(tiny_model, tmp_path, range(6), 3, silent={0, 1}, more={}, per_device_eval_batch_size=8)
    trainer.train()
    assert trainer._resampler is not None
    place, rounds = trainer._resampler.cursor, len(trainer.rounds)
    row = trainer.evaluate(eval_dataset=trainer.train_dataset.select([1]))
    assert trainer._resampler.cursor == place
    assert len(trainer.rounds) == rounds + 1
    assert row["eval_frac_reward_zero_std"] == 1
    assert not any("resampling" in name for name in row)


@pytest.mark.slow
def test_two_processes_take_the_step_of_one(tiny_model: str, tmp_path: Path) -> None:
    """Three groups of eight over two processes: the middle group is on both, and so is a group that moves."""
    run_two("resampled.py", tiny_model, tmp_path, folder=tmp_path)
    found = torch.load(tmp_path / "two.pt", weights_only=True)
    alone = resampled_trainer(tiny_model, tmp_path / "alone", range(7), 4, silent={0, 2, 3}, more=PLAIN)
    alone.train()
    for name, gradient in alone.gradient.items():
        assert torch.allclose(found["gradient"][name], gradient, rtol=1e-4, atol=1e-6), name
    row = next(row for row in alone.state.log_history if "loss" in row)
    compared = [name for name in row if name.startswith(("reward", "resampling/", "completions/", "num_tokens"))]
    assert len(compared) > 10
    for name in compared:
        assert found["row"][name] == pytest.approx(row[name], rel=1e-5), name
