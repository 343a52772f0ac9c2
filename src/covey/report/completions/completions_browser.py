"""The completions in a report: a sample of whole groups, compressed."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import RunDirectoryError
from covey.report.completions.rows import Shown
from covey.report.completions.sources import TRAINING, Source, sources_of, tags_of
from covey.report.load import RunRecord

MOST_COMPLETIONS = 12_000
MOST_BYTES = 2_800_000
"""Limit of the compressed, base64-encoded completions in the page."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Packed:
    """The compressed completions of a page."""

    text: str
    """base64 of gzipped JSON; empty if there are none."""
    shown: int
    total: int


def pack_completions(record: RunRecord, *, most: int = MOST_COMPLETIONS, most_bytes: int = MOST_BYTES) -> Packed:
    """Pack a run's completions: all if they fit, else whole groups, evenly over the files of each source.

    Damaged files are skipped with a warning.
    """
    sources = sources_of(record.run.root)
    counts = {(source.name, step): _count(source, step) for source in sources for step in source.files}
    total = sum(counts.values())
    if not total:
        return Packed("", 0, 0)
    groups: list[Shown] = []
    for source in sources:
        held = [step for step in source.files if counts[source.name, step]]
        if source.kind == "held-out" and total > most:
            held = [*dict.fromkeys([held[0], held[-1]])] if held else []  # before and after
        for number, step in enumerate(held):
            here = [{"source": source.name} | shown for _, shown in _groups(source, step)]
            share = math.ceil(len(here) * most / total) if total > most else len(here)
            # In training not always the first problems of a batch; elsewhere the same problems of every step.
            offset = number % max(1, len(here) - share + 1) if source.kind == TRAINING else 0
            groups += here[offset : offset + share]
    while True:
        found = content(record, sources, groups)
        # ASCII: lone surrogates and line separators become escapes; base64 cannot close a script tag.
        plain = json.dumps(found, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii")
        text = base64.b64encode(gzip.compress(plain, 7, mtime=0)).decode("ascii")
        if len(text) <= most_bytes or len(groups) <= 1:
            return Packed(text, sum(len(group["completions"]) for group in groups), total)
        keep = max(1, int(len(groups) * 0.93 * most_bytes / len(text)))
        groups = [groups[index * len(groups) // keep] for index in range(keep)]


def content(record: RunRecord, sources: Sequence[Source], groups: Sequence[Shown]) -> dict[str, Any]:
    """What the page's script gets, see the head of `completions.js`."""
    shown = {group["source"] for group in groups}
    about = [{"source": one.name, "kind": one.kind, "title": one.title} for one in sources if one.name in shown]
    return {"tags": tags_of(record.run.root), "sources": about, "groups": groups}


def _count(source: Source, step: int | None) -> int:
    try:
        return source.count(step)
    except RunDirectoryError as error:
        logger.warning("Left out of the report: %s", error)
        return 0


def _groups(source: Source, step: int | None) -> list[tuple[list[int], Shown]]:
    try:
        return source.groups(step)
    except RunDirectoryError as error:
        logger.warning("Left out of the report: %s", error)
        return []
