"""Programs with tests in the styles of the field, one a line: those that do their task pass, those that do not fail."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from covey.sandbox import Limits, Program, run, run_tests

LIMITS = Limits(seconds=10.0)
ROWS = [json.loads(line) for line in Path(__file__).with_name("programs.jsonl").read_text("utf-8").splitlines()]
KINDS: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
for _row in ROWS:
    KINDS[_row["kind"]].append(_row)


def _verdict(row: dict[str, str]) -> str:
    outcomes, _ = run_tests(row["program"], row["tests"], LIMITS)
    return "right" if outcomes and set(outcomes) == {"right"} else "wrong"


def _need_numpy(kind: str) -> None:
    if kind == "arrays" and run(Program.of("import numpy"), limits=LIMITS)[0].status:
        pytest.skip("the interpreter of the sandbox has no numpy")


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_each_kind(kind: str) -> None:
    _need_numpy(kind)
    assert _verdict(KINDS[kind][-1]) == KINDS[kind][-1]["verdict"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_verdicts(kind: str) -> None:
    _need_numpy(kind)
    assert [row["program"] for row in KINDS[kind] if _verdict(row) != row["verdict"]] == []
