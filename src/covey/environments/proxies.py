"""The trainer's side of environments and tools that run in worker processes.

TRL finds tools on the class of an instance, so a proxy's class is made for each class of environment: its functions
carry the names, docstrings, type hints and signatures of the original's methods, and call them in the process of the
instance. A proxy has one name that its original cannot use: `covey`, the control of its episodes.
"""

from __future__ import annotations

import logging
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from covey.environments.contract import GET_REWARD, RESET
from covey.environments.workers.calls import EndedBy, EpisodeState, Member, ToolCall, ToolError
from covey.environments.workers.description import ClassDescription, FunctionDescription
from covey.environments.workers.messages import Action
from covey.environments.workers.supervisor import EnvironmentSupervisor
from covey.errors import EnvironmentSetupError
from covey.log_once import log_once
from covey.workers.owned import Owned

__all__ = ["EndedBy", "EnvironmentProxy", "EpisodeControl", "ToolCall", "ToolError", "control_of", "make_class"]

_log = logging.getLogger("covey.environments")


class EpisodeControl:
    """The episodes of one instance: `environment.covey`. Not thread-safe; one episode at a time.

    Args:
        supervisor: of the processes.
        member: the instance; its process ends when this object is collected.
        timeout: seconds for one call.
        episode_timeout: seconds for the calls of an episode.
    """

    def __init__(
        self, supervisor: Owned[EnvironmentSupervisor], member: Member, timeout: float, episode_timeout: float
    ) -> None:
        self._supervisor = supervisor
        self._member = member
        self._timeout = timeout
        self._episode_timeout = episode_timeout
        self._episode = EpisodeState(episode_timeout)
        self._reset: ToolCall | None = None
        self._reward: ToolCall | None = None
        self.failure = ""
        """Why `reset` gave no observation, or `get_reward` no reward, in this episode; empty if neither failed."""
        weakref.finalize(self, _release, supervisor, member).atexit = False

    @property
    def outcome(self) -> EndedBy | None:
        """Why the current episode ended early; None for one that goes on. Set by a deadline, by the death of the
        process, and by an exception of `reset` or `get_reward`; cleared by the next reset."""
        return self._episode.outcome

    @property
    def seconds(self) -> float:
        """In the environment in this episode so far."""
        return self._episode.seconds

    def make(self) -> ToolCall:
        """Start the process and make the instance, without waiting; the result describes its class."""
        return self._submit("make", "", self._member.key)

    def begin_reset(self, row: Mapping[str, Any], seed: int | None = None) -> None:
        """Begin an episode without waiting: the next `reset` of the proxy returns its observation.

        Args:
            row: the arguments of `reset`.
            seed: for the generators of `random`, NumPy and PyTorch in the process, and those that the instance, its
                class or its module holds; None: they go on.
        """
        self._episode = EpisodeState(self._episode_timeout)
        self._reward = None
        self._reset = self._submit("reset", "", (dict(row), seed))

    def begin_reward(self) -> None:
        """Begin `get_reward` without waiting: the next `get_reward` of the proxy returns its result."""
        if self._episode.outcome is None:
            self._reward = self._submit("reward", "", None)

    def reset(self, row: Mapping[str, Any]) -> Any:
        """The observation of an episode that was begun, or that begins now; None where that failed."""
        if self._reset is None:
            self.begin_reset(row)
        assert self._reset is not None
        call, self._reset = self._reset, None
        observation = call.result()
        self.failure = "" if call.ended is None else str(observation["error"])
        return observation if call.ended is None else None

    def reward(self) -> float | None:
        """The reward of the episode: 0.0 for one that a tool ended, None where `reset` or `get_reward` failed."""
        if self._reward is None:
            if self._episode.outcome is not None:
                return None if self._episode.lost else 0.0
            self.begin_reward()
        assert self._reward is not None
        call, self._reward = self._reward, None
        value = call.result()
        if call.ended is not None:
            self.failure = str(value["error"])
            return None
        reward: float | None = value
        return reward

    def submit(self, tool: str, /, *args: Any, **kwargs: Any) -> ToolCall:
        """Call a tool without waiting."""
        return self._submit("tool", tool, (args, kwargs))

    def attribute(self, name: str) -> Any:
        """An attribute of the instance, which must be plain data; None once the episode has ended early. Raises an
        `AttributeError` if there is no such attribute, or it is not plain data."""
        call = self._submit("attribute", name, None)
        try:
            value = call.result()
        except ToolError as error:
            raise AttributeError(str(error)) from None
        return value if call.ended is None else self._log_gone()

    def attributes(self) -> dict[str, Any] | None:
        """The public attributes of the instance that are plain data; None once the episode has ended early."""
        call = self._submit("attributes", "", None)
        try:
            value: dict[str, Any] | None = call.result()
        except ToolError:
            return {}
        return value if call.ended is None else self._log_gone()

    def _log_gone(self) -> Any:
        text = "%s: the attributes of an environment whose process has ended are read as None."
        log_once(_log, text, self._member.where)
        return None

    def _submit(self, action: Action, name: str, payload: Any) -> ToolCall:
        try:
            pickled = pickle.dumps(payload, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            what = "the row" if action == "reset" else "an argument"
            raise EnvironmentSetupError(
                f"{self._member.where}: {what} cannot be sent to the process of the environment: {error}. Leave such "
                "columns out of the data, or give the environment to the trainer in Python, which runs it in its own "
                "process."
            ) from error
        call = ToolCall(action, name, pickled, self._timeout, member=self._member, episode=self._episode)
        self._supervisor.running().submit([call])
        return call


class EnvironmentProxy:
    """An environment in another process. Its own classes derive from this (`make_class`).

    Attributes:
        covey: the control of its episodes.
    """

    covey: EpisodeControl
    __tools: Sequence[FunctionDescription] = ()

    def __init__(self, control: EpisodeControl) -> None:
        own: dict[str, Any] = {"covey": control}
        for tool in self.__tools:  # of this instance, so that `instance.tool.submit` calls it
            own[tool.member] = make_tool(tool, partial(control.submit, tool.member))
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("covey", RESET, GET_REWARD):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return self.covey.attribute(name)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            f"{type(self).__name__}.{name} cannot be set from the trainer: the environment is in another process"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, that of a reward function say, it is a copy of its attributes."""
        return EnvironmentCopy, (type(self).__name__, self.covey.attributes())


class EnvironmentCopy:
    """The public attributes of an environment, as they were when this was made.

    Args:
        name: of the environment's class.
        attributes: that are plain data; None for one whose process had ended: its attributes are None.
    """

    def __init__(self, name: str, attributes: Mapping[str, Any] | None) -> None:
        self.__dict__.update(attributes or {})
        self._name, self._ended = name, attributes is None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self.__dict__.get("_ended"):
            raise AttributeError(
                f"{self.__dict__.get('_name')} has no attribute {name} that is plain data: a reward in another process "
                "gets a copy of the environment's public attributes"
            )
        return None


def make_class(description: ClassDescription) -> type[EnvironmentProxy]:
    """The class of the proxies of one environment. Raises an `EnvironmentSetupError` if a member has the one name that
    is taken."""
    if any(member.member == "covey" for member in description.members):
        raise EnvironmentSetupError(f"{description.name} has a method covey, a name that Covey needs: rename it.")
    functions = {member.member: _method(member) for member in description.members}
    tools = [member for member in description.members if member.member not in (RESET, GET_REWARD)]
    own = {"_EnvironmentProxy__tools": tools, "__doc__": description.doc, "__module__": description.module}
    return type(description.name, (EnvironmentProxy,), {**functions, **own})


def make_tool(description: FunctionDescription, submit: Callable[..., ToolCall]) -> Callable[..., Any]:
    """A function like the described one, which runs elsewhere; it has `submit`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return submit(*args, **kwargs).result()

    description.dress(call)
    call.submit = submit  # type: ignore[attr-defined]
    return call


def control_of(environment: object) -> EpisodeControl | None:
    """The control of a proxy; None for an object that runs in this process."""
    return environment.covey if isinstance(environment, EnvironmentProxy) else None


def _method(description: FunctionDescription) -> Callable[..., Any]:
    """A function of a proxy's class."""
    name = description.member

    def method(self: EnvironmentProxy, /, *args: Any, **kwargs: Any) -> Any:
        if name == RESET:
            return self.covey.reset(kwargs)
        if name == GET_REWARD:
            return self.covey.reward()
        return self.covey.submit(name, *args, **kwargs).result()

    description.dress(method, method=True)
    return method


def _release(supervisor: Owned[EnvironmentSupervisor], member: Member) -> None:
    """Nobody uses the instance any more: its process ends."""
    if (running := supervisor.here) is not None:
        running.submit([member])
