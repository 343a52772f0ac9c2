"""The environments and tools of a run, in worker processes, for a trainer and for evaluation."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from covey.environments.contract import has_reward, tool_methods
from covey.environments.proxies import EnvironmentProxy, EpisodeControl, make_class, make_tool
from covey.environments.registry import EnvironmentSource, sources_of
from covey.environments.workers.calls import Member, ToolCall, ToolError
from covey.environments.workers.description import read_class, read_function
from covey.environments.workers.supervisor import EnvironmentSupervisor
from covey.errors import EnvironmentSetupError
from covey.importing import given_by_value
from covey.sandbox import log_isolation
from covey.workers.channel import Start
from covey.workers.owned import Owned, Owner

if TYPE_CHECKING:
    from covey.config.groups.environment import EnvironmentConfig
    from covey.config.schema import Config

_LOAD_SECONDS = 60.0
_RUNS_PROGRAMS = "python"
"""The tool and environment that run what the model writes."""
_WORK = "covey.environments.workers.worker:EnvironmentWork"
FINDERS = ("covey.environments.registry:load_environment", "covey.environments.registry:load_tool")
Described = TypeVar("Described")


class EnvironmentRunner(Owner):
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
        memory_mb: MiB that a process may allocate once the environment's code is loaded (on Linux); None: no limit.
        load_timeout: seconds for importing the code and making an instance.
        finders: `module:function` that load an environment and a tool.
    """

    def __init__(
        self,
        sources: Mapping[str | None, EnvironmentSource],
        tools: Sequence[str] = (),
        *,
        timeout: float = 10.0,
        episode_timeout: float | None = None,
        memory_mb: int | None = 4096,
        load_timeout: float = _LOAD_SECONDS,
        finders: tuple[str, str] = FINDERS,
    ) -> None:
        self._sources = dict(sources)
        self._tool_names = tuple(tools)
        self._timeout = timeout
        self._episode_timeout = 10 * timeout if episode_timeout is None else episode_timeout
        self._load_timeout = load_timeout
        self._output: str | None = None
        memory = None if memory_mb is None else memory_mb << 20
        given = given_by_value([*self._tool_names, *(source.name for source in self._sources.values())])
        self._arguments = (self._sources, self._tool_names, finders, memory, given)
        closed = EnvironmentSetupError("The processes of the environments were closed: make a new runner.")
        self._supervisor = Owned(self._start_supervisor, closed)
        self._classes: dict[str | None, type[EnvironmentProxy]] = {}
        self._first: dict[str | None, EnvironmentProxy] = {}  # of each environment, which shows its tools
        self._unused: dict[str | None, EnvironmentProxy] = {}  # the first ones that nobody has taken
        self._pools: dict[str | None, list[Any]] = {name: [] for name in self._sources}
        self._tools: list[Callable[..., Any]] | None = None

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """The runner of `config.environment`; None where it names neither an environment nor tools."""
        return cls.of_group(config.environment)

    @classmethod
    def of_group(cls, group: EnvironmentConfig) -> Self | None:
        """As `of`, for that group alone."""
        if not group.used:
            return None
        return cls(
            sources_of(group),
            group.tools,
            timeout=group.timeout,
            episode_timeout=group.episode_timeout,
            memory_mb=group.memory_mb,
        )

    def start(self, output: Path | None = None) -> None:
        """Start the processes, in the background; if they run with another output, new ones take their place, and an
        instance is made again for its next episode.

        Args:
            output: the file to append what environments and tools print to; None: standard error.
        """
        before, self._output = self._output, None if output is None else str(output.resolve())
        if self._output != before:
            self._supervisor.stop()
        self._supervisor.running().submit([])

    def check(self) -> None:
        """Make one instance of every environment and load every tool, which also starts the processes. Raises an
        `EnvironmentSetupError` if one cannot be found, imported or made, or takes too long."""
        if self._tools is not None:
            return
        if _RUNS_PROGRAMS in (*self._tool_names, *(source.name for source in self._sources.values())):
            log_isolation()
        controls = {name: self._control(name) for name in self._sources}
        made = {name: control.make() for name, control in controls.items()}
        loaded = {
            name: ToolCall("make", name, pickle.dumps(("tool", name)), self._timeout) for name in self._tool_names
        }
        self._supervisor.running().submit(list(loaded.values()))
        kinds: dict[str, type[EnvironmentProxy]] = {}  # one for each original, as rewards go by the exact type
        for name, call in made.items():
            found = _described(call, read_class, self._where(name))
            kind = kinds.setdefault(json.dumps(call.result()), make_class(found))
            self._classes[name] = kind
            self._first[name] = self._unused[name] = kind(controls[name])
        tools = []
        for tool, call in loaded.items():
            described = _described(call, read_function, f"environment.tools: {tool}")
            tools.append(make_tool(described, partial(self._submit_tool, tool)))
        self._tools = tools

    @property
    def factory(self) -> Callable[[], Any] | dict[str, Callable[[], Any]] | None:
        """For TRL's `environment_factory`: makes proxies; by name where there are several. None without environments.

        A proxy's process starts in the background. The first call raises what `check` raises.
        """
        if None in self._sources:
            return partial(self._make, None)
        return {name: partial(self._make, name) for name in self._sources if name is not None} or None

    @property
    def tools(self) -> list[Callable[..., Any]]:
        """The standalone tools, for TRL's `tools`: functions of the originals' signature, with `submit` (`ToolCall`).

        Raises what `check` raises.
        """
        self.check()
        return list(self._tools or ())

    def instances(self, names: Sequence[str | None]) -> list[Any]:
        """Proxies for a batch of episodes outside of TRL's trainer, one per name, reused by the next call."""
        used = dict.fromkeys(self._sources, 0)
        found = []
        for name in names:
            if name not in self._sources:
                raise EnvironmentSetupError(
                    f"A row's environment is {name!r}, which is none of {', '.join(map(str, self._sources))}."
                )
            if used[name] == len(self._pools[name]):
                self._pools[name].append(self._make(name))
            found.append(self._pools[name][used[name]])
            used[name] += 1
        return found

    def tools_of(self, name: str | None) -> list[Callable[..., Any]]:
        """What the model may call in an environment: the standalone tools and its own methods."""
        found = self.tools
        if name in self._first:
            shown = self._first[name]
            found += [getattr(shown, method) for method in tool_methods(type(shown))]
        return found

    def _start_supervisor(self) -> EnvironmentSupervisor:
        start = Start(_WORK, self._arguments, list(sys.path), self._output)
        return EnvironmentSupervisor(start, load_timeout=self._load_timeout)

    def _where(self, name: str | None) -> str:
        source = self._sources[name]
        return f"{source.key}={source.name}"

    def _control(self, name: str | None) -> EpisodeControl:
        member = Member(name, self._where(name))
        return EpisodeControl(self._supervisor, member, self._timeout, self._episode_timeout)

    def _make(self, name: str | None) -> EnvironmentProxy:
        self.check()
        if name in self._unused:
            return self._unused.pop(name)
        control = self._control(name)
        control.make()
        return self._classes[name](control)

    def _submit_tool(self, name: str, /, *args: Any, **kwargs: Any) -> ToolCall:
        call = ToolCall("tool", name, pickle.dumps((args, kwargs)), self._timeout)
        self._supervisor.running().submit([call])
        return call


