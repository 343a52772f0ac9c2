"""The rewards `code` and `binary_code`, built from a grade."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from covey.errors import RewardError
from covey.rewards.code.cases import COLUMNS, Cases, read_cases
from covey.rewards.code.grade import all_or_nothing, code, extract_code
from covey.rewards.reward import Graded, Reward, named, texts_of
from covey.rewards.settings import RewardSettings
from covey.sandbox import strictest

_GRACE = 30.0  # seconds beyond the programs' own limits


def build_code(settings: RewardSettings) -> Reward:
    """The share of the tests that a program passes; see `grade.code`."""
    strictest()  # found out once, before workers are forked

    def batch(
        prompts: Sequence[Any] | None = None, completions: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        return [graded.value for graded in _grades(completions, columns, settings)]

    return Reward(
        "code",
        named(batch, "code", code),
        partial(code, settings=settings),
        partial(_key, settings=settings),
        reads=COLUMNS,
        seconds=partial(_seconds, settings=settings),
    )


def build_binary_code(settings: RewardSettings) -> Reward:
    """1 for a program that passes all tests, else 0."""

    def batch(
        prompts: Sequence[Any] | None = None, completions: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        return all_or_nothing((), (), _grades(completions, columns, settings))

    return Reward(
        "binary_code", named(batch, "binary_code", all_or_nothing), graded_by="code", from_grades=all_or_nothing
    )


def _grades(completions: Sequence[Any] | None, columns: Mapping[str, Any], settings: RewardSettings) -> list[Graded]:
    texts = texts_of("code", completions)
    for name in COLUMNS:
        if name in columns and (isinstance(columns[name], str) or len(columns[name]) != len(texts)):
            raise RewardError(f"The reward code takes one value of {name} per completion: {len(texts)} values.")
    own = [name for name in (*COLUMNS, "language") if name in columns]
    rows = [{name: columns[name][index] for name in own} for index in range(len(texts))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(partial(code, settings=settings), texts, rows))


def _key(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Hashable | None:
    """Equal programs with equal tests have equal grades."""
    tests = {name: row.get(name) for name in (*COLUMNS, "language")}
    try:
        told = json.dumps([extract_code(text, _cases(row).language, settings.tags), tests], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return "code", hashlib.blake2b(told.encode("utf-8", "surrogatepass")).digest()


def _cases(row: Mapping[str, Any]) -> Cases:
    """The tests of a row; none where they cannot be read, which grading tells."""
    try:
        return read_cases(row) or Cases()
    except RewardError:
        return Cases()


def _seconds(row: Mapping[str, Any], settings: RewardSettings) -> float:
    runs = max(1, len(_cases(row).pairs))
    return 2 * runs * settings.code.limits.wall_seconds + _GRACE
