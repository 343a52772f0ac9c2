"""The scheduler of asynchronous training around a simulated engine, next to the ideal overlap of the same work."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from covey.rollout.engine import SamplingSettings
from covey.training.asynchronous.pool import Policy
from covey.training.asynchronous.rounds import Rollouts, seeds_of
from overlap.ideal import continued, finished, makespan
from overlap.simulated import Lengths, SimulatedEngine

PROMPT, GROUP = 16, 8
"""Tokens of a prompt, and completions of it."""
JITTER = 0.1
"""Standard deviation of the logarithm of the seconds of learning."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated."""

    name: str
    ratio: float
    """Seconds of generation to seconds of learning, on average."""
    lengths: Lengths = field(default_factory=Lengths)
    prompts: int = 8
    """Of a round."""
    slots: int = 32
    rounds: int = 24
    token_seconds: float = 1.5e-3
    sync_seconds: float = 0.005
    seed: int = 0

    @property
    def seeds(self) -> list[list[int]]:
        """Of the completions of each round, as `Rollouts` draws them."""
        return [seeds_of(self.seed, number, self.prompts * GROUP) for number in range(self.rounds)]

    @property
    def work(self) -> list[list[float]]:
        """Seconds of each completion, by round."""
        return [[self.lengths.of(seed) * self.token_seconds for seed in seeds] for seeds in self.seeds]

    @property
    def learning(self) -> list[float]:
        """Seconds of learning each round."""
        draw = random.Random(self.seed)
        mean = statistics.fmean(makespan(rows, self.slots) for rows in self.work) / self.ratio
        return [mean * draw.lognormvariate(-(JITTER**2) / 2, JITTER) for _ in range(self.rounds)]

    def engine(self) -> SimulatedEngine:
        """A fresh engine."""
        seconds = {"token_seconds": self.token_seconds, "sync_seconds": self.sync_seconds}
        return SimulatedEngine(self.lengths, prompt=PROMPT, slots=self.slots, **seconds)

    def ideal(self, staleness: int, partial: str) -> float:
        """Seconds of all rounds at best."""
        times = continued if partial == "continue" and staleness else finished
        return times(self.work, self.learning, self.slots, staleness, self.sync_seconds)[-1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated run."""

    case: Case
    staleness: int
    partial: str
    seconds: float
    ideal: float
    sampling: float
    """Share of the time in which the engine worked."""
    mean_staleness: float
    """In rounds, over tokens."""
    oldest: float
    """Rounds between a completion's oldest weights and those of its round, at most."""

    @property
    def efficiency(self) -> float:
        """The ideal time as a share of the measured one."""
        return self.ideal / self.seconds


class _NoWeights:
    """A snapshot of nothing."""

    def load(self, engine: Any, version: int) -> None:
        engine.sync((), version)

    def drop(self) -> None:
        pass


def simulate(case: Case, staleness: int, partial: str) -> Outcome:
    """Run a case."""
    run = _side_by_side if staleness else _in_turns
    seconds, busy, mean, oldest = run(case, staleness, partial)
    return Outcome(case, staleness, partial, seconds, case.ideal(staleness, partial), busy / seconds, mean, oldest)


def _in_turns(case: Case, staleness: int, partial: str) -> tuple[float, float, float, float]:
    engine, prompts = case.engine(), [[1] * PROMPT] * (case.prompts * GROUP)
    began = time.perf_counter()
    for version, (seeds, seconds) in enumerate(zip(case.seeds, case.learning, strict=True)):
        engine.sync((), version)
        engine.generate(prompts, _sampling(case), seed=seeds)
        time.sleep(seconds)
    return time.perf_counter() - began, engine.busy, 0.0, 0.0


def _side_by_side(case: Case, staleness: int, partial: str) -> tuple[float, float, float, float]:
    engine, policy = case.engine(), Policy(staleness, case.prompts, partial=partial)
    rollouts = Rollouts(engine, _sampling(case), policy, group_size=GROUP, seed=case.seed)
    behind, oldest, prompts = list[float](), 0, [[1] * PROMPT] * case.prompts
    began = time.perf_counter()
    try:
        for number, seconds in enumerate(case.learning):
            rollouts.publish(number, _NoWeights())
            while rollouts.next_round <= min(number + staleness, case.rounds - 1):
                rollouts.submit(rollouts.next_round, prompts)
            rows = [row for group in rollouts.take(number) for row in group.rows]
            behind += [row.staleness(number) for row in rows]
            oldest = max(oldest, *(number - version for row in rows for version, _ in row.versions))
            time.sleep(seconds)
        taken = time.perf_counter() - began
    finally:
        rollouts.close()
    return taken, engine.busy, statistics.fmean(behind), oldest


def _sampling(case: Case) -> SamplingSettings:
    return SamplingSettings(max_completion_length=case.lengths.most, logprobs=True)


CASES = (
    Case("balanced", 1.0),
    Case("generation takes twice as long", 2.0),
    Case("learning takes twice as long", 0.5),
    Case("equal lengths", 1.0, Lengths(median=100.0, sigma=0.0, stragglers=0.0), prompts=16, rounds=16),
)
SETTINGS = ((0, "finish"), *((staleness, partial) for staleness in (1, 2, 4) for partial in ("finish", "continue")))


def simulate_all(say: Callable[[str], None]) -> Iterator[Outcome]:
    """Run every case with every setting."""
    for case in CASES:
        for staleness, partial in SETTINGS:
            one = simulate(case, staleness, partial)
            say(
                f"{case.name}, N={staleness}, {partial}: {one.seconds:.1f} s, ideal {one.ideal:.1f} s "
                f"({one.efficiency:.1%})"
            )
            yield one