def _described(call: ToolCall, read: Callable[[Any], Described], where: str) -> Described:
    """What a process said of what it made. Raises an `EnvironmentSetupError` if it could not be made."""
    try:
        found = call.result()
        if call.ended is None:
            return read(found)
        problem = f"{where} cannot be made: {found['error']}."
    except ToolError as error:
        text = str(error)
        problem = text if text.startswith("environment.") else f"{where} cannot be made: {text}."
    except ValueError as error:
        problem = f"{where} cannot be used: its process sent {error}."
    raise EnvironmentSetupError(problem) from None


@contextmanager
def running(environment: EnvironmentConfig) -> Iterator[EnvironmentRunner | None]:
    """Context manager: the environments and tools of a config, started; None if it names none.

    Raises:
        EnvironmentSetupError: one cannot be found, imported or made.
    """
    runner = EnvironmentRunner.of_group(environment)
    if runner is None:
        yield None
        return
    with runner:
        runner.start()
        runner.check()
        yield runner


def environment_rewards(config: Config, runner: EnvironmentRunner) -> tuple[str, ...]:
    """The names of the classes of a runner's environments that reward their episodes."""
    kinds = map(type, runner.instances([*config.environment.factories]))
    return tuple(dict.fromkeys(kind.__name__ for kind in kinds if has_reward(kind)))
