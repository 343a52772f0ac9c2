"""The page on a run's reasoning vocabulary, and its data files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.evaluation.figures import value_text
from covey.report.charts.chart_data import chart_data
from covey.report.charts.panels import set_label, vocabulary_panels
from covey.report.load import VOCABULARY_FILE, RunRecord
from covey.report.page import CHART_SCRIPTS, as_json, render
from covey.runlog.files import guard_disk, write_atomically

PAGE_FILE, TABLE_FILE = "vocabulary.html", "vocabulary.csv"
SHOWN = 100
"""Rows in the page's tables; the CSV has all."""

COLUMNS = (
    *("id", "base_id", "text", "copy", "uses", "share", "cosine_embedding", "cosine_head"),
    *("cosine_start_embedding", "cosine_start_head", "nearest"),
)


def write_vocabulary(record: RunRecord, found: Mapping[str, Any], folder: Path) -> Path:
    """Write the page, the table and the data.

    Args:
        found: `tokens` (rows with `COLUMNS`), `counts` (totals by name), `examples` (`step`, `prompt`, `pieces` of text
            with their copy number).
        folder: the target folder.

    Returns:
        The path of the page.
    """
    with guard_disk(PAGE_FILE, folder):
        write_atomically(folder / VOCABULARY_FILE, json.dumps(found, ensure_ascii=False) + "\n")
        write_atomically(folder / TABLE_FILE, _csv(found["tokens"]))
        write_atomically(folder / PAGE_FILE, render_vocabulary(record, found))
    return folder / PAGE_FILE


def render_vocabulary(record: RunRecord, found: Mapping[str, Any]) -> str:
    """The page as HTML."""
    panels = [panel for panel in vocabulary_panels(record.rows) if any(one.points for one in panel.series)]
    sections = [("Use over time", panels)] if panels else []
    moved = by_movement(found["tokens"])
    return render(
        "vocabulary.html",
        title=record.title,
        name=record.name,
        counts=found["counts"],
        gaps=gap_lines(found),
        used=sorted(moved, key=lambda row: -row["uses"])[:SHOWN],
        moved=moved[:SHOWN],
        spread=_histogram([movement(row) for row in moved]),
        examples=found["examples"],
        sections=sections,
        data=as_json(chart_data(sections, [record.rows])),
        scripts=CHART_SCRIPTS,
    )


def movement(row: Mapping[str, Any]) -> float:
    """The cosine similarity of a token's embedding row to that before training; to its base's if that is not known."""
    start = row.get("cosine_start_embedding")
    return float(row["cosine_embedding"] if start is None else start)


def by_movement(tokens: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The tokens that were used, those first that have moved furthest: rows that nothing uses move by chance."""
    return sorted((row for row in tokens if row["uses"]), key=movement)


def gap_lines(found: Mapping[str, Any]) -> list[str]:
    """The fold gap of each held-out set in words; none if it was not measured."""
    return [
        f"fold gap on {set_label(name)}: {gap['text']} ({gap['metric']} {value_text(gap['second'], gap['metric'])} "
        f"with the reasoning tokens, {value_text(gap['first'], gap['metric'])} after folding them back, "
        f"{gap['problems']} problems)"
        for name, gap in (found.get("fold_gap") or {}).items()
    ]


def _histogram(cosines: list[float], bins: int = 20) -> list[dict[str, Any]]:
    """Histogram of the cosines, with the height of each bar in percent."""
    if not cosines:
        return []
    low, high = min(cosines), max(cosines)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for cosine in cosines:
        counts[min(bins - 1, int((cosine - low) / width))] += 1
    most = max(counts)
    return [
        {"low": low + place * width, "high": low + (place + 1) * width, "count": count, "height": 100 * count / most}
        for place, count in enumerate(counts)
    ]


def _csv(rows: list[dict[str, Any]]) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(
        text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC
    )  # tokens may contain line breaks, "\r" too
    writer.writerow(COLUMNS)
    for row in rows:
        near = "; ".join(f"{json.dumps(one['text'], ensure_ascii=False)} {one['cosine']:.4f}" for one in row["nearest"])
        writer.writerow([*(row[name] for name in COLUMNS[:-1]), near])
    return text.getvalue()
