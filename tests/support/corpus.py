"""Files with a case a line: its kind, what is given, and the verdict that was decided by hand; `why` is for readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Case = dict[str, Any]


def read_cases(file: Path) -> dict[str, list[Case]]:
    """The cases of each kind."""
    found: dict[str, list[Case]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        found.setdefault(case["kind"], []).append(case)
    return found


def disagreements(cases: list[Case], find: Callable[[Case], Any]) -> list[str]:
    """Every case whose verdict is not what `find` gives, as a paragraph; `true` and 1 differ."""
    assert cases
    found = [(case, case["verdict"], find(case)) for case in cases]
    return [
        f"\n{json.dumps(case, ensure_ascii=False)[:1000]}\n    gave {one!r}"
        for case, verdict, one in found
        if one != verdict or isinstance(one, bool) is not isinstance(verdict, bool)
    ]


def assert_verdicts(cases: list[Case], find: Callable[[Case], Any]) -> None:
    wrong = disagreements(cases, find)
    assert not wrong, f"{len(wrong)} of {len(cases)} cases:" + "".join(wrong)
