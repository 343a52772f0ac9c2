"""The group `objective.kl`: control of the weight of the KL divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from covey.config.groups.base import Group, option

_ADAPTIVE = "objective.kl.controller == 'adaptive'"


@dataclass(frozen=True, kw_only=True)
class KLConfig(Group):
    """Whether the weight β of the KL divergence is fixed or follows a target."""

    PREFIX: ClassVar[str] = "objective.kl."

    controller: str = option("fixed", choices=("fixed", "adaptive"))
    """`fixed` keeps β at `training.beta`; `adaptive` starts there and adjusts it to hold the KL at `kl_target`."""
    kl_target: float = option(0.07, above=0, live=_ADAPTIVE)
    """Target of `adaptive`: the KL divergence per completion token."""
    kl_horizon: int = option(10_000, low=1, live=_ADAPTIVE)
    """Horizon of `adaptive`: the number of completions over which β could change by its full step."""
    kl_ctl_step_size: float = option(0.2, above=0, live=_ADAPTIVE)
    """Largest relative deviation from the target that `adaptive` reacts to."""
    stop_above: float | None = option(None, above=0)
    """Ends the run, with its last good checkpoint named, when a step's KL is above this; null never does."""
