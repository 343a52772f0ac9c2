"""The completions of the runs of a folder: a page of them, one with its group, and searches with filters.

Of a run, short columns and the texts are in memory.
"""

from __future__ import annotations

import re
import sys
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from covey.errors import ConfigError, CoveyError, one_line
from covey.report.completions import Shown, Source, sources_of, tags_of
from covey.runlog.evaluations import COMPLETIONS
from covey.runlog.files import writable
from covey.view.http import Json, wanted
from covey.view.runs import DAMAGED, Cache, RunStore, damage_reported

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
        words = {name: sorted({*values} - {None}) for name, values in self._words.items()}
        figures = {**{name: self._numbers[name] for name in _FACETS}, "truncated": self._truncated}
        has = [name for name, values in figures.items() if not np.isnan(values).all()]
        self.facets = {"outcomes": words["outcome"], "ends": words["ended"], "has": has}

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


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0)


MOST_BYTES = 1 << 30
"""Of texts that are kept in memory for the next search; others are read again."""
AHEAD = "completions ahead"
"""The name of threads that read what has not been asked for yet."""
MOST_FOUND = 5
"""Completions of one source in a search over all runs."""

_ROW = re.compile(r"(\d{0,15}):(\d{1,15})")

_State = tuple[int, int]
"""A file's time and size."""
_File = tuple[int | None, Path, _State]
"""A file of completions with its step."""


def routes(store: RunStore) -> list[Route]:
    """The endpoints; see `Query` for the parameters of `/api/completions`."""
    view = _View(store)
    return [
        Route("/api/sources", view.sources),
        Route("/api/completions", view.completions),
        Route("/api/completion", view.completion),
        Route("/api/search", view.search),
    ]


