"""The report of one run: a self-contained HTML page, and one on its reasoning vocabulary."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FunctionLoader, StrictUndefined

from covey.errors import ConfigError
from covey.evaluation import figures
from covey.evaluation.figures import value_text
from covey.report.completion_findings import Evidence
from covey.report.completions import Packed, pack_completions
from covey.report.findings import findings
from covey.report.load import VOCABULARY_FILE, RunRecord, load_run, read_mapping
from covey.report.panels import chart_data, make_sections, vocabulary_panels
from covey.report.summary import changes, figure_name, how_it_ended, key_settings
from covey.report.tables import evaluation_rows, modes_rows
from covey.runlog import guard_disk, write_atomically
from covey.runlog.names import set_label

CHART_SCRIPTS = ("plot.js", "charts.js")


def write_report(root: Path, target: Path | None = None) -> Path:
    """Write the report of a run, running or ended.

    Args:
        root: the run directory.
        target: the page; by default `report.html` in the run directory.

    Returns:
        The path of the page.

    Raises:
        ConfigError: it is not a readable run directory.
        RunDirectoryError: the page cannot be written.
    """
    record = load_run(root)
    target = target or record.run.report
    refuse_folder(target)
    page = render_report(record, pack_completions(record))
    write_page(target, page)
    return target


def write_page(target: Path, page: str) -> None:
    """Write a page atomically. Raises a `RunDirectoryError` if it cannot be written."""
    with guard_disk(target.name, target.absolute().parent, elsewhere="name a file with `covey report … --out FILE`"):
        write_atomically(target, page)


def refuse_folder(target: Path) -> None:
    """Raise a `ConfigError` for a folder as the name of a page, before the page is made."""
    if target.is_dir():
        raise ConfigError(f"--out {target} is a folder: name the file of the page, such as {target / 'report.html'}.")


def render_report(record: RunRecord, packed: Packed) -> str:
    """The page as HTML."""
    sections, changed = make_sections(record.rows, record.config), changes(record)
    return render(
        "report.html",
        title=record.title,
        name=record.name,
        ended=how_it_ended(record),
        traceback=record.summary.get("traceback"),
        changes=changed,
        key_settings=key_settings(record),
        findings=findings(Evidence.of(record, changed)),
        audit=read_mapping(record.run.audit),
        evaluations=evaluation_rows(record.run),
        modes=modes_rows(record.rows),
        config=yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True) if record.config else "",
        packed=packed,
        data=as_json(chart_data(sections, [record.rows])),
        scripts=CHART_SCRIPTS + (("completion_card.js", "completions.js") if packed.text else ()),
    )


def as_json(content: Mapping[str, Any] | Sequence[Any]) -> str:
    """JSON for a script tag: nothing in it closes the tag or opens a comment."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def render(template: str, *, scripts: Sequence[str], **values: Any) -> str:
    """Render a page. Every value is escaped unless the template marks it safe; only our own scripts may run."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(_asset)
    )
    environment.filters["quoted"] = lambda text: json.dumps(text, ensure_ascii=False)  # autoescaped like the rest
    environment.globals.update(figures=figures, figure_name=figure_name)
    environment.globals.update(style=_asset("report.css") + _asset("completions.css"))
    # The hashes include the newlines of the template.
    code = [f"\n{_asset(name)}" for name in ("page.js", *scripts)]
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code)
    page = environment.get_template(template).render(
        scripts=code, hashes=" ".join(f"'sha256-{digest}'" for digest in digests), **values
    )
    return page.encode("utf-8", "replace").decode()


def _asset(name: str) -> str:
    return (files("covey.report") / "assets" / name).read_text(encoding="utf-8")


VOCABULARY_PAGE, VOCABULARY_TABLE = "vocabulary.html", "vocabulary.csv"
SHOWN = 100
"""Rows in the page's tables; the CSV has all."""

COLUMNS = (
    *("id", "base_id", "text", "copy", "uses", "share", "cosine_embedding", "cosine_head"),
    *("cosine_start_embedding", "cosine_start_head", "nearest"),
)


def write_vocabulary(record: RunRecord, found: Mapping[str, Any], folder: Path) -> Path:
    """Write the page, whose path is returned, the table and the data: `tokens` (rows with `COLUMNS`), `counts` (totals
    by name), `examples` (`step`, `prompt`, `pieces` of text with their copy number)."""
    with guard_disk(VOCABULARY_PAGE, folder):
        write_atomically(folder / VOCABULARY_FILE, json.dumps(found, ensure_ascii=False) + "\n")
        write_atomically(folder / VOCABULARY_TABLE, _csv(found["tokens"]))
        write_atomically(folder / VOCABULARY_PAGE, render_vocabulary(record, found))
    return folder / VOCABULARY_PAGE


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
    text = io.StringIO()
    writer = csv.writer(
        text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC
    )  # tokens may contain line breaks, "\r" too
    writer.writerow(COLUMNS)
    for row in rows:
        near = "; ".join(f"{json.dumps(one['text'], ensure_ascii=False)} {one['cosine']:.4f}" for one in row["nearest"])
        writer.writerow([*(row[name] for name in COLUMNS[:-1]), near])
    return text.getvalue()
