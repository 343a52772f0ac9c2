"""TRL's contract of environments and tools, and finding one by name.

An environment is an object whose class has `reset(**row)`, which gets every column of the row and returns what the
model is told at the start, if anything; its public methods are tools; `get_reward()`, if it has one, returns the reward
of the episode. A method may be `async`: its process runs it to its end, as TRL's event loop would. A name is a built-in
one, an adapter's, `file.py:Class`, or `package.module:Class`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from covey.config.groups.dataset import name_in_file
from covey.config.groups.environment import ADAPTERS, ENVIRONMENTS, TOOLS
from covey.errors import EnvironmentSetupError, one_line
from covey.importing import failure, import_object

if TYPE_CHECKING:
    from covey.config.groups.environment import EnvironmentConfig


class EnvironmentLostError(Exception):
    """Raised by a tool of an environment that cannot go on, as when its server is gone: the episode ends as crashed,
    without a reward, and the next one begins in a new process. Any other exception of a tool is text for the model."""


RESET, GET_REWARD = "reset", "get_reward"


def tool_methods(environment_class: type) -> list[str]:
    """The names of the methods that the model may call, as TRL finds them: the functions of the class, without `reset`,
    `get_reward` and names that begin with an underscore."""
    names = [name for name, _ in inspect.getmembers(environment_class, predicate=inspect.isfunction)]
    return [name for name in names if name not in (RESET, GET_REWARD) and not name.startswith("_")]


def has_reward(environment_class: type) -> bool:
    """Whether episodes of the environment are rewarded by itself."""
    return inspect.isfunction(getattr(environment_class, GET_REWARD, None))


def reset_arguments(reset: Callable[..., Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """What of a row `reset` gets: the columns under the names and with the values of their file; without `**row`, only
    those that it names.
    """
    own = {name_in_file(name): value for name, value in row.items() if name != name_in_file(name)}
    given = {name: value for name, value in row.items() if name == name_in_file(name)} | own
    parameters = inspect.signature(reset).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return given
    return {p.name: given[p.name] for p in parameters if p.name in given and p.kind is not p.POSITIONAL_ONLY}


def missing_columns(reset: Callable[..., Any], columns: Iterable[str]) -> list[str]:
    """The columns that `reset` needs and that rows lack."""
    there = set(map(name_in_file, columns))
    return [name for name in _needed(reset) if name not in there]


def check_tool(function: Callable[..., Any], where: str) -> dict[str, Any]:
    """The JSON schema of a tool, as the chat template is shown it.

    Args:
        where: what names it, for the message.

    Raises:
        EnvironmentSetupError: it lacks type hints or a docstring that describes every argument.
    """
    schema, faults = _schema(function)
    if faults:
        raise EnvironmentSetupError(f"{where}: {'; '.join(faults)}. {_WANTED}")
    return schema


def check_environment(instance: object, where: str) -> None:
    """Check that an instance can be reset and that every one of its tools has a schema.

    Args:
        instance: of the environment.
        where: what names the environment, for the message.

    Raises:
        EnvironmentSetupError: naming everything that is missing.
    """
    kind = type(instance)
    if not inspect.isfunction(getattr(kind, RESET, None)):
        raise EnvironmentSetupError(
            f"{where}: {kind.__name__} has no method reset, which begins an episode: define reset(self, **row), which "
            "gets the columns of the row and returns the text that the model is told first, or None."
        )
    if has_reward(kind) and (needed := _needed(instance.get_reward)):  # type: ignore[attr-defined]
        raise EnvironmentSetupError(
            f"{where}: get_reward of {kind.__name__} is called without arguments, but needs {', '.join(needed)}: "
            "keep that as attributes, which reset sets."
        )
    faults = [f"{name} {fault}" for name in tool_methods(kind) for fault in _schema(getattr(instance, name))[1]]
    if faults:
        raise EnvironmentSetupError(f"{where}: {'; '.join(faults)}. {_WANTED}")


_WANTED = (
    "The model is shown a tool's type hints and docstring: give every argument a type hint, and describe the function "
    "and, below `Args:`, each argument. The name of a method that is no tool begins with an underscore."
)


def _schema(function: Callable[..., Any]) -> tuple[dict[str, Any], list[str]]:
    """The schema that transformers makes of a function, and everything that the function lacks for it."""
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    parameters = inspect.signature(function).parameters
    untyped = [name for name, parameter in parameters.items() if parameter.annotation is parameter.empty]
    faults = [f"has no type hint for {', '.join(untyped)}"] if untyped else []
    doc = (inspect.getdoc(function) or "").strip()
    if doc:
        described = parse_google_format_docstring(doc)[1] or {}
        missing = [name for name in parameters if name not in described]
        faults += [f"does not describe {', '.join(missing)} in its docstring"] if missing else []
    else:
        faults += ["has no docstring"]
    if faults:
        return {}, faults
    try:
        return get_json_schema(function), []
    except Exception as problem:  # what it raises depends on the hints, which are evaluated
        return {}, [f"has no schema: {one_line(problem)}"]


def _needed(function: Callable[..., Any]) -> list[str]:
    """The arguments that a call must give."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


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
