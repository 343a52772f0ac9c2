"""The settings of objectives that compare the completions of a group: by answer modes, or by likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from covey.config.groups.base import option
from covey.config.groups.objective.base import LinearSettings


@dataclass(frozen=True, kw_only=True)
class UniqueSettings(LinearSettings):
    """The settings of uniqueness-aware weights."""

    NAME: ClassVar[str] = "unique"

    alpha: float = option(1.0, low=0)
    """Exponent of a mode's share among the right answers: 0 is Dr. GRPO, with 1 all modes weigh the same in total."""


@dataclass(frozen=True, kw_only=True)
class DarlingSettings(LinearSettings):
    """The settings of DARLING."""

    NAME: ClassVar[str] = "darling"

    floor: float = option(0.0, low=0, high=1)
    """The least factor of diversity, so that groups with one mode keep a part of their reward."""


@dataclass(frozen=True, kw_only=True)
class SEEDSettings(LinearSettings):
    """The settings of SEED-GRPO."""

    NAME: ClassVar[str] = "seed"

    alpha: float = option(1.0, low=0)
    """Sensitivity to the entropy over modes: at the highest entropy, a prompt counts 1 / (1 + alpha) times."""


@dataclass(frozen=True, kw_only=True)
class UnlikelySettings(LinearSettings):
    """The settings of the unlikeliness reward."""

    NAME: ClassVar[str] = "unlikely"

    penalty: float = option(0.25, low=0, high=1)
    """The share of its reward that the likeliest completion of a group loses, nearly."""
