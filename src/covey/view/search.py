"""Searching, filtering and sorting the completions of a run, of which short columns and the texts are in memory."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from covey.errors import ConfigError
from covey.report.completions.rows import Shown
from covey.runlog.files import writable

EXCERPT = 160
"""Letters of a question or a completion in a list."""
PAGE, MOST_ROWS = 100, 500
"""Rows of one answer, unless asked for more or fewer, and at most."""

_NUMBERS = ("reward", "advantage", "weight", "length", "calls", "failures", "seconds", "problem")
_TEXTS = ("outcome", "ended")
_FACETS = ("reward", "advantage", "weight", "length", "calls", "seconds")
ORDERS = ("step", *(f"{name}-{way}" for name in _FACETS for way in ("down", "up")))
_EPISODES = ("called", "uncalled", "failed", "unanswered")
NOT_RIGHT = "not right"
_BATCH = 64  # files whose texts are searched together

Placed = tuple[Sequence[int], Shown]
"""A group, and the places of its completions in their file."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which completions of a source are wanted, and in which order."""

    q: str = ""
    """Text in the prompt, the completion or the gold answer, in upper or lower case."""
    step: int | None = None
    problem: int | None = None
    outcome: str = ""
    """A grader's outcome, or `not right`."""
    episode: str = ""
    """`called`, `uncalled`, `failed` or `unanswered`; or `=` and how it ended."""
    truncated: bool = False
    sort: str = "step"
    offset: int = 0
    limit: int = PAGE

    @property
    def is_plain(self) -> bool:
        """Whether everything is wanted, in the order of the files."""
        return self == Query(offset=self.offset, limit=self.limit)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """From the parameters of an address; others are ignored.

        Raises:
            ConfigError: one has a value that is not possible.
        """
        sort, episode = given.get("sort", "step"), given.get("episode", "")
        if sort not in ORDERS:
            raise ConfigError(f"sort={sort} is not possible: it must be one of {', '.join(ORDERS)}.")
        if episode and not episode.startswith("=") and episode not in _EPISODES:
            raise ConfigError(f"episode={episode} is not possible: it must be one of {', '.join(_EPISODES)}, or =END.")
        return cls(
            q=given.get("q", ""),
            step=whole(given, "step", None),
            problem=whole(given, "problem", None),
            outcome=given.get("outcome", ""),
            episode=episode,
            truncated=given.get("truncated", "") not in ("", "0", "false"),
            sort=sort,
            offset=whole(given, "offset", 0),
            limit=min(MOST_ROWS, whole(given, "limit", PAGE)),
        )


Missing = TypeVar("Missing", int, None)


def whole(given: Mapping[str, str], name: str, missing: Missing) -> int | Missing:
    """A parameter that is a whole number of 0 or more; `missing` if it is not given.

    Raises:
        ConfigError: it is something else.
    """
    text = given.get(name, "")
    if not text:
        return missing
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ConfigError(f"{name}={text} is not possible: it must be a whole number, 0 or more.")
    return int(text)


class FileTexts:
    """The texts of the completions in one file."""

    def __init__(self, groups: Sequence[Placed], state: object = None) -> None:
        self.state = state  # of the file
        self.written = _strings(one["text"] for _, group in groups for one in group["completions"])
        self.asked = _strings(f"{group['prompt']}\n{group.get('answer', '')}" for _, group in groups)
        self.bytes = self.written.nbytes + self.asked.nbytes

    def excerpt(self, place: int, wanted: str) -> str:
        """Some letters of a completion, around this text where it is far from the beginning."""
        text: str = self.written[place].as_py()
        at = text.lower().find(wanted.lower())
        first = at - EXCERPT // 3 if at > EXCERPT // 2 else 0
        return ("…" if first else "") + text[first : first + EXCERPT]


def _strings(texts: Iterable[str]) -> pa.LargeStringArray:
    return pa.array(map(writable, texts), pa.large_string())


def _containing(texts: Sequence[pa.LargeStringArray], wanted: str) -> np.ndarray:
    """Which texts contain this one, in upper or lower case."""
    found = pa.chunked_array(texts, pa.large_string())
    if wanted.isascii():  # then a search of bytes is enough, and several times as fast
        found = found.cast(pa.large_binary())
    return np.asarray(pc.match_substring(found, writable(wanted), ignore_case=True))


class FileColumns:
    """Everything else about the completions in one file that is filtered, sorted by, or shown in lists."""

    def __init__(self, step: int | None, groups: Sequence[Placed]) -> None:
        found = [(group, one) for _, group in groups for one in group["completions"]]
        self.step = np.full(len(found), np.nan if step is None else step)
        self.places = np.array([place for places, _ in groups for place in places], dtype=np.int64)
        self.group = np.repeat(np.arange(len(groups)), [len(group["completions"]) for _, group in groups])
        self.numbers = {name: _numbers(one.get(name, group.get(name)) for group, one in found) for name in _NUMBERS}
        self.texts = {name: _interned(one.get(name) for _, one in found) for name in _TEXTS}
        self.truncated = _numbers(one.get("truncated") for _, one in found)
        self.questions = [group["question"][:EXCERPT] for _, group in groups]


