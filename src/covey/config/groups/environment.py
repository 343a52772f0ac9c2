"""The group `environment`: the environments and tools that the model meets, and the limits of their processes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from covey.config.values import MAX_SECONDS, BadKeyError, Group, option, show

ENVIRONMENTS: Mapping[str, str] = MappingProxyType(
    {
        "calculator": "covey.environments.library:Calculator",
        "python": "covey.environments.library:Python",
        "number_guess": "covey.environments.library:NumberGuess",
    }
)
"""Environments by name, and where their classes are; `covey.environments.contract` loads them."""

TOOLS: Mapping[str, str] = MappingProxyType(
    {
        "calculator": "covey.environments.library:calculator",
        "python": "covey.environments.library:python",
    }
)
"""Tools by name, and where their functions are."""

ADAPTERS: Mapping[str, str] = MappingProxyType({"reasoning_gym": "TASK", "openenv": "URL"})
"""Environments of other libraries: the prefix of their names, and what follows the colon."""

MAX_TURNS = 10_000


_USED = "environment.used"


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig(Group):
    """The environments and tools that the model meets, and the limits of their processes."""

    PREFIX: ClassVar[str] = "environment."

    factory: str | dict[str, Any] | None = None
    """What makes an environment: a built-in name (`calculator`, `python`, `number_guess`), `file.py:Class`,
    `package.module:Class`, `reasoning_gym:TASK` or `openenv:URL`; or several by name, `{NAME: factory}` or
    `{NAME: {factory: …, settings: {…}}}`, of which a row chooses by its column `environment`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the factory, by name, as in `{rounds: 5}`."""
    tools: tuple[str, ...] = ()
    """Functions that the model may call: built in (`calculator`, `python`), as `file.py:function` or as
    `package.module:function`. Type hints and docstring become the schema that the model is shown."""
    max_turns: int | None = option(16, low=1, high=MAX_TURNS, live=_USED)
    """Most turns of the model in an episode, that is one more than `training.max_tool_calling_iterations`, TRL's name;
    null means no limit but the length."""
    timeout: float = option(10.0, above=0, high=MAX_SECONDS, live=_USED)
    """Timeout in seconds for one call of a tool, `reset` or `get_reward`, after which its process is killed and the
    episode ends."""
    episode_timeout: float | None = option(None, above=0, high=MAX_SECONDS, live=_USED)
    """Most seconds that an episode may spend in its environment and tools, generation not counted; null means ten times
    `environment.timeout`."""
    memory_mb: int | None = option(4096, low=1, live=_USED)
    """Megabytes that an environment's process may use beyond its memory once the code is loaded (on Linux); null means
    no limit."""
    malformed_calls: str = option("end", choices=("end", "report"), live=_USED)
    """What happens after a tool call that cannot be parsed: the turn counts as the final answer (`end`), or the model
    is told so as the result of a call, and goes on (`report`). Both are counted."""
    rollout_func: str | None = None
    """Your own function that generates the completions, as `file.py:function` or `package.module:function`: TRL's
    `rollout_func(prompts, trainer)`, which drives the episodes itself."""

    @property
    def factories(self) -> Mapping[str | None, tuple[str, Mapping[str, Any]]]:
        """The factories and their settings, by the name that a row chooses them with; None where there is only one."""
        if self.factory is None:
            return {}
        if isinstance(self.factory, str):
            return {None: (self.factory, self.settings)}
        found: dict[str | None, tuple[str, Mapping[str, Any]]] = {}
        for name, value in self.factory.items():
            one: Mapping[str, Any] = {"factory": value} if isinstance(value, str) else value
            found[name] = one["factory"], {**self.settings, **(one.get("settings") or {})}
        return found

    @property
    def own_code(self) -> tuple[str, ...]:
        """The names of factories, tools and the rollout function that are the user's own code."""
        names = (*(name for name, _ in self.factories.values()), *self.tools, self.rollout_func or "")
        return tuple(name for name in names if ":" in name and name.partition(":")[0] not in ADAPTERS)

    @property
    def gives_prompts(self) -> bool:
        """Whether `reset` may give the prompts, so that rows need none; the built-in tools do not."""
        return any(name not in TOOLS for name, _ in self.factories.values())

    @property
    def used(self) -> bool:
        """Whether the model meets an environment or tools that TRL runs."""
        return self.factory is not None or bool(self.tools)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.factory, str):
            _check_name("environment.factory", self.factory, ENVIRONMENTS, "an environment", "Class")
        elif self.factory is not None:
            _check_several(self.factory)
        if self.settings and self.factory is None:
            raise BadKeyError(
                "environment.settings", f"={show(self.settings)} is for a factory: set environment.factory too."
            )
        for name in self.tools:
            _check_name("environment.tools", name, TOOLS, "a tool", "function")
        if self.rollout_func is None:
            return
        _check_own("environment.rollout_func", self.rollout_func, "function")
        if self.used:
            other = "factory" if self.factory is not None else "tools"
            raise BadKeyError(
                "environment.rollout_func",
                f"={show(self.rollout_func)} drives its episodes itself, so environment.{other} would never be used: "
                "leave one of them out.",
            )


