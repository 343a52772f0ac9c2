"""Test code and tested code in two processes: the outcomes of asserts, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus import Case, read_cases
from covey.sandbox import Ended, Limits, run_tests

LIMITS = Limits(seconds=2.0)
CASES = read_cases(Path(__file__).with_name("peer.jsonl"))


@pytest.mark.parametrize("case", CASES["honest"], ids=lambda case: case["name"])
def test_honest_code(case: Case) -> None:
    outcomes, ended = run_tests(case["program"], case["tests"], LIMITS)
    assert outcomes == case["verdict"]
    assert ended.ended is Ended.OK


@pytest.mark.parametrize("case", CASES["hostile"], ids=lambda case: case["name"])
def test_hostile_code_passes_no_test(case: Case) -> None:
    outcomes, _ = run_tests(case["program"], case["tests"], LIMITS)
    assert outcomes
    assert "right" not in outcomes[-1:]
    assert set(outcomes) <= {"wrong", "failed", "ended", "right"}
    if case["name"] != "reaches into the tests' objects":
        assert "right" not in outcomes


def test_code_that_is_no_python() -> None:
    outcomes, ended = run_tests("def f(x) return x", "assert f(1) == 1\nassert f(2) == 2", LIMITS)
    assert outcomes == ["failed", "failed"]
    assert b"SyntaxError" in ended.stderr


def test_test_code_that_is_none() -> None:
    assert run_tests("x = 1", "x = = 1", LIMITS)[0] == []
