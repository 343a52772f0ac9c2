"""Tests of a program, as data sets hold them."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import RewardError

COLUMNS = ("tests", "verification_info", "test_list", "test_cases")
"""Columns that hold tests, the first one that a row has counting."""


@dataclass(frozen=True, slots=True)
class Cases:
    """The tests of one row: inputs with their outputs, or test code."""

    language: str = "python"
    pairs: tuple[tuple[str, str], ...] = ()
    """Standard input, and the output that is expected."""
    source: str = ""
    """Asserts, statements and test functions."""


def read_cases(row: Mapping[str, Any]) -> Cases | None:
    """The tests of a row; None where it has none that can be read.

    Read are pairs (`{"input": …, "output": …}`, in a list, or as two lists `inputs` and `outputs`), calls (pairs with
    `fn_name`), asserts (a text, or a list of texts), open-r1's `verification_info`, and JSON text of any of them.

    Raises:
        RewardError: the row has none of the columns.
    """
    name = next((name for name in COLUMNS if row.get(name) is not None), None)
    if name is None:
        if not any(name in row for name in COLUMNS):
            raise RewardError(
                "The reward code needs tests: the data must have a column tests with, for each row, a list of "
                '{"input": …, "output": …} or a text of asserts; or verification_info, as open-r1 has it.'
            )
        return None
    language = row.get("language") if isinstance(row.get("language"), str) else None
    return _read(row[name], str(language or "python").lower())


def _read(value: Any, language: str) -> Cases | None:
    if isinstance(value, str):
        try:
            return _read(json.loads(value), language)
        except ValueError:
            return Cases(language, source=value) if _is_code(value) else None
    if isinstance(value, Mapping):
        language = str(value.get("language") or language).lower()
        if value.get("test_cases") is not None:
            return _read(value["test_cases"], language)
        if isinstance(value.get("inputs"), list) and isinstance(value.get("outputs"), list):
            if len(value["inputs"]) != len(value["outputs"]):
                return None
            found = zip(value["inputs"], value["outputs"], strict=True)
            return _pairs([{"input": a, "output": b, "fn_name": value.get("fn_name")} for a, b in found], language)
        return None
    if isinstance(value, list) and value:
        if all(isinstance(one, str) for one in value):
            source = "\n".join(value)
            return Cases(language, source=source) if _is_code(source) else None
        if all(isinstance(one, Mapping) and "output" in one for one in value):
            return _pairs(value, language)
    return None


def _pairs(found: Sequence[Mapping[str, Any]], language: str) -> Cases | None:
    if not found:
        return None
    if not any(one.get("fn_name") for one in found):
        return Cases(language, tuple((_text(one.get("input")), _text(one["output"])) for one in found))
    lines = []
    for one in found:
        arguments = one.get("input")
        if isinstance(arguments, str):  # one JSON value a line
            try:
                arguments = [json.loads(line) for line in arguments.splitlines() if line.strip()]
            except ValueError:
                return None
        wanted, test = one["output"], "=="
        if isinstance(wanted, list) and len(wanted) == 1 and isinstance(one.get("input"), list):
            wanted, test = (wanted[0], wanted), "in"  # APPS and TACO hold a result so, others do not
        elif isinstance(wanted, str) and isinstance(one.get("input"), str):
            with contextlib.suppress(ValueError):
                wanted = json.loads(wanted)
        function = str(one.get("fn_name"))
        if not function.isidentifier() or not isinstance(arguments, list):
            return None
        lines.append(f"assert {function}(*{arguments!r}) {test} {wanted!r}")
    return Cases(language, source="\n".join(lines))


def _text(value: Any) -> str:
    """Input or output as text: lists are lines."""
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _is_code(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