def _check_several(factories: Mapping[str, Any]) -> None:
    """Check the mapping of names to factories."""
    if not factories:
        raise BadKeyError("environment.factory", "={} names no environment: name one or more, or null.")
    for name, value in factories.items():
        key = f"environment.factory.{name}"
        if not name.strip():
            raise BadKeyError("environment.factory", f"={show(dict(factories))} has an empty name.")
        if isinstance(value, Mapping):
            unknown = [inner for inner in value if inner not in ("factory", "settings")]
            if unknown:
                raise BadKeyError(f"{key}.{unknown[0]}", " is not read: it may hold factory and settings.")
            if not isinstance(value.get("settings") or {}, Mapping):
                raise BadKeyError(f"{key}.settings", f"={show(value['settings'])} is not a mapping of settings.")
            key, value = f"{key}.factory", value.get("factory")
        if not isinstance(value, str) or not value.strip():
            raise BadKeyError(
                key,
                f"={show(value)} is not a factory: name one, as file.py:Class, or give {{factory: …, settings: …}}.",
            )
        _check_name(key, value, ENVIRONMENTS, "an environment", "Class")


def _check_name(key: str, name: str, known: Mapping[str, str], what: str, kind: str) -> None:
    """Check that a name is built in, an adapter's or can be that of the user's own code."""
    prefix, colon, rest = name.partition(":")
    if colon and prefix in ADAPTERS:
        if known is not ENVIRONMENTS:
            raise BadKeyError(key, f"={show(name)} is an environment, not a tool: set environment.factory={name}.")
        if not rest.strip():
            raise BadKeyError(key, f"={show(name)} lacks what follows the colon: write {prefix}:{ADAPTERS[prefix]}.")
        return
    if not colon and name not in known:
        near = difflib.get_close_matches(name, [*known, *ADAPTERS], n=1)
        guess = f" Did you mean {near[0]}{f':{ADAPTERS[near[0]]}' if near[0] in ADAPTERS else ''}?" if near else ""
        others = "" if known is not ENVIRONMENTS else ", reasoning_gym:TASK, openenv:URL"
        raise BadKeyError(
            key,
            f"={show(name)} is not {what} that Covey has.{guess} It must be one of {', '.join(known)}{others}, or your "
            f"own, as file.py:{kind} or package.module:{kind}.",
        )
    if colon:
        _check_own(key, name, kind)


def _check_own(key: str, name: str, kind: str) -> None:
    source, colon, attribute = name.rpartition(":")
    if not (colon and source.strip() and attribute.strip()):
        raise BadKeyError(key, f"={show(name)} is not possible: it must be file.py:{kind} or package.module:{kind}.")
