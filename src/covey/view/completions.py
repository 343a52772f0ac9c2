"""The completions of the runs of a folder: which there are, a page of them, one with its group, and a search in all."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from covey.errors import ConfigError, CoveyError, one_line
from covey.report.completions.rows import Shown
from covey.report.completions.sources import Source, sources_of, tags_of
from covey.runlog.evaluations import COMPLETIONS
from covey.view.cache import Cache
from covey.view.entries import DAMAGED, damage_reported
from covey.view.http import Json, wanted
from covey.view.search import FileColumns, FileTexts, Query, SourceIndex, row_name, whole
from covey.view.store import RunStore

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


def group_of(source: Source, row: str) -> Shown:
    """A completion's whole group: what is in a list under `row` names the completion.

    Raises:
        ConfigError: there is no such completion.
        RunDirectoryError: its file is damaged.
    """
    named = _ROW.fullmatch(row)
    step = int(named[1]) if named and named[1] else None
    if named and step in source.files:
        place = int(named[2])
        for places, group in source.groups(step, only={place}, most=None):
            for at, one in zip(places, group["completions"], strict=True):
                one["row"] = row_name(step, at)
            return {"source": source.name, **group}
    raise ConfigError(f"{source.name} has no completion {row}: name one by its `row` in the list.")


def find_source(folder: Path, name: str) -> Source:
    """A source of a run.

    Raises:
        ConfigError: it has none of this name.
    """
    found = sources_of(folder)
    for source in found:
        if source.name == name:
            return source
    known = ", ".join(source.name for source in found) or "none"
    raise ConfigError(f"{folder} has no completions of {name!r}; it has those of: {known}.")


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
        return Json(group_of(self._source(request), wanted(request, "row")))

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
        return find_source(self._runs.path(wanted(request, "id")), wanted(request, "source"))


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
