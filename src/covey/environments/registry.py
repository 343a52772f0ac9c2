"""Finding an environment or tool by name: a built-in one, an adapter's, `file.py:Class`, or `package.module:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from covey.config.groups.environment import ADAPTERS, ENVIRONMENTS, TOOLS
from covey.errors import EnvironmentSetupError
from covey.importing import failure, import_object

if TYPE_CHECKING:
    from covey.config.groups.environment import EnvironmentConfig


@dataclass(frozen=True)
class EnvironmentSource:
    """What makes one environment: plain and picklable, so that a worker can make the same one."""

    name: str
    """As in the config."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the factory."""
    key: str = "environment.factory"
    """The key that names it, for messages."""


def sources_of(config: EnvironmentConfig) -> dict[str | None, EnvironmentSource]:
    """The environments of a config, by the name that a row chooses them with: {None: source} for a single factory, {}
    for none."""
    return {
        name: EnvironmentSource(factory, settings, "environment.factory" + (f".{name}" if name is not None else ""))
        for name, (factory, settings) in config.factories.items()
    }


def load_environment(source: EnvironmentSource) -> Callable[[], object]:
    """The function that makes an instance; the user's code is imported here.

    Raises:
        EnvironmentSetupError: there is no such factory, it fails to import, or it does not take these settings. Making
            an instance raises it too, where the factory fails.
    """
    prefix, colon, argument = source.name.partition(":")
    what = f"{source.key}: {source.name}"
    if colon and prefix in ADAPTERS:
        make = import_module(f"covey.environments.adapters.{prefix}").make(argument, source.settings)
    else:
        make = _with_settings(_named(source.name, source.key, ENVIRONMENTS), source)

    def factory() -> object:
        try:
            return make()
        except EnvironmentSetupError:
            raise
        except Exception as cause:  # the user's own code, which may raise anything
            raise EnvironmentSetupError(f"{what} cannot be made: {failure(cause)}") from cause

    return factory


def load_tool(name: str) -> Callable[..., Any]:
    """The function called `name` in `environment.tools`. Raises an `EnvironmentSetupError` if there is no such
    function, or it fails to import."""
    found = _named(name, "environment.tools", TOOLS)
    if inspect.isclass(found):
        raise EnvironmentSetupError(
            f"environment.tools: {name} is a class, and a tool is a function: for an environment, set "
            f"environment.factory={name}."
        )
    if not hasattr(found, "__name__"):
        raise EnvironmentSetupError(
            f"environment.tools: {name} is not a function but of type {type(found).__name__}: write a function with "
            "type hints and a docstring that calls it."
        )
    return found


def _named(name: str, key: str, known: Mapping[str, str]) -> Callable[..., Any]:
    found = import_object(known.get(name, name), key, EnvironmentSetupError)
    if not callable(found):
        raise EnvironmentSetupError(f"{key}: {name} cannot be called: it is of type {type(found).__name__}.")
    call: Callable[..., Any] = found
    return call


def _with_settings(factory: Callable[..., Any], source: EnvironmentSource) -> Callable[[], object]:
    """The factory with its settings filled in, which it must accept."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some classes written in C; making an instance shows whether they fit
        return lambda: factory(**source.settings)
    try:
        signature.bind(**source.settings)
    except TypeError as problem:
        takes = ", ".join(name for name, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD)
        given = ", ".join(source.settings) or "none"
        raise EnvironmentSetupError(
            f"{source.key}: {source.name} cannot be made with environment.settings ({given}): {problem}. "
            f"It takes {takes or 'no settings'}."
        ) from None
    return lambda: factory(**source.settings)
