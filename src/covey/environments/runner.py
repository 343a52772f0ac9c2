"""The environments and tools of a run, in worker processes, for a trainer and for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from covey.environments.registry import EnvironmentSource

if TYPE_CHECKING:
    from covey.config.schema import Config


class EnvironmentRunner:
    """Runs environments and tools in worker processes, one per live instance; standalone tools share a pool.

    A call that raises is a failure, which the model reads. A call past its deadline, an episode past its own, or a
    process that dies ends that one episode: the result is {"error": …}, the proxy's `covey.outcome` and the call's
    `ended` say why, further calls of the episode fail at once, and its `get_reward()` is 0.0. If `reset` fails there is
    no observation, and `get_reward()` is None: no reward. A `get_reward` that fails gives None. Nothing of it raises.

    Args:
        sources: the environments, by the name that a row chooses them with; {None: source} for a single one.
        tools: names of standalone tools.
        timeout: seconds for one call of a tool, `reset` or `get_reward`; waiting for a core does not count.
        episode_timeout: seconds for all calls of an episode; None: ten times `timeout`.
        memory_mb: MiB that a process may allocate once the environment is loaded (on Linux); None: no limit.
    """

    def __init__(
        self,
        sources: Mapping[str | None, EnvironmentSource],
        tools: Sequence[str] = (),
        *,
        timeout: float = 10.0,
        episode_timeout: float | None = None,
        memory_mb: int | None = 4096,
    ) -> None:
        raise NotImplementedError

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """The runner of `config.environment`; None where it names neither an environment nor tools."""
        raise NotImplementedError

    def start(self, output: Path | None = None) -> None:
        """Start the processes, in the background.

        Args:
            output: the file to append what environments and tools print to; None: standard error.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Make one instance of every environment and load every tool, which also starts the processes.

        Raises:
            EnvironmentSetupError: one cannot be found, imported or made, or takes too long.
        """
        raise NotImplementedError

    @property
    def factory(self) -> Callable[[], Any] | dict[str, Callable[[], Any]] | None:
        """For TRL's `environment_factory`: makes proxies; by name where there are several. None without environments.

        A proxy's process starts in the background. The first call raises what `check` raises.
        """
        raise NotImplementedError

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """The standalone tools, for TRL's `tools`: functions of the originals' signature, with `submit` (`ToolCall`).

        Raises what `check` raises.
        """
        raise NotImplementedError

    def instances(self, names: Sequence[str | None]) -> list[Any]:
        """Proxies for a batch of episodes outside of TRL's trainer, one per name, reused by the next call."""
        raise NotImplementedError

    def tools_of(self, name: str | None) -> list[Callable[..., Any]]:
        """What the model may call in an environment: the standalone tools and its own methods."""
        raise NotImplementedError

    @property
    def owns_reward(self) -> bool:
        """Whether some environment has `get_reward`."""
        raise NotImplementedError

    def take_counts(self) -> dict[str, float]:
        """What happened since the last call: `timeouts`, `crashes`, `calls` and `seconds` in environments and tools."""
        raise NotImplementedError

    def close(self) -> None:
        """End the processes."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
