"""Tools from JSON schemas: transformers makes the same schema of the function again, and calls are checked."""

from __future__ import annotations

from typing import Any

import pytest

from covey.environments.adapters.tool_schemas import ToolSchema, tool_method
from covey.environments.contract import check_environment, check_tool, tool_methods
from covey.errors import EnvironmentSetupError


def environment(*tools: ToolSchema) -> Any:
    def called(name: str) -> Any:
        return lambda self, arguments: f"{name} {arguments}"

    methods: dict[str, Any] = {tool.name: tool_method(tool, called(tool.name), "here") for tool in tools}
    return type("Made", (), {"reset": lambda self, **row: None, **methods})()


def parameters_of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    made = environment(ToolSchema("tool", "Do it.", {"type": "object", "properties": properties, **more}))
    check_environment(made, "here")
    found: dict[str, Any] = check_tool(made.tool, "here")["function"]["parameters"]
    return found


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"type": "string"}),
        ({"type": "integer"}, {"type": "integer"}),
        ({"type": "number"}, {"type": "number"}),
        ({"type": "boolean"}, {"type": "boolean"}),
        ({"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "integer"}}),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object"}),
        ({"enum": ["left", "right"], "type": "string"}, {"type": "string", "enum": ["left", "right"]}),
        ({"const": "only"}, {"type": "string", "enum": ["only"]}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string", "nullable": True}),
        ({"type": ["integer", "null"]}, {"type": "integer", "nullable": True}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"type": ["integer", "string"]}),
        ({"$ref": "#/$defs/Side"}, {"type": "string", "enum": ["up", "down"]}),
        ({"$ref": "#/$defs/Itself"}, {}),
        ({}, {}),
    ],
)
def test_a_type_comes_back(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    definitions = {
        "Side": {"enum": ["up", "down"], "type": "string"},
        "Itself": {"anyOf": [{"$ref": "#/$defs/Itself"}]},
    }
    found = parameters_of({"x": {**schema, "description": "An x."}}, required=["x"], **{"$defs": definitions})
    assert found == {"type": "object", "properties": {"x": {**expected, "description": "An x."}}, "required": ["x"]}


def test_what_is_not_required_may_be_left_out() -> None:
    found = parameters_of({"a": {"type": "integer", "default": 3}, "b": {"type": "string"}, "c": {}}, required=["b"])
    assert found["required"] == ["b"]
    assert found["properties"]["a"] == {"type": "integer", "description": "a"}


def test_the_description_of_an_mcp_tool_is_its_docstring_without_sections() -> None:
    text = "Add two\nnumbers.\n\nArgs:\n    a: First.\n\nReturns:\n    The sum."
    made = environment(ToolSchema("add", text, {"properties": {"a": {"type": "integer", "title": "A"}}}))
    function = check_tool(made.add, "here")["function"]
    assert function["description"] == "Add two numbers."
    assert function["parameters"]["properties"]["a"]["description"] == "A"


def test_a_tool_without_description_or_parameters() -> None:
    made = environment(ToolSchema("look", ""))
    function = check_tool(made.look, "here")["function"]
    assert (function["name"], function["description"]) == ("look", "look")
    assert function["parameters"] == {"type": "object", "properties": {}}
    assert made.look() == "look {}"


def test_calls_get_what_is_given_and_nothing_else() -> None:
    made = environment(
        ToolSchema("go", "Go.", {"properties": {"by": {"default": 1}, "to": {"type": "string"}}, "required": ["to"]})
    )
    assert tool_methods(type(made)) == ["go"]
    assert made.go(to="x") == "go {'to': 'x'}"
    assert made.go("x", by=2) == "go {'to': 'x', 'by': 2}"
    for wrong in ({}, {"to": "x", "at": 1}):
        with pytest.raises(TypeError):
            made.go(**wrong)


@pytest.mark.parametrize("name", ["reset", "get_reward", "_hidden", ""])
def test_a_name_that_environments_use(name: str) -> None:
    with pytest.raises(EnvironmentSetupError, match="cannot be called"):
        environment(ToolSchema(name, "x"))


@pytest.mark.parametrize("name", ["a-b", "class", "self", "2x"])
def test_a_parameter_that_python_cannot_have(name: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=f"the tool go has a parameter called '{name}'"):
        environment(ToolSchema("go", "x", {"properties": {name: {"type": "string"}}}))
