"""What a process says of its environment's class or its tool, and the functions that the trainer makes of it.

Type hints travel as plain data, not as source text, which evaluating them would run.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SIMPLE: Mapping[str, Any] = {
    **{kind.__name__: kind for kind in (int, float, str, bool, list, tuple, dict)},
    **{"None": type(None), "Any": Any, "...": ...},
}
_CONTAINERS: Mapping[str, Any] = {"list": list, "tuple": tuple, "dict": dict}
_OF_LIBRARIES = ("PIL.Image.Image", "torch.Tensor")  # which `get_json_schema` knows too
_KINDS = (
    *(inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL),
    *(inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD),
)
_SCALARS = (int, float, str, bool, type(None))


@dataclass(frozen=True)
class FunctionDescription:
    """A tool, or `reset` or `get_reward`."""

    member: str
    """Its name on the class; that of the function may differ."""
    name: str
    doc: str | None
    signature: inspect.Signature
    """Without `self`."""

    def dress(self, function: Callable[..., Any], *, method: bool = False) -> None:
        """Give a function this name, docstring, type hints and signature; with `self` for a method."""
        first = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)] if method else []
        hints = {p.name: p.annotation for p in self.signature.parameters.values() if p.annotation is not p.empty}
        if self.signature.return_annotation is not inspect.Signature.empty:
            hints["return"] = self.signature.return_annotation
        function.__name__ = function.__qualname__ = self.name
        function.__doc__ = self.doc
        function.__annotations__ = hints
        parameters = [*first, *self.signature.parameters.values()]
        function.__signature__ = self.signature.replace(parameters=parameters)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ClassDescription:
    """The class of an environment."""

    module: str
    name: str
    doc: str | None
    members: tuple[FunctionDescription, ...]


def describe_class(kind: type) -> dict[str, Any]:
    """The class of an instance as plain data, with the functions that TRL finds on it."""
    members = [
        (name, function)
        for name, function in inspect.getmembers(kind, predicate=inspect.isfunction)
        if not name.startswith("_")
    ]
    described = []
    for name, function in members:
        static = isinstance(inspect.getattr_static(kind, name), staticmethod)
        described.append(describe_function(function, member=name, bound=not static))
    return {"module": kind.__module__, "name": kind.__name__, "doc": inspect.getdoc(kind), "members": described}


def describe_function(function: Callable[..., Any], *, member: str = "", bound: bool = False) -> dict[str, Any]:
    """A function as plain data.

    Args:
        function: of a class, or a standalone tool.
        member: its name on the class.
        bound: whether its first parameter is the instance, which is left out.
    """
    signature = inspect.signature(function)
    try:
        hints = get_type_hints(function)
    except Exception:  # a hint that cannot be evaluated: the name of a type that is not imported, say
        hints = {}
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    return {
        "member": member,
        "name": getattr(function, "__name__", member),
        "doc": inspect.getdoc(function),
        "parameters": [_listed(p, _hint(hints, p.name, p.annotation)) for p in parameters],
        "returns": _hint(hints, "return", signature.return_annotation),
    }


def _listed(parameter: inspect.Parameter, hint: list[Any] | None) -> list[Any]:
    default = parameter.default
    shown = default if type(default) in _SCALARS else None
    return [parameter.name, _KINDS.index(parameter.kind), default is not parameter.empty, shown, hint]


def _hint(hints: Mapping[str, Any], name: str, annotation: Any) -> list[Any] | None:
    if annotation is inspect.Parameter.empty:
        return None
    return _encode(hints[name]) if name in hints else ["other", str(annotation)]


def _encode(hint: Any) -> list[Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    simple = next((name for name, kind in _SIMPLE.items() if hint is kind), None)
    if simple is not None:
        return ["simple", simple]
    if origin is Union or origin is types.UnionType:
        return ["union", [_encode(one) for one in arguments]]
    if origin is Literal and all(type(value) in _SCALARS for value in arguments):
        return ["literal", list(arguments)]
    if origin in _CONTAINERS.values():
        return ["container", origin.__name__, [_encode(one) for one in arguments]]
    if isinstance(hint, type) and issubclass(hint, Enum):
        members = [[member.name, member.value] for member in hint]
        if members and all(type(value) in _SCALARS for _, value in members):
            return ["enum", hint.__name__, members]
    name = f"{getattr(hint, '__module__', '')}.{getattr(hint, '__qualname__', '')}"
    return ["library", name] if name in _OF_LIBRARIES else ["other", getattr(hint, "__name__", None) or str(hint)]


def read_class(data: Any) -> ClassDescription:
    """What a process said of its environment's class. Raises a `ValueError` if that is no description."""
    match data:
        case {"module": str(module), "name": str(name), "doc": str() | None as doc, "members": list(members)}:
            return ClassDescription(module, name, doc, tuple(map(read_function, members)))
    raise ValueError("no description of a class")


def read_function(data: Any) -> FunctionDescription:
    """What a process said of a function. Raises a `ValueError` if that is no description."""
    match data:
        case {"member": str(member), "name": str(name), "doc": str() | None as doc, "parameters": list(found)}:
            try:
                parameters = [_parameter(*one) for one in found]
                returns = _annotation(data.get("returns"))
                return FunctionDescription(member, name, doc, inspect.Signature(parameters, return_annotation=returns))
            except (TypeError, IndexError, RecursionError) as error:
                raise ValueError("no description of a function") from error
    raise ValueError("no description of a function")


def _parameter(name: str, kind: int, has_default: bool, default: Any, hint: Any) -> inspect.Parameter:
    value = default if has_default else inspect.Parameter.empty
    return inspect.Parameter(name, _KINDS[kind], default=value, annotation=_annotation(hint))


def _annotation(hint: Any) -> Any:
    return inspect.Parameter.empty if hint is None else _decode(hint)


def _decode(hint: Any) -> Any:
    match hint:
        case ["simple", str(name)] if name in _SIMPLE:
            return _SIMPLE[name]
        case ["union", list(found)]:
            return Union[tuple(map(_decode, found))]  # noqa: UP007
        case ["literal", list(values)]:
            return Literal[tuple(values)]
        case ["container", str(name), list(found)] if name in _CONTAINERS:
            return _CONTAINERS[name][tuple(map(_decode, found))]
        case ["enum", str(name), list(members)]:
            return Enum(name, [(str(member), value) for member, value in members])
        case ["library", str(name)] if name in _OF_LIBRARIES:
            module, _, attribute = name.rpartition(".")
            return getattr(import_module(module), attribute)
        case ["other", str(name)]:  # no schema can be made of it, and the message names it
            return type(name, (), {})
    raise ValueError("no type hint")
