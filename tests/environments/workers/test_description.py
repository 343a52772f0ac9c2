"""Descriptions of classes and functions: plain data, from which nothing is run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Literal, get_type_hints

import pytest
from transformers.utils import get_json_schema

from covey.environments.workers.description import describe_class, describe_function, read_class, read_function


class Size(Enum):
    SMALL = 1
    LARGE = "large"


def travelled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function like another, made of its description."""

    def made() -> None: ...

    read_function(json.loads(json.dumps(describe_function(function)))).dress(made)
    return made


def every_kind(first: int, /, second: float = 0.5, *rest: str, third: bool, fourth: bytes = b"", **others: Any) -> None:
    """Take all."""


def test_a_signature_comes_back_with_its_kinds_and_defaults() -> None:
    mine, theirs = (inspect.signature(one) for one in (travelled(every_kind), every_kind))
    assert [(p.name, p.kind) for p in mine.parameters.values()] == [
        (p.name, p.kind) for p in theirs.parameters.values()
    ]
    defaults = [p.default is p.empty for p in mine.parameters.values()]
    assert defaults == [p.default is p.empty for p in theirs.parameters.values()]
    assert mine.parameters["second"].default == 0.5
    assert mine.parameters["fourth"].default is None  # bytes are no plain data


@pytest.mark.parametrize(
    "hint",
    [
        *(int, float, str, bool, list, tuple, dict, Any, None, Size, Literal["a", 1, None], list[int], dict[str, Any]),
        *(int | None, int | str, list[int] | str | None, tuple[int, str], dict[str, list[Literal[1, 2]]], list[Size]),
    ],
    ids=str,
)
def test_a_type_hint_makes_the_same_schema(hint: Any) -> None:
    def tool(value: int, more: int = 1) -> None:
        """Do.

        Args:
            value: It.
            more: More.

        Returns:
            Nothing.
        """

    tool.__annotations__ = {"value": hint, "more": hint, "return": hint}
    assert get_json_schema(travelled(tool)) == get_json_schema(tool)


@pytest.mark.parametrize("hint", [Sequence[int], Callable[[int], int], bytes, object, "Unknown", "__import__('os')"])
def test_a_hint_without_a_schema_has_none_here_either(hint: Any) -> None:
    def tool(value: int) -> None:
        """Do.

        Args:
            value: It.
        """

    tool.__annotations__ = {"value": hint}
    found = travelled(tool)
    assert isinstance(get_type_hints(found)["value"], type)  # a stand-in: no text that would be evaluated
    with pytest.raises(Exception, match="Couldn't"):
        get_json_schema(found)


def test_missing_hints_and_docstrings_are_missing_here_too() -> None:
    def tool(value) -> None: ...  # type: ignore[no-untyped-def]

    found = travelled(tool)
    assert found.__doc__ is None
    assert inspect.signature(found).parameters["value"].annotation is inspect.Parameter.empty


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"doc": []},
        {"members": {}},
        {"members": [1]},
        *({"members": [{"parameters": bad}]} for bad in ([1], [["a"]], [["a", 9, False, None, None]])),
        {"members": [{"parameters": [["not a name", 1, False, None, None]]}]},
        *(
            {"members": [{"parameters": [["a", 1, False, None, hint]]}]}
            for hint in (
                *(1, [], ["simple", "os"], ["library", "os.system"], ["union", []], ["container", "set", []]),
                *(["enum", "E", [["mro", 1]]], ["other", "a\0b"], ["union", [["simple", {}]]]),
            )
        ),
        {"members": [{"parameters": [["a", 4, True, 1, None]]}]},
    ],
    ids=str,
)
def test_what_is_no_description_is_refused(change: dict[str, Any]) -> None:
    class Game:
        def act(self, a: int) -> None:
            """Act."""

    good = json.loads(json.dumps(describe_class(Game)))
    assert [member.name for member in read_class(good).members] == ["act"]
    if isinstance(change.get("members"), list):
        change = {"members": [good["members"][0] | one if isinstance(one, dict) else one for one in change["members"]]}
    with pytest.raises(ValueError, match=r"."):
        read_class(good | change)
