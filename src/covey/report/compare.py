"""The comparison page of several runs: overlaid curves, config differences, paired accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.errors import ConfigError
from covey.evaluation.paired import holm
from covey.report.charts.curves_html import COLOURS, geometry
from covey.report.charts.panels import Sections, make_sections, set_label
from covey.report.charts.series import Panel, Series
from covey.report.headline import gains, how_it_ended, key_settings
from covey.report.load import RunRecord, load_run
from covey.report.page import as_json, draw_sections, refuse_folder, render, write_page
from covey.report.paired import compare_problems, newest_evaluations
from covey.runlog import names

MOST_RUNS = COLOURS
_OWN = ("run_name", "output_dir", "resume", "overwrite", "stop_after_steps")
"""Keys about where and how a run is stored, which are not compared."""


def write_comparison(roots: Sequence[Path], target: Path | None = None) -> Path:
    """Write the page that compares runs.

    Args:
        roots: two to eight run directories; the first is the baseline.
        target: the page; by default `comparison.html` in the folder that holds the first run.

    Raises:
        ConfigError: one of them is not a readable run directory or is named twice, or there are too many.
    """
    if len({root.resolve() for root in roots}) < len(roots):
        raise ConfigError("covey report was given the same run twice: name each run once.")
    if not 2 <= len(roots) <= MOST_RUNS:
        raise ConfigError(f"covey report compares 2 to {MOST_RUNS} runs, and was given {len(roots)}.")
    records = [load_run(root) for root in roots]
    target = target or roots[0].absolute().parent / "comparison.html"
    refuse_folder(target)
    write_page(target, render_comparison(records))
    return target


def render_comparison(records: Sequence[RunRecord]) -> str:
    """The page as HTML."""
    labels = labels_of(records)
    step_range = min(int(record.rows[0][names.STEP]) for record in records), max(record.step for record in records)
    shown, data = draw_sections(overlaid(records, labels), *step_range)
    runs = [
        {
            "label": label,
            "colour": f"var(--c{number})",
            "title": record.title,
            "ended": how_it_ended(record),
            "gains": gains(record.rows),
            "key_settings": dict(key_settings(record)),
        }
        for number, (label, record) in enumerate(zip(labels, records, strict=True))
    ]
    return render(
        "comparison.html",
        runs=runs,
        paired=paired_rows(records, labels),
        seeds_differ=len({str(record.config.get("seed")) for record in records}) > 1,
        differences=differences([record.config for record in records]),
        sections=shown,
        data=as_json({"panels": data, "geometry": geometry(*step_range)}),
        scripts=("panels.js",),
    )


def labels_of(records: Sequence[RunRecord]) -> list[str]:
    """The runs' names; with their parent folder if names are equal."""
    own = [record.name for record in records]
    if len(set(own)) == len(own):
        return own
    return [str(Path(*record.run.root.absolute().parts[-2:])) for record in records]


def overlaid(records: Sequence[RunRecord], labels: Sequence[str]) -> Sections:
    """One panel for every curve, with one line for each run that has it."""
    made = [make_sections(record.rows, record.config) for record in records]
    headings = list(dict.fromkeys(heading for sections in made for heading, _ in sections))
    result: Sections = []
    for heading in headings:
        lines: dict[tuple[str, str], tuple[Panel, list[Series]]] = {}
        for number, sections in enumerate(made):
            for panel in dict(sections).get(heading, []):
                for one in panel.series:
                    _, there = lines.setdefault((panel.key, one.label), (panel, []))
                    there.append(replace(one, label=labels[number], colour=number))
        counts: dict[str, int] = {}
        for key, _ in lines:
            counts[key] = counts.get(key, 0) + 1
        panels: list[Panel] = []
        for (key, label), (panel, runs) in lines.items():
            title = panel.title if counts[key] == 1 else f"{panel.title}: {label}"
            name = f"{key}-{sum(one.key.startswith(key) for one in panels)}"
            panels.append(replace(panel, key=name, title=title, series=runs, stacked=False, target=None))
        result.append((heading, panels))
    return result


def differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """The keys whose values differ between the runs, and each run's value."""
    flat = [_flat(config) for config in configs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [(key, [_shown(one.get(key, _ABSENT)) for one in flat]) for key in keys if key not in _OWN]
    return [(key, shown) for key, shown in rows if len(set(shown)) > 1]


def paired_rows(records: Sequence[RunRecord], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Every other run against the first, on every set that both have evaluated.

    With several comparisons on one set, Holm-corrected p-values are added.
    """
    evaluated = [newest_evaluations(record.run) for record in records]
    rows: list[dict[str, Any]] = []
    for label, theirs in zip(labels[1:], evaluated[1:], strict=True):
        for held_out, (step, scores) in sorted(evaluated[0].items(), key=lambda one: one[0] != names.TEST_SET):
            if held_out not in theirs:
                continue
            compared = compare_problems(scores, theirs[held_out][1])
            common = {"run": label, "set": set_label(held_out), "steps": _steps(step, theirs[held_out][0])}
            rows.append(common | {"paired": compared, "corrected": None})
    for held_out in {row["set"] for row in rows}:
        tests = [row for row in rows if row["set"] == held_out and row["paired"]]
        if len(tests) > 1:
            for row, p_value in zip(tests, holm([row["paired"].p_value for row in tests]), strict=True):
                row["corrected"] = p_value
    return rows


def _steps(first: int, second: int) -> str:
    """The steps of the evaluations; empty for those by `covey eval`, which have none."""
    return f" (steps {first} and {second})" if first or second else ""


_ABSENT = object()


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "–"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
