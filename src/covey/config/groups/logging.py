"""The group `logging`: what is logged and shown while training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from covey.config.groups.base import Group, option

_IN_WANDB = "'wandb' in trackers"


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Group):
    """What is logged and shown while training. Trackers are set by `training.report_to`, or by a mode of W&B."""

    PREFIX: ClassVar[str] = "logging."

    completions_every_steps: int = option(1, low=0)
    """Write the completions of every so many steps into the run directory; 0 means never."""
    sample_completions: int = option(3, low=0)
    """Completions shown in the live display."""
    sampler_gap: bool = option(
        False, live="not training.use_vllm or not training.vllm_importance_sampling_correction or truncates"
    )
    """Measure at every generation how far the sampler's log-probs are from the trainer's (`sampling/logp_gap`), where
    that needs a forward pass of its own; where it does not, as with vLLM, it is always measured."""
    run_name: str | None = option(None, live="trackers")
    """Name of the run in trackers; null means `run_name`."""
    project: str | None = option(None, live="trackers")
    """Project that trackers log to (W&B, Trackio); null leaves it to the tracker."""
    entity: str | None = option(None, live=_IN_WANDB)
    """User or team that the W&B project belongs to."""
    group: str | None = option(None, live=_IN_WANDB)
    """Group of W&B runs that this one belongs to."""
    tags: tuple[str, ...] = option((), live=_IN_WANDB)
    """Tags of the run in W&B."""
    notes: str | None = option(None, live=_IN_WANDB)
    """Notes on the run in W&B."""
    mode: str = option("online", choices=("online", "offline", "disabled"))
    """Whether trackers upload their logs, keep them in files, or do nothing. `online` and `offline` turn W&B on where
    no tracker is named."""
