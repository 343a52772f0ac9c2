"""The group `objective`: the settings of each objective, what it requires of a run, and control of the KL weight."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from covey.config.groups.training import TrainingConfig
from covey.config.values import BadKeyError, Group, both, option, show

LINEAR_LOSSES = ("grpo", "luspo", "dr_grpo", "dapo", "cispo")
"""TRL's losses that carry advantages as they are: the gradient is linear in them, and all completions of a generation
batch share one normaliser."""

NOT_LINEAR = {
    "bnpo": "divides by the tokens of each micro-batch, so a completion's weight depends on its neighbours",
    "sapo": "treats positive and negative advantages differently",
    "vespo": "treats positive and negative advantages differently",
}
"""TRL's other losses, and why they do not."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The settings of a built-in objective: a field `x` made by `option` is the key `objective.<name>_x`.

    The objective's own class derives from the same dataclass, so a setting is declared once.
    """

    NAME: ClassVar[str] = "grpo"
    """What `objective.name` calls it."""

    def check_run(
        self, *, loss_type: str, num_generations: int, max_completion_length: int | None, beta: float | None = None
    ) -> None:
        """Check that a run can have this objective with these settings.

        Args:
            loss_type: of TRL's loss.
            num_generations: completions per prompt.
            max_completion_length: in tokens.
            beta: weight of the KL divergence at the start; None if it is not known.

        Raises:
            BadKeyError: naming the key and what would work.
        """


@dataclass(frozen=True, kw_only=True)
class LinearSettings(ObjectiveSettings):
    """The settings of an objective that only reweighs advantages."""

    def check_run(self, *, loss_type: str, num_generations: int, **run: Any) -> None:
        """Check that the loss is linear in the advantages."""
        if loss_type not in LINEAR_LOSSES:
            why = NOT_LINEAR.get(loss_type, "is not known to carry advantages as they are")
            raise BadKeyError(
                "training.loss_type",
                f"={loss_type} does not work with objective={self.NAME}: that loss {why}. Choose "
                f"{', '.join(LINEAR_LOSSES[:-1])} or {LINEAR_LOSSES[-1]}.",
            )


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


LengthReduction = Literal["sum", "mean"]

MAXENT_LOSSES: Mapping[str, LengthReduction] = MappingProxyType(
    {"grpo": "mean", "luspo": "sum", "dr_grpo": "sum", "dapo": "sum"}
)
"""The losses that support MaxEnt, and how they reduce over the tokens of a completion: at equal weights, `sum` losses
have the gradient of Σ_t log π, and `mean` losses that of Σ_t log π / |o|. Other losses have a normaliser that depends
on the micro-batch, or weigh positive and negative advantages differently."""
MAXENT_FITS = ("mle", "listwise")


@dataclass(frozen=True, kw_only=True)
class MaxEntSettings(ObjectiveSettings):
    """The settings of MaxEnt."""

    NAME: ClassVar[str] = "maxent"

    tau: float = option(0.3, low=0)
    """Entropy weight τ: the larger, the more evenly the target spreads over a group."""
    q_temperature: float = option(1.0, above=0)
    """Temperature of the softmax that turns a group's rewards into the distribution q."""
    q_epsilon: float = option(1e-6, low=0)
    """Lower bound of q for each completion; times the group size it must be below 1."""
    length_normalize_ref: bool = option(True, live="training.beta != 0")
    """Whether the reference model's log-prob of a completion is the mean over its tokens instead of the sum."""
    fit: str = option("listwise", choices=MAXENT_FITS)
    """How the target is fitted: weighted maximum likelihood (`mle`), or cross-entropy with the policy's own
    distribution over the group (`listwise`)."""

    def check_run(self, *, loss_type: str, num_generations: int, **run: Any) -> None:
        """Check that the loss supports MaxEnt, and that the floor under q leaves room for q."""
        if loss_type not in MAXENT_LOSSES:
            raise BadKeyError(
                "training.loss_type",
                f"={loss_type} does not work with objective=maxent: choose grpo (a completion counts by its mean "
                "per token) or luspo, dr_grpo or dapo (by its sum).",
            )
        if (problem := floor_problem(self.q_epsilon, num_generations)) is not None:
            raise BadKeyError("objective.maxent_q_epsilon", problem)


def floor_problem(epsilon: float, group_size: int) -> str | None:
    """Why ε cannot be the least probability of each completion of a group, after its name; None if it can."""
    if epsilon * group_size < 1:
        return None
    return (
        f"={show(epsilon)} is too large for groups of {group_size} completions: as the least probability of each it "
        f"adds up to {epsilon * group_size:g}, and must stay below 1. It must be below 1/{group_size} = "
        f"{1 / group_size:.4g}, such as 1e-6."
    )