def row_name(step: float | None, place: int) -> str:
    """What names a completion of a source: the step of its file, if it has one, and its place in the file."""
    return f"{'' if step is None or step != step else int(step)}:{place}"


def _numbers(values: Iterable[Any]) -> np.ndarray:
    """As floats; NaN where a value is unknown."""
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=np.float64)


def _interned(values: Iterable[Any]) -> np.ndarray:
    return np.array([None if value is None else sys.intern(str(value)) for value in values], dtype=object)


class SourceIndex:
    """The completions of one source, in the order of its files.

    Args:
        files: the columns of each.
        texts: from the number of a file to its texts, which may have to be read again.
    """

    def __init__(self, files: Sequence[FileColumns], texts: Callable[[int], FileTexts]) -> None:
        self._files = files
        self._texts = texts
        self._ends = [*accumulate(len(file.places) for file in files)]
        self._step = _joined([file.step for file in files])
        self._numbers = {name: _joined([file.numbers[name] for file in files]) for name in _NUMBERS}
        self._words = {name: _joined([file.texts[name] for file in files]) for name in _TEXTS}
        self._truncated = _joined([file.truncated for file in files])
        self.facets = self._facets()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def find(self, query: Query) -> tuple[int, list[dict[str, Any]]]:
        """The number of the completions that are wanted, and one page of them as short rows."""
        if not len(self):
            return 0, []
        kept = self._filtered(query)
        if query.q:
            self._keep_containing(kept, query.q)
        places = np.flatnonzero(kept)
        name, _, way = query.sort.rpartition("-")
        page = slice(query.offset, query.offset + query.limit)
        if name:  # unknown values are last, either way
            values = self._numbers[name][places]
            places = places[np.argsort(-values if way == "down" else values, kind="stable")]
        return len(places), [self._short(int(place), query.q) for place in places[page]]

    def _keep_containing(self, kept: np.ndarray, wanted: str) -> None:
        bounds = list(zip([0, *self._ends], self._ends, strict=False))
        numbers = [number for number, (first, last) in enumerate(bounds) if kept[first:last].any()]
        for batch in (numbers[at : at + _BATCH] for at in range(0, len(numbers), _BATCH)):
            texts = [self._texts(number) for number in batch]
            written = _containing([one.written for one in texts], wanted)
            asked = _containing([one.asked for one in texts], wanted)
            for number, one in zip(batch, texts, strict=True):
                first, last = bounds[number]
                kept[first:last] &= written[: last - first] | asked[: len(one.asked)][self._files[number].group]
                written, asked = written[last - first :], asked[len(one.asked) :]

    def _filtered(self, query: Query) -> np.ndarray:
        kept = np.ones(len(self), dtype=bool)
        if query.step is not None:
            kept &= self._step == query.step
        if query.problem is not None:
            kept &= self._numbers["problem"] == query.problem
        if query.outcome == NOT_RIGHT:
            kept &= self._words["outcome"] != "right"
        elif query.outcome:
            kept &= self._words["outcome"] == query.outcome
        if query.truncated:
            kept &= self._truncated == 1
        ended, called = self._words["ended"], self._numbers["calls"] > 0
        if query.episode.startswith("="):
            kept &= ended == query.episode[1:]
        elif query.episode == "unanswered":
            kept &= (ended != "answered") & (ended != None)  # noqa: E711 - of each
        elif query.episode:
            kept &= {"called": called, "uncalled": ~called, "failed": self._numbers["failures"] > 0}[query.episode]
        return kept

    def _short(self, place: int, wanted: str) -> dict[str, Any]:
        number = bisect_right(self._ends, place)
        file, at = self._files[number], place - (self._ends[number - 1] if number else 0)
        figures = {name: float(values[place]) for name, values in (("step", self._step), *self._numbers.items())}
        shown = {name: int(value) if value.is_integer() else value for name, value in figures.items() if value == value}
        words = {name: values[place] for name, values in self._words.items() if values[place] is not None}
        question, text = file.questions[file.group[at]], self._texts(number).excerpt(at, wanted)
        truncated = {"truncated": True} if self._truncated[place] == 1 else {}
        return {
            "row": row_name(file.step[at], file.places[at]),
            **shown,
            **words,
            **truncated,
            "question": question,
            "text": text,
        }

    def _facets(self) -> dict[str, list[str]]:
        """Which outcomes and ends there are, and which figures: what can be filtered and sorted by."""
        words = {name: sorted({*values} - {None}) for name, values in self._words.items()}
        figures = {**{name: self._numbers[name] for name in _FACETS}, "truncated": self._truncated}
        has = [name for name, values in figures.items() if not np.isnan(values).all()]
        return {"outcomes": words["outcome"], "ends": words["ended"], "has": has}


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0)
