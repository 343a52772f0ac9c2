"""What a run needs of its rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from covey.config.groups.environment import EnvironmentConfig


@dataclass(frozen=True, slots=True)
class RowNeeds:
    """What a run needs of its rows."""

    answer_for: str | None = "the run"
    """What needs gold answers (a reward, say), for messages; None: the rows may lack them."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    benchmark: str | None = None
    """The benchmark that the rows are; None: the data of the run."""

    @property
    def path_key(self) -> str:
        """The config key that names a local file of the rows."""
        return f"evaluation.benchmark_paths.{self.benchmark}" if self.benchmark else "dataset.path"

    @property
    def prompts(self) -> bool:
        """Whether every row needs a prompt."""
        return not self.environment.gives_prompts

    @property
    def exact(self) -> bool:
        """Whether an answer that nothing reads is a column like the others, for the `reset` of an environment."""
        return self.environment.factory is not None

    @property
    def environments(self) -> tuple[str, ...]:
        """The names among which rows choose in their column `environment`; empty where there is only one."""
        return tuple(name for name in self.environment.factories if name is not None)