class CompletionStore:
    """The completions of runs as far as they have been read; may be used by several threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._columns: Cache[FileColumns | str] = Cache(20_000)
        self._counts: Cache[int] = Cache(20_000)
        self._indexes: Cache[SourceIndex] = Cache(32)
        self._texts: OrderedDict[Path, FileTexts] = OrderedDict()
        self._bytes = 0
        self._indexed: dict[object, Sequence[_File]] = {}
        self._ahead = set[object]()
        self._most_bytes = most_bytes
        self._reading = threading.RLock()

    def count(self, source: Source) -> int:
        """The completions of a source; of a damaged file none."""
        return sum(self._count(source, *one) for one in _states(source))

    def find(self, source: Source, query: Query) -> dict[str, Any]:
        """A page of completions: `total`, `rows`, of `count`; `facets`, see `SourceIndex`; and what is `damaged`.

        A plain page in the order of the files takes only its own files. While the others are being read it is
        `partial`: the facets are those of the page.
        """
        files, offset = _states(source), query.offset
        if not query.is_plain or self._indexed.get(_key(source, files)) == files:
            return self._find(source, files, query)
        counts = [self._count(source, *one) for one in files]
        ends = [*accumulate(counts)]
        first, last = bisect_right(ends, offset), bisect_left(ends, offset + query.limit) + 1
        before = ends[first - 1] if first else 0
        page = self._find(source, files[first:last], replace(query, offset=offset - before))
        with self._reading:
            if _key(source, files) not in self._ahead:
                self._ahead.add(_key(source, files))
                threading.Thread(target=self._read_ahead, args=(source, files), name=AHEAD, daemon=True).start()
        return page | {"total": sum(counts), "count": sum(counts), "partial": True}

    def _find(self, source: Source, files: Sequence[_File], query: Query) -> dict[str, Any]:
        index, damaged = self.index(source, files)
        total, rows = index.find(query)
        return {"total": total, "count": len(index), "rows": rows, "facets": index.facets, "damaged": damaged}

    def _read_ahead(self, source: Source, files: Sequence[_File]) -> None:
        try:
            self.index(source, files)
            self._indexed[_key(source, files)] = files
        finally:
            self._ahead.discard(_key(source, files))

    def index(self, source: Source, files: Sequence[_File]) -> tuple[SourceIndex, list[str]]:
        """The index of files of a source, and what is wrong with those that cannot be read."""
        found = [self._file(source, *one) for one in files]
        read = [(one, columns) for one, columns in zip(files, found, strict=True) if not isinstance(columns, str)]

        def make() -> SourceIndex:
            return SourceIndex([columns for _, columns in read], lambda number: self._text(source, *read[number][0]))

        index = self._indexes.get((_key(source, files), len(read)), [one for one, _ in read], make)
        return index, [columns for columns in found if isinstance(columns, str)]

    def _count(self, source: Source, step: int | None, file: Path, state: _State) -> int:
        return self._counts.get(file, state, lambda: _count(source, step))

    def _file(self, source: Source, step: int | None, file: Path, state: _State) -> FileColumns | str:
        with self._reading:
            return self._columns.get(file, state, lambda: self._read(source, step, file, state)[0])

    def _text(self, source: Source, step: int | None, file: Path, state: _State) -> FileTexts:
        with self._reading:
            found = self._texts.get(file)
            if found is None or found.state != state:
                return self._read(source, step, file, state)[1]
            self._texts.move_to_end(file)
            return found

    def _read(self, source: Source, step: int | None, file: Path, state: _State) -> tuple[FileColumns | str, FileTexts]:
        try:
            groups = source.groups(step, most=None)
            columns: FileColumns | str = FileColumns(step, groups)
        except DAMAGED as error:
            groups, columns = [], str(error) if isinstance(error, CoveyError) else f"{file}: {one_line(error)}"
        texts = FileTexts(groups, state)
        if (before := self._texts.pop(file, None)) is not None:
            self._bytes -= before.bytes
        self._texts[file] = texts
        self._bytes += texts.bytes
        while self._bytes > self._most_bytes and len(self._texts) > 1:
            self._bytes -= self._texts.popitem(last=False)[1].bytes
        return columns, texts


class _View:
    """The endpoints, which run in threads."""

    def __init__(self, store: RunStore) -> None:
        self._runs = store
        self._store = CompletionStore()

    def sources(self, request: Request) -> Response:
        folder = self._runs.path(wanted(request, "id"))
        tags = tags_of(folder)
        sources, count = sources_of(folder), self._store.count
        return Json([{**_named(one), "steps": one.steps, "count": count(one), "tags": tags} for one in sources])

    def completions(self, request: Request) -> Response:
        query = Query.of(request.query_params)
        return Json(self._store.find(self._source(request), query))

    def completion(self, request: Request) -> Response:
        """A completion's whole group."""
        source, row = self._source(request), wanted(request, "row")
        named = _ROW.fullmatch(row)
        step = int(named[1]) if named and named[1] else None
        if named and step in source.files:
            for places, group in source.groups(step, only={int(named[2])}, most=None):
                for at, one in zip(places, group["completions"], strict=True):
                    one["row"] = row_name(step, at)
                return Json({"source": source.name, **group})
        raise ConfigError(f"{source.name} has no completion {row}: name one by its `row` in the list.")

    def search(self, request: Request) -> Response:
        q, limit = wanted(request, "q"), whole(request.query_params, "limit", MOST_FOUND)
        if not q.strip():
            raise ConfigError("/api/search needs a text to search for: ?q=….")
        query = Query(q=q, limit=min(limit, 100))
        chosen = {one: self._runs.path(one) for one in request.query_params.getlist("id")} or self._runs.scan()
        found, damaged = [], list[str]()
        for identity, folder in chosen.items():
            try:
                with damage_reported(identity):
                    for source in sources_of(folder):
                        page = self._store.find(source, query)
                        damaged += page["damaged"]
                        if page["total"]:
                            about = {"total": page["total"], "rows": page["rows"]}
                            found.append({"id": identity, **_named(source), **about})
            except CoveyError as error:  # of one run
                damaged.append(str(error))
        return Json({"total": sum(one["total"] for one in found), "found": found, "damaged": damaged})

    def _source(self, request: Request) -> Source:
        folder, name = self._runs.path(wanted(request, "id")), wanted(request, "source")
        found = {source.name: source for source in reversed(sources_of(folder))}
        if name not in found:
            known = ", ".join(reversed(found)) or "none"
            raise ConfigError(f"{folder} has no completions of {name!r}; it has those of: {known}.")
        return found[name]


def _named(source: Source) -> dict[str, str]:
    return {"source": source.name, "kind": source.kind, "title": source.title}


def _states(source: Source) -> list[_File]:
    """The files of a source that are there, with their times and sizes."""
    found = []
    for step, path in source.files.items():
        try:
            stat = (path / COMPLETIONS if path.is_dir() else path).stat()
        except OSError:  # deleted meanwhile, or not begun
            continue
        found.append((step, path, (stat.st_mtime_ns, stat.st_size)))
    return found


def _key(source: Source, files: Sequence[_File]) -> object:
    return source.name, *(file for _, file, _ in files[:1])


def _count(source: Source, step: int | None) -> int:
    try:
        return source.count(step)
    except CoveyError:
        return 0
