"""Tools that are known by a JSON schema only, as functions whose signature and docstring give that schema again."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from covey.environments.contract import GET_REWARD, RESET
from covey.errors import EnvironmentSetupError

_TYPES: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_SECTION = re.compile(r"\n\s*(?:Args|Arguments|Parameters|Returns|Raises|Example|Examples):\s*\n.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool of a server."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """A JSON schema of type object, as MCP has it."""


def tool_method(tool: ToolSchema, call: Callable[[Any, dict[str, Any]], Any], where: str) -> Callable[..., Any]:
    """A method with the tool's name, parameters and description.

    Args:
        tool: its schema.
        call: gets the instance and the arguments that were given.
        where: what names the tool, for messages.

    Returns:
        A function for a class, whose calls check the names of the arguments.

    Raises:
        EnvironmentSetupError: the tool or a parameter has a name that no method can have.
    """
    if not tool.name or tool.name.startswith("_") or tool.name in (RESET, GET_REWARD):
        raise EnvironmentSetupError(f"{where}: a tool cannot be called {tool.name!r}: environments use that name.")
    properties = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or ()
    definitions = tool.parameters.get("$defs") or {}
    parameters, described = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)], []
    for name, schema in sorted(properties.items(), key=lambda item: item[0] not in required):
        hint = _hint(schema, definitions)
        default = inspect.Parameter.empty
        if name not in required:
            default = schema.get("default")
            hint = hint | None if default is None and hint is not Any else hint
        if not name.isidentifier() or keyword.iskeyword(name) or name == "self":
            raise EnvironmentSetupError(
                f"{where}: the tool {tool.name} has a parameter called {name!r}, which no Python function can have: "
                "give the tools that the model needs names of your own with the setting tools."
            )
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=hint))
        described.append(f"    {name}: {_line(schema.get('description') or schema.get('title') or name)}")
    signature = inspect.Signature(parameters, return_annotation=str)

    def method(self: Any, /, *given: Any, **arguments: Any) -> Any:
        bound = signature.bind(self, *given, **arguments).arguments
        return call(self, {name: value for name, value in bound.items() if name != "self"})

    method.__name__ = method.__qualname__ = tool.name
    # Without the sections of a docstring, which the parameters have themselves.
    summary = _line(_SECTION.sub("", f"\n{tool.description}")) or tool.name
    method.__doc__ = "\n".join([summary, *(["", "Args:", *described] if described else [])])
    method.__annotations__ = {p.name: p.annotation for p in parameters[1:]} | {"return": str}
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def _line(text: Any) -> str:
    return " ".join(str(text).split())


def _hint(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = 0) -> Any:
    """The type hint that stands for a JSON schema: exact for plain types and lists of them."""
    if depth > 8:  # a schema that contains itself
        return Any
    reference = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if reference:
        return _hint(definitions.get(reference) or {}, definitions, depth + 1)
    if "const" in schema or schema.get("enum"):
        values = tuple(schema["enum"]) if schema.get("enum") else (schema["const"],)
        return Literal[values] if all(isinstance(value, str | int | bool) for value in values) else Any
    several = schema.get("anyOf") or schema.get("oneOf")
    kind = schema.get("type")
    if isinstance(kind, list):
        several = [{**schema, "type": one} for one in kind]
    if several:
        hints = [_hint(one, definitions, depth + 1) for one in several]
        union = hints[0]
        for hint in hints[1:]:
            union = Any if Any in (union, hint) else union | hint
        return union
    if kind == "array":
        return list[_hint(schema.get("items") or {}, definitions, depth + 1)]  # type: ignore[misc]
    if kind == "object":
        return dict
    return _TYPES.get(str(kind), Any)
