"""Objectives by name: Covey's own, and a user's class with its settings; and how a run records an object."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from covey.config.groups.objectives import SETTINGS
from covey.config.values import BadKeyError, check_choice, check_option, coerce, describe, show
from covey.errors import ConfigError
from covey.importing import import_object, name_of, user_errors
from covey.objective.by_modes import SEED, Darling, Unique, Unlikely
from covey.objective.by_rewards import GRPO, DrGRPO, MaxRL, PassK, Quantile
from covey.objective.interface import Objective, check_objective
from covey.objective.maxent import MaxEnt
from covey.objective.xdr import XDR

REGISTRY: dict[str, Callable[..., Objective]] = {
    "grpo": GRPO,
    "maxent": MaxEnt,
    "dr_grpo": DrGRPO,
    "maxrl": MaxRL,
    "xdr": XDR,
    "passk": PassK,
    "unique": Unique,
    "darling": Darling,
    "seed": SEED,
    "quantile": Quantile,
    "unlikely": Unlikely,
}
"""One line per objective."""


def make(name: str, **settings: Any) -> Objective:
    """The objective called `name`.

    Args:
        name: a name of the registry.
        settings: of the objective, such as `tau` of `maxent`.

    Raises:
        ConfigError: there is no such objective or setting, or a value is invalid.
    """
    if name not in REGISTRY:
        raise ConfigError(f"There is no objective called {name}. Covey has {', '.join(REGISTRY)}.")
    taken = inspect.signature(REGISTRY[name]).parameters
    if unknown := [key for key in settings if key not in taken]:
        has = f"it has {', '.join(taken)}" if taken else "it has none"
        raise ConfigError(f"The objective {name} has no setting called {', '.join(unknown)}; {has}.")
    return REGISTRY[name](**settings)


class UnstorableError(TypeError):
    """The value is not plain data; the message says where, and its type."""


def plain_copy(value: Any, where: str = "", *, tensors: bool = False) -> Any:
    """The value as numbers, strings, booleans, None, and lists and mappings of them, sharing nothing with it.

    Args:
        value: the value.
        where: it is, for the message.
        tensors: whether tensors may be in it.

    Raises:
        UnstorableError: it is anything else.
    """
    if tensors and isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):  # NumPy's numbers derive from these
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        return {
            plain_copy(key): plain_copy(inner, f"{where}[{key!r}]", tensors=tensors) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        inside = [plain_copy(inner, f"{where}[{at}]", tensors=tensors) for at, inner in enumerate(value)]
        return tuple(inside) if isinstance(value, tuple) else inside
    raise UnstorableError(f"{where} holds a value of the type {type(value).__name__}")


RECORDED = "__repr__"
"""The setting that stands for an object that cannot be made again from settings."""
_KEY = "objective.settings"
_SIMPLE = {bool: "bool", int: "int", float: "float", str: "str", type(None): "None"}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def load(name: str, settings: Mapping[str, Any]) -> Objective:
    """The objective `file.py:Class` or `package.module:Class`, with these settings.

    Raises:
        ConfigError: there is no such class, it is no objective, or a setting is unknown, missing or wrong.
    """
    if name.startswith("__main__:") or RECORDED in settings:
        raise ConfigError(
            f"objective.name={name} was given to covey.train(objective=…) as a Python object, which cannot be made "
            "from its name: resume by the same call, or put the class into a file and name it, as "
            "objective.name=file.py:Class with objective.settings={…}."
        )
    return make_own(import_object(name, "objective.name", ConfigError), settings, name)


def make_own(kind: Any, settings: Mapping[str, Any], name: str) -> Objective:
    """An instance of a user's class.

    A dataclass takes its fields as settings; with an attribute `Settings` that is a dataclass, the class gets an
    instance of that; any other class gets the settings as keyword arguments. Values are checked by their annotations,
    and by `option` where a field has one.

    Args:
        kind: the class.
        settings: values by name.
        name: of the class, for messages.

    Raises:
        ConfigError: it is no objective, or a setting is unknown, missing or wrong.
    """
    if not inspect.isclass(kind):
        raise ConfigError(f"objective.name={name} is not a class but of type {type(kind).__name__}.")
    if not callable(getattr(kind, "advantages", None)):
        raise ConfigError(
            f"objective.name={name} is not an objective: the class has no method advantages(self, rewards_PG, mask_PG, "
            "**kwargs)."
        )
    if inspect.isabstract(kind):
        raise ConfigError(f"objective.name={name} is an abstract class: write all of its abstract methods.")
    own, constructor = _settings_of(kind), typing.cast(Callable[..., Objective], kind)
    values = _checked(own, settings, name)
    with user_errors(f"{_KEY}={show(dict(settings))} cannot make {name}", ConfigError):
        made = constructor(own(**values)) if own is not kind else constructor(**values)
    check_objective(made, f"objective.name={name}: the objective")
    return made


def record(objective: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """How the config records what `covey.train(objective=…)` was given.

    One of Covey's is recorded by its name and settings. Of any other object, `objective.settings` has what would make
    it again: of a dataclass its fields, of a class with `Settings` the fields of its attribute `settings`, else what
    its constructor takes, read from the attributes of the same names. If they are not plain data or not all there, the
    text of the object stands for them.

    Returns:
        Overrides; and the `objective.settings`, or None to keep those of the config, for a class.

    Raises:
        ConfigError: it is no objective.
    """
    if inspect.isclass(objective):
        return {"objective.name": name_of(objective)}, None
    check_objective(objective)
    kind = type(objective)
    for name, settings in SETTINGS.items():
        if kind is REGISTRY[name]:
            keys = [item.name for item in dataclasses.fields(settings)]
            return {"objective.name": name, **{f"objective.{name}_{key}": getattr(objective, key) for key in keys}}, {}
    own = _settings_of(kind)
    source = objective if own is kind else getattr(objective, "settings", None)
    try:
        found = {name: plain_copy(getattr(source, name)) for name in _parameters(own)}
    except (AttributeError, UnstorableError):
        found = {RECORDED: _ADDRESS.sub("", repr(objective))}
    return {"objective.name": name_of(kind)}, found


def _settings_of(kind: type) -> type:
    """The class that takes the settings: the dataclass `Settings` of this one, or itself."""
    nested = getattr(kind, "Settings", None)
    return nested if inspect.isclass(nested) and dataclasses.is_dataclass(nested) else kind


def _parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """What the constructor takes, but for `*args`."""
    found = {} if kind.__init__ is object.__init__ else inspect.signature(kind).parameters
    return {name: p for name, p in found.items() if p.kind is not p.VAR_POSITIONAL}


def _checked(kind: type, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings, converted to the types that the class wants."""
    parameters, hints = _parameters(kind), _hints(kind)
    options = {item.name: item for item in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [key for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    values = {}
    for key, value in settings.items():
        if key not in known and not takes_any:
            near = difflib.get_close_matches(key, known, n=1)
            guess = f" Did you mean {near[0]}?" if near else ""
            has = f"has {', '.join(known)}" if known else "has none"
            raise BadKeyError(f"{_KEY}.{key}", f" is not a setting of {name}, which {has}.{guess}")
        try:
            values[key] = _fitted(f"{_KEY}.{key}", value, hints.get(key))
            if key in options:
                check_option(f"{_KEY}.{key}", values[key], options[key])
        except BadKeyError as problem:
            raise BadKeyError(problem.key, f"{problem.text} (A setting of {name}.)") from None
    for key in known:
        if parameters[key].default is inspect.Parameter.empty and key not in values:
            kind_of = _kind(hints.get(key))
            wanted = f": set it to {describe(kind_of)}" if kind_of else ""
            raise BadKeyError(f"{_KEY}.{key}", f" is missing, and {name} needs it{wanted}.")
    return values


def _fitted(key: str, value: Any, hint: Any) -> Any:
    """The value, converted to its type; unchanged for a type that is not known here."""
    if typing.get_origin(hint) is typing.Literal:
        check_choice(key, value, typing.get_args(hint))
    kind = _kind(hint)
    return value if kind is None else coerce(key, value, kind)


def _hints(kind: Any) -> dict[str, Any]:
    """The types of a class's settings, but for those whose names exist for type checkers only."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    found: dict[str, Any] = {}
    for name, hint in ({item.name: item.type for item in fields} or inspect.get_annotations(kind.__init__)).items():
        holder = types.SimpleNamespace(__annotations__={name: hint})
        with contextlib.suppress(Exception):
            found |= typing.get_type_hints(holder, vars(sys.modules[kind.__module__]))
    return found


def _kind(hint: Any) -> str | None:
    """A type as `coerce` reads it; None for one that it does not know."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        texts = [_kind(member) for member in inside]
        return None if None in texts else " | ".join(map(str, texts))
    if origin in (dict, Mapping):
        value = _kind(inside[1]) if inside else None
        return f"dict[str, {value}]" if value else "dict"
    if origin in (list, Sequence, tuple) and (len(inside) == 1 or inside[1:] == (...,)):
        item = _kind(inside[0])
        return item and (f"tuple[{item}, ...]" if origin is tuple else f"list[{item}]")
    return None
