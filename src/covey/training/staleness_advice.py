"""The advice of `covey doctor` on `training.staleness`: by measured times, and by what both sides share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from covey.config import Config
from covey.config.vllm import is_elsewhere
from covey.runlog.overlap import Round, expected
from covey.training.checks.findings import Mark, PreflightFinding

CHECK = "staleness"
_TRIED = (1, 2, 4)
_WORTH = 1.1
"""How many times as fast it has to be to be advised: stale completions cost accuracy."""
_ENOUGH = 1.02
"""A larger staleness has to be as many times as fast as a smaller one."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a run can use on this machine."""

    gpus: int
    cores: int

    def shared(self, config: Config | None = None) -> str | None:
        """What generation and learning both need here; None where each can have hardware of its own.

        Args:
            config: the run; None for one with Covey's own engine.
        """
        if config is not None and config.rollout.own_engine is not None:
            return None
        if config is not None and config.training.use_vllm and is_elsewhere(config):
            return None
        if self.gpus == 0 or (config is not None and config.training.use_cpu):
            return "the one core of this machine" if self.cores == 1 else f"the {self.cores} cores of this machine"
        return "the one GPU of this machine" if self.gpus == 1 else None


def advise(config: Config, hardware: Hardware, rounds: Sequence[Round] = ()) -> PreflightFinding | None:
    """The advice for a run.

    Args:
        rounds: measured ones; without them, advice only for a run that is asynchronous and should not be.
    """
    staleness, shared = int(config.training.staleness), hardware.shared(config)
    if not rounds and not (staleness and shared):
        return None
    if not rounds:
        return _found(staleness, 0, f"generation and learning share {shared}, which would idle in neither")
    best, why = advised(rounds, shared)
    return _found(staleness, best, why)


def advised(rounds: Sequence[Round], shared: str | None) -> tuple[int, str]:
    """The staleness for measured rounds, and the reason.

    Args:
        rounds: at least one.
        shared: see `Hardware.shared`.
    """
    turns = expected(rounds, 0)
    ahead = {staleness: turns.seconds / expected(rounds, staleness).seconds for staleness in _TRIED}
    best = next(staleness for staleness in _TRIED if ahead[staleness] * _ENOUGH >= max(ahead.values()))
    times = f"{turns.sampling:.0%} of a round is generation, {turns.learning:.0%} learning"
    if shared is not None:
        return 0, (
            f"{times}; side by side they would be at most {ahead[best]:.2f} times as fast, but both need {shared}, of "
            "which nothing is idle while they take turns"
        )
    if ahead[best] < _WORTH:
        return (
            0,
            f"{times}; side by side they would be {ahead[best]:.2f} times as fast, too little for stale completions",
        )
    return best, f"{times}; side by side, each on hardware of its own, they would be {ahead[best]:.2f} times as fast"


def _found(given: int, best: int, why: str) -> PreflightFinding:
    if given and not best:
        return PreflightFinding(Mark.WARNING, CHECK, why, "Set training.staleness=0.")
    advice = f"training.staleness={best}" if best else "training.staleness=0 (take turns)"
    if best and not given:
        return PreflightFinding(
            Mark.NOTE, CHECK, why, f"Consider {advice}; `covey launch --plan --times RUN` divides the GPUs."
        )
    return PreflightFinding(Mark.FINE, CHECK, f"{why}: {advice}")
