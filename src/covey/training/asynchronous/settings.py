"""What a run asks for with `training.staleness`, and what that cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from covey.config import Config
from covey.errors import ConfigError
from covey.runlog.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """How completions are written ahead of the steps that train on them."""

    staleness: int
    """Generation rounds that they may be behind, at least 1."""
    order: str = "sampler"
    """`training.async_order`."""
    partial: str = "finish"
    """`training.async_partial`."""
    schedule: Path | None = None
    """The recorded schedule to replay."""

    def __post_init__(self) -> None:
        """Raise a `ConfigError` for a value that is not possible: no config has checked them."""
        if self.staleness < 1:
            raise ConfigError(
                f"staleness={self.staleness} is not possible: it must be at least 1; asynchronous=None takes turns."
            )
        for name, given, possible in (
            ("order", self.order, ("sampler", "arrival")),
            ("partial", self.partial, ("finish", "continue")),
        ):
            if given not in possible:
                raise ConfigError(f"{name}={given} is not possible: it must be {' or '.join(possible)}.")

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """What the config asks for; None where generation and learning take turns."""
        training = config.training
        if training.staleness == 0:
            return None
        schedule = None if training.schedule is None else Path(training.schedule).expanduser()
        return cls(training.staleness, training.async_order, training.async_partial, schedule)


def check_asynchronous(config: Config) -> None:
    """Check that the settings go together, before anything is loaded.

    Raises:
        ConfigError: they do not; with the reason.
    """
    training = config.training
    if training.staleness == 0:
        if training.schedule is not None:
            raise ConfigError(
                f"training.schedule={training.schedule} replays an asynchronous run, and training.staleness=0 "
                "generates and learns in turns: set training.staleness to that of the recorded run."
            )
        return
    for found in _conflicts(config):
        raise ConfigError(f"training.staleness={training.staleness} cannot be combined with {found}")
    if training.schedule is not None:
        from covey.training.asynchronous.schedule import Schedule

        replayed = Path(training.schedule).expanduser()
        own = RunDirectory(Path(config.output_dir) / (config.run_name or "")).schedule
        if config.run_name is not None and own.resolve() == replayed.resolve():
            raise ConfigError(
                f"training.schedule={replayed} is the file that this run writes its own schedule to: choose another "
                "run_name for the replay."
            )
        Schedule.read(replayed).check(
            {
                "training.staleness": training.staleness,
                "training.async_order": training.async_order,
                "training.async_partial": training.async_partial,
                "seed": config.seed,
            }
        )


def _conflicts(config: Config) -> Iterator[str]:
    """What rules it out, each with the reason and what to do instead."""
    training, environment = config.training, config.environment
    off = "or set training.staleness=0."
    if environment.rollout_func is not None:
        yield (
            "environment.rollout_func: your function generates within the step, by the trainer that it is given. Leave "
            f"it out, {off}"
        )
    if environment.used:
        yield (
            "tools or an environment: their episodes take turns with the model, within the step that trains on them. "
            f"Leave environment.factory and environment.tools out, {off}"
        )
    if training.use_vllm and training.vllm_mode == "colocate":
        yield (
            "training.vllm_mode=colocate: this vLLM shares the trainer's GPU and process, so the two take turns. Set "
            f"training.vllm_mode=server, with GPUs of its own (covey launch --plan), {off}"
        )
    if training.use_transformers_continuous_batching:
        yield (
            "training.use_transformers_continuous_batching=true: it generates by the model that is being trained, and "
            f"returns no log-probabilities. Leave it out, {off}"
        )
    if config.objective.resample_groups:
        yield (
            f"objective.resample_groups={config.objective.resample_groups}: which groups are replaced is known only "
            "once they are rewarded, in the step, and the prompts of later rounds are already being written. Set it "
            f"to 0, {off}"
        )
    if not training.vllm_importance_sampling_correction:
        yield (
            "training.vllm_importance_sampling_correction=false: the completions are those of older weights, and "
            f"without the correction the ratio of the two would silently be 1. Leave it out, {off}"
        )
    if training.schedule is not None and (training.use_vllm or config.rollout.own_engine is not None):
        yield (
            f"training.schedule={training.schedule} and another engine than Covey's own: only that computes the same "
            "numbers twice. Leave out training.use_vllm and rollout.engine, or the schedule."
        )
