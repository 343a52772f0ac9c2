"""Searching, filtering and sorting the completions of a run, of which short columns and the texts are in memory."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from covey.errors import ConfigError
from covey.report.completions.rows import Shown

EXCERPT = 160
"""Letters of a question or a completion in a list."""
MOST_ROWS = 500
"""Of one answer."""

_NUMBERS = ("reward", "advantage", "weight", "length", "calls", "failures", "seconds", "problem")
_TEXTS = ("outcome", "ended")
_FACETS = ("reward", "advantage", "weight", "length", "calls", "seconds")
ORDERS = ("step", *(f"{name}-{way}" for name in _FACETS for way in ("down", "up")))
_EPISODES = ("called", "uncalled", "failed", "unanswered")
NOT_RIGHT = "not right"

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
    limit: int = 100

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
            step=whole(given, "step"),
            problem=whole(given, "problem"),
            outcome=given.get("outcome", ""),
            episode=episode,
            truncated=given.get("truncated", "") not in ("", "0", "false"),
            sort=sort,
            offset=whole(given, "offset") or 0,
            limit=min(MOST_ROWS, whole(given, "limit") or cls.limit),
        )


def whole(given: Mapping[str, str], name: str) -> int | None:
    """A parameter that is a whole number of 0 or more; None if it is not given.

    Raises:
        ConfigError: it is something else.
    """
    text = given.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ConfigError(f"{name}={text} is not possible: it must be a whole number, 0 or more.")
    return int(text)


class Texts:
    """Many texts in one buffer, searched in upper or lower case: the search of bytes is faster than any loop over them.

    Lower case has as many bytes as the text, so that places in both are the same; letters for which that does not
    hold (İ) keep their case.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        plain = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._plain = b"".join(plain)
        self._lower = b"".join(map(_lower, plain))
        self._starts = array("q", accumulate(map(len, plain), initial=0))

    @property
    def bytes(self) -> int:
        return len(self._plain) + len(self._lower) + 8 * len(self._starts)

    def containing(self, wanted: str) -> list[int]:
        """The numbers of the texts that contain this one, in any case."""
        sought = _lower(wanted.encode("utf-8", "surrogatepass"))
        search, starts, size = self._lower.find, self._starts, len(sought)
        found, number, at = [], 0, 0
        while (at := search(sought, at)) >= 0:
            number = bisect_right(starts, at, number) - 1
            if at + size <= starts[number + 1]:
                found.append(number)
                at = starts[number + 1]
            else:  # the end of one text and the beginning of the next
                at += 1
        return found

    def excerpt(self, number: int, wanted: str) -> str:
        """Some letters of a text, around this one where it is far from the beginning."""
        begin, end = self._starts[number], self._starts[number + 1]
        sought = _lower(wanted.encode("utf-8", "surrogatepass"))
        at = self._lower.find(sought, begin, end) - begin
        first = at - EXCERPT // 3 if at > EXCERPT // 2 else 0
        cut = self._plain[begin + first : min(end, begin + first + 4 * EXCERPT)].decode("utf-8", "ignore")
        return ("…" if first else "") + cut[:EXCERPT]


def _lower(text: bytes) -> bytes:
    if text.isascii():
        return text.lower()
    letters = text.decode("utf-8", "surrogatepass")
    lower = letters.lower().encode("utf-8", "surrogatepass")
    if len(lower) == len(text):
        return lower
    plain = [letter.encode("utf-8", "surrogatepass") for letter in letters]
    low = [letter.lower().encode("utf-8", "surrogatepass") for letter in letters]
    return b"".join(two if len(one) == len(two) else one for one, two in zip(plain, low, strict=True))


class FileTexts:
    """The texts of the completions in one file."""

    def __init__(self, groups: Sequence[Placed], state: object = None) -> None:
        self.state = state  # of the file
        self.written = Texts(one["text"] for _, group in groups for one in group["completions"])
        self.asked = Texts(f"{group['prompt']}\n{group.get('answer', '')}" for _, group in groups)
        self.bytes = self.written.bytes + self.asked.bytes

    def containing(self, wanted: str, group: np.ndarray) -> np.ndarray:
        """Which rows have this text: they, or the prompt or gold answer of their group."""
        found = np.isin(group, self.asked.containing(wanted))
        found[self.written.containing(wanted)] = True
        return found


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
        kept = self._filtered(query)
        if query.q:
            for number, (first, last) in enumerate(zip([0, *self._ends], self._ends, strict=False)):
                if kept[first:last].any():
                    kept[first:last] &= self._texts(number).containing(query.q, self._files[number].group)
        places = np.flatnonzero(kept)
        name, _, way = query.sort.rpartition("-")
        page = slice(query.offset, query.offset + query.limit)
        if name:  # unknown values are last, either way
            values = self._numbers[name][places]
            places = places[np.argsort(-values if way == "down" else values, kind="stable")]
        return len(places), [self._short(int(place), query.q) for place in places[page]]

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
            kept &= (ended != "answered") & np.not_equal(ended, None).astype(bool)
        elif query.episode:
            kept &= {"called": called, "uncalled": ~called, "failed": self._numbers["failures"] > 0}[query.episode]
        return kept

    def _short(self, place: int, wanted: str) -> dict[str, Any]:
        number = bisect_right(self._ends, place)
        file, at = self._files[number], place - (self._ends[number - 1] if number else 0)
        figures = {name: float(values[place]) for name, values in (("step", self._step), *self._numbers.items())}
        shown = {name: int(value) if value.is_integer() else value for name, value in figures.items() if value == value}
        words = {name: values[place] for name, values in self._words.items() if values[place] is not None}
        question, text = file.questions[file.group[at]], self._texts(number).written.excerpt(at, wanted)
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
