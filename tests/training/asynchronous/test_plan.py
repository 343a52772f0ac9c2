"""Rounds ahead of the sampler: the rows of the trainer's sampler, and seeds that depend on nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from trl.trainer.utils import RepeatSampler

from covey.training.asynchronous.rounds import RoundPlan, rounds_in, seeds_of
from covey.training.prompt_order import OwnOrder


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("first", [0, 1, 4, 7])
def test_the_rounds_are_those_of_the_sampler(shuffle: bool, first: int) -> None:
    size, prompts, rounds = 7, 2, 10  # three rounds in a pass, one row left over
    sampler: Any = RepeatSampler(
        range(size), mini_repeat_count=3, batch_size=prompts, repeat_count=2, shuffle=shuffle, seed=5
    )
    sampler = sampler if shuffle else OwnOrder(sampler)
    expected: list[list[int]] = []
    while len(expected) < rounds:
        drawn = list(sampler)  # each round twice, each prompt three times
        expected += [drawn[at : at + 3 * prompts : 3] for at in range(0, len(drawn), 2 * 3 * prompts)]
    plan = RoundPlan(size, prompts, shuffle=shuffle, seed=5, first=first)
    assert [plan.take() for _ in range(rounds - first)] == expected[first:rounds]


@pytest.mark.parametrize(
    ("steps", "accumulation", "generate_every", "per_pass", "rounds"),
    [
        (6, 1, 1, 3, 6),
        (6, 2, 1, 4, 12),  # two rounds per step
        (6, 1, 4, 3, 2),  # four steps per round: 6 micro-batches are in rounds 0 and 1
        (3, 2, 1, 3, 5),  # a pass of three micro-batches: steps of two, one and two
        (4, 2, 1, 3, 6),
    ],
)
def test_rounds_of_a_run(steps: int, accumulation: int, generate_every: int, per_pass: int, rounds: int) -> None:
    found = rounds_in(steps, accumulation=accumulation, generate_every=generate_every, rounds_per_pass=per_pass)
    assert found == rounds


def test_seeds_are_different_everywhere_and_the_same_again() -> None:
    many = [seed for run in range(3) for number in range(20) for seed in seeds_of(run, number, 50)]
    assert len(set(many)) == len(many)
    assert all(0 <= seed < 2**63 for seed in many)
    assert seeds_of(1, 7, 3) == seeds_of(1, 7, 50)[:3]
