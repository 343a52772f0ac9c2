"""The parameters of the rewards: frozen and picklable, so that they can be sent to worker processes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

from covey.answers import Tags
from covey.errors import RewardError
from covey.sandbox import Limits

if TYPE_CHECKING:
    from covey.config.groups.rewards import CodeConfig, RewardsConfig


@dataclass(frozen=True, slots=True)
class CodeSettings:
    """As `rewards.code.*`; hashable, and can be sent to worker processes."""

    timeout: float = 5.0
    memory_mb: int = 512
    processes: int = 16
    output_kb: int = 1024
    max_tests: int | None = None
    commands: tuple[tuple[str, str], ...] = ()
    paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: CodeConfig) -> Self:
        """The settings of a run."""
        return cls(
            timeout=config.timeout,
            memory_mb=config.memory_mb,
            processes=config.processes,
            output_kb=config.output_kb,
            max_tests=config.max_tests,
            commands=tuple(sorted(config.commands.items())),
            paths=config.paths,
        )

    @property
    def limits(self) -> Limits:
        """Of one test."""
        return Limits(
            seconds=self.timeout, memory_mb=self.memory_mb, processes=self.processes, output_kb=self.output_kb
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """The parameters of the rewards that come with Covey; the defaults are those of the keys `rewards.*`."""

    tags: Tags = field(default_factory=Tags)
    """Names of the thinking and answer tags (`rewards.think_tag`, `rewards.answer_tag`)."""
    max_completion_length: int | None = 512
    """`training.max_completion_length`, in tokens; the default is TRL's."""
    cosine_min_value_wrong: float = 0.0
    cosine_max_value_wrong: float = -0.5
    cosine_min_value_correct: float = 0.5
    cosine_max_value_correct: float = 1.0
    cosine_max_len: int = 1000
    repetition_n_grams: int = 3
    repetition_max_penalty: float = -1.0
    soft_overlong_max_length: int | None = None
    soft_overlong_cache: int | None = None
    code: CodeSettings = field(default_factory=CodeSettings)
    """What programs may use that `code` and `binary_code` run."""

    def __post_init__(self) -> None:
        if self.cosine_max_len < 1:
            raise RewardError(f"rewards.cosine_max_len={self.cosine_max_len} must be at least 1.")
        if self.repetition_n_grams < 1:
            raise RewardError(f"rewards.repetition_n_grams={self.repetition_n_grams} must be at least 1.")
        if self.repetition_max_penalty > 0:
            raise RewardError(
                f"rewards.repetition_max_penalty={self.repetition_max_penalty} must be 0 or less, because it is a "
                "penalty."
            )

    @classmethod
    def of(cls, config: RewardsConfig, max_completion_length: int | None) -> Self:
        """The settings of a run.

        Args:
            config: the group `rewards`.
            max_completion_length: `training.max_completion_length`, in tokens; None where it is unlimited.
        """
        own = {"tags", "max_completion_length", "code"}
        parameters = {item.name: getattr(config, item.name) for item in fields(cls) if item.name not in own}
        tags = Tags(think=config.think_tag, answer=config.answer_tag)
        code = CodeSettings.of(config.code)
        return cls(tags=tags, max_completion_length=max_completion_length, code=code, **parameters)