@dataclass(frozen=True, kw_only=True)
class DrGRPOSettings(ObjectiveSettings):
    """Dr. GRPO has no settings of its own."""

    NAME: ClassVar[str] = "dr_grpo"

    def check_run(self, *, loss_type: str, **run: Any) -> None:
        """Check that the loss is its own."""
        if loss_type != "dr_grpo":
            raise BadKeyError(
                "training.loss_type",
                f"={loss_type} is not Dr. GRPO, whose loss is dr_grpo: set training.loss_type=dr_grpo, or choose "
                "objective=grpo with training.scale_rewards=none, which has the same advantages under any loss.",
            )


@dataclass(frozen=True, kw_only=True)
class MaxRLSettings(LinearSettings):
    """MaxRL has no settings of its own."""

    NAME: ClassVar[str] = "maxrl"


@dataclass(frozen=True, kw_only=True)
class PassKSettings(LinearSettings):
    """The settings of pass@k policy optimisation."""

    NAME: ClassVar[str] = "passk"

    k: int = option(2, low=1)
    """The k of pass@k, below `training.num_generations`; 1 is the mean reward."""

    def check_run(self, *, loss_type: str, num_generations: int, **run: Any) -> None:
        """Check the loss, and that a group has more than k completions."""
        super().check_run(loss_type=loss_type, num_generations=num_generations)
        if self.k >= num_generations:
            raise BadKeyError(
                "objective.passk_k",
                f"={self.k} must be below training.num_generations={num_generations}: with all completions of a group "
                "in one subset, each contributes the same, and no advantage is left.",
            )


@dataclass(frozen=True, kw_only=True)
class QuantileSettings(LinearSettings):
    """The settings of quantile baselines."""

    NAME: ClassVar[str] = "quantile"

    level: float = option(0.4, above=0, high=1)
    """The level K of the baseline, a quantile of the group's rewards: with a share of right answers of at most 1 - K
    only these count, above it only the wrong ones."""


XDR_LOSSES = ("dr_grpo", "grpo")


@dataclass(frozen=True, kw_only=True)
class XDRSettings(ObjectiveSettings):
    """The settings of xDr.GRPO."""

    NAME: ClassVar[str] = "xdr"

    tau: float = option(0.05, low=0)
    """Temperature τ of the weights, in units of utility (advantage times length share): `inf` is Dr. GRPO, 0 leaves
    the best completions alone. Not portable between tasks: see `log_odds` in the metrics."""
    reference: float = option(0.0, low=0)
    """Weight λ of the reference model in the weights; above 0 it needs `training.beta` above 0, whose KL term stays."""
    adaptive: bool = False
    """Whether τ is divided by log(1 + distinct right modes) in each group; needs a grader that names modes."""
    keep_prompt_weight: bool = False
    """Whether the advantages of a group keep the sum of magnitudes that they have under Dr. GRPO."""

    def check_run(
        self, *, loss_type: str, max_completion_length: int | None, beta: float | None = None, **run: Any
    ) -> None:
        """Check the loss, whose length share is that of the utilities, and that there is a reference if it counts."""
        if loss_type not in XDR_LOSSES:
            raise BadKeyError(
                "training.loss_type",
                f"={loss_type} does not work with objective=xdr, whose weights follow from a completion's share in the "
                "loss: choose dr_grpo (its length / max_completion_length) or grpo (1).",
            )
        if loss_type == "dr_grpo" and max_completion_length is None:
            raise BadKeyError("training.max_completion_length", "=null: objective=xdr with dr_grpo needs a limit.")
        if self.reference > 0 and beta == 0:
            raise BadKeyError(
                "objective.xdr_reference",
                f"={show(self.reference)} needs the reference model, and with training.beta=0 there is none: set "
                "training.beta above 0 (1e-8 for hardly any KL term in the loss), or xdr_reference=0.",
            )
        if math.isinf(self.tau) and math.isinf(self.reference):
            raise BadKeyError(
                "objective.xdr_reference", "=inf cannot be combined with xdr_tau=inf: the limit is undefined."
            )


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
        works = "set training.beta above 0, such as 0.04"
        if objective.kl.controller == "adaptive":
            raise BadKeyError(
                "objective.kl.controller",
                "=adaptive holds the KL divergence from the reference model at a target, but with training.beta=0 "
                f"there is no reference model, and β could not move: {works}, where β starts, or choose "
                "objective.kl.controller=fixed.",
            )
        if objective.kl.stop_above is not None:
            raise BadKeyError(
                "objective.kl.stop_above",
                f"={show(objective.kl.stop_above)} limits the KL divergence from the reference model, but with "
                f"training.beta=0 there is no reference model: {works}, or leave stop_above out.",
            )


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
