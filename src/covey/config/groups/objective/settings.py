"""The group `objective`: how rewards become advantages, and what that requires of the rest of the config."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from covey.config.groups.base import Group, both, option
from covey.config.groups.objective.base import ObjectiveSettings
from covey.config.groups.objective.by_modes import DarlingSettings, SEEDSettings, UniqueSettings, UnlikelySettings
from covey.config.groups.objective.kl import KLConfig
from covey.config.groups.objective.maxent import MaxEntSettings
from covey.config.groups.objective.rewards_only import DrGRPOSettings, MaxRLSettings, PassKSettings, QuantileSettings
from covey.config.groups.objective.xdr import XDRSettings
from covey.config.groups.training import TrainingConfig
from covey.config.values import BadKeyError, show

SETTINGS: Mapping[str, type[ObjectiveSettings]] = MappingProxyType(
    {
        kind.NAME: kind
        for kind in (
            *(ObjectiveSettings, MaxEntSettings, DrGRPOSettings, MaxRLSettings, XDRSettings, PassKSettings),
            *(UniqueSettings, DarlingSettings, SEEDSettings, QuantileSettings, UnlikelySettings),
        )
    }
)
"""Covey's objectives and their settings: the field `x` of `maxent` is the key `objective.maxent_x`."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveChoice(Group):
    """Which objective, in front of the settings of the built-in ones."""

    name: str = "grpo"
    """`grpo` leaves TRL's own advantages as they are; `maxent` fits the policy to a maximum-entropy target; `dr_grpo`,
    `maxrl`, `xdr`, `passk`, `unique`, `darling`, `seed`, `quantile` and `unlikely` weigh prompts or completions in
    other ways; your own class is named `file.py:Class` or `package.module:Class`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of your own class, by name, as in `{weight: 0.5}`."""


if TYPE_CHECKING:

    class _WithSettings(ObjectiveChoice):
        def __getattr__(self, name: str) -> Any: ...

else:
    _WithSettings = make_dataclass(
        "_WithSettings",
        [
            (
                f"{name}_{item.name}",
                item.type,
                field(
                    default=item.default,
                    metadata={
                        **item.metadata,
                        "declared": (settings.__name__, item.name),
                        "live": both(f"objective.name == '{name}'", item.metadata.get("live", "")),
                    },
                ),
            )
            for name, settings in SETTINGS.items()
            for item in fields(settings)
        ],
        bases=(ObjectiveChoice,),
        frozen=True,
        kw_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(_WithSettings):
    """How the rewards of a group become advantages."""

    PREFIX: ClassVar[str] = "objective."

    resample_groups: int = option(0, low=0)
    """Most further prompts drawn for one generation batch to replace groups whose rewards are all equal, which give no
    gradient (DAPO's dynamic sampling); 0 keeps every group."""
    kl: KLConfig = field(default_factory=KLConfig)
    """Control of the weight β of the KL divergence, which starts at `training.beta`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        source, colon, attribute = self.name.rpartition(":")
        if self.name not in SETTINGS and not (colon and source.strip() and attribute.strip()):
            near = difflib.get_close_matches(self.name, SETTINGS, n=1)
            guess = f" Did you mean {near[0]}?" if near else ""
            raise BadKeyError(
                "objective.name",
                f"={show(self.name)} is not an objective.{guess} It must be one of {', '.join(SETTINGS)}, or a class "
                "of your own, as file.py:Class or package.module:Class.",
            )
        for name, settings in SETTINGS.items():
            for item in fields(settings) if name != self.name else ():
                value = getattr(self, f"{name}_{item.name}")
                if value != item.default:
                    raise BadKeyError(
                        f"objective.{name}_{item.name}",
                        f"={show(value)} belongs to objective={name}, and this run has objective.name={self.name}: "
                        f"choose objective={name}, or leave it out.",
                    )
        if self.settings and self.name in SETTINGS:
            own = [f"objective.{self.name}_{item.name}" for item in fields(SETTINGS[self.name])]
            raise BadKeyError(
                "objective.settings",
                f"={show(self.settings)} is for a class of your own (objective.name=file.py:Class), and this run has "
                f"objective.name={self.name}, which has {', '.join(own) or 'no settings'}: leave it out.",
            )

    @property
    def built_in(self) -> ObjectiveSettings | None:
        """The settings of the chosen objective; None if it is not one of Covey's."""
        if self.name not in SETTINGS:
            return None
        kind = SETTINGS[self.name]
        return kind(**{item.name: getattr(self, f"{self.name}_{item.name}") for item in fields(kind)})


def check_objective(objective: ObjectiveConfig, training: TrainingConfig) -> None:
    """Check that objective, loss, group size and reference model are compatible.

    Raises:
        BadKeyError: naming the key and what would work.
    """
    if objective.built_in is not None:
        objective.built_in.check_run(
            loss_type=training.loss_type,
            num_generations=training.num_generations or 1,  # null is refused with the geometry
            max_completion_length=training.max_completion_length,
            beta=training.beta,
        )
    if training.beta == 0:
        _check_needs_no_reference(objective)


def groups_per_round(max_prompts: int, num_generations: int, processes: int) -> int:
    """How many groups at a time `objective.resample_groups` draws, divided evenly among the processes.

    Raises:
        BadKeyError: it allows fewer.
    """
    found = processes // math.gcd(processes, num_generations)
    if max_prompts < found:
        raise BadKeyError(
            "objective.resample_groups",
            f"={max_prompts} is too small: {processes} processes can divide groups of {num_generations} completions "
            f"evenly only {found} groups at a time. Set it to {found} or more (multiples of it are used in full), or "
            "to 0 for none.",
        )
    return found


def _check_needs_no_reference(objective: ObjectiveConfig) -> None:
    works = "set training.beta above 0, such as 0.04"
    if objective.kl.controller == "adaptive":
        raise BadKeyError(
            "objective.kl.controller",
            f"=adaptive holds the KL divergence from the reference model at a target, but with training.beta=0 there "
            f"is no reference model, and β could not move: {works}, where β starts, or choose "
            "objective.kl.controller=fixed.",
        )
    if objective.kl.stop_above is not None:
        raise BadKeyError(
            "objective.kl.stop_above",
            f"={show(objective.kl.stop_above)} limits the KL divergence from the reference model, but with "
            f"training.beta=0 there is no reference model: {works}, or leave stop_above out.",
        )
