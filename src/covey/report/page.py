"""The report of one run: a self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FunctionLoader, StrictUndefined

from covey.errors import ConfigError
from covey.evaluation import figures
from covey.report.answer_modes import modes_rows
from covey.report.charts.chart_data import chart_data
from covey.report.charts.panels import make_sections
from covey.report.completions.completions_browser import Packed, pack_completions
from covey.report.evaluations import evaluation_rows
from covey.report.evidence import Evidence
from covey.report.findings import findings
from covey.report.headline import how_it_ended, key_settings
from covey.report.load import RunRecord, load_run
from covey.report.summary import changes, figure_name
from covey.runlog import guard_disk, write_atomically

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
