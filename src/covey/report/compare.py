"""The comparison page of several runs: overlaid curves, config differences, paired accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.errors import ConfigError
from covey.evaluation.comparison import compare_runs, correct
from covey.report.load import RunRecord, load_run
from covey.report.page import CHART_SCRIPTS, as_json, refuse_folder, render, write_page
from covey.report.panels import COLOURS, Panel, Sections, Series, chart_data, make_sections
from covey.report.summary import changes, how_it_ended, key_settings
from covey.runlog.names import set_label

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
    runs = [
        {
            "label": label,
            "colour": f"var(--c{number})",
            "title": record.title,
            "ended": how_it_ended(record),
            "changes": changes(record)[:1],
            "key_settings": dict(key_settings(record)),
        }
        for number, (label, record) in enumerate(zip(labels, records, strict=True))
    ]
    return render(
        "comparison.html",
        runs=runs,
        paired=paired_rows(records, labels),
        differences=differences([record.config for record in records]),
        data=as_json(chart_data(overlaid(records, labels), [record.rows for record in records])),
        scripts=CHART_SCRIPTS,
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
    graders = [record.grader for record in records]
    used = {
        grader
        for grader, sections in zip(graders, made, strict=True)
        if any(panel.key == "accuracy" for _, panels in sections for panel in panels)
    }
    for heading in headings:
        lines: dict[tuple[str, str], tuple[Panel, list[Series]]] = {}
        for number, sections in enumerate(made):
            for panel in dict(sections).get(heading, []):
                for one in panel.series:
                    own, name = panel, labels[number]
                    if panel.key == "accuracy" and len(used) > 1:
                        own = replace(
                            panel,
                            title="Held-out accuracy",
                            note="The graders differ: these curves cannot be compared.",
                        )
                        name = f"{name} (grader: {graders[number] or 'unknown'})"
                    _, there = lines.setdefault((panel.key, one.label), (own, []))
                    there.append(replace(one, label=name, colour=number, run=number))
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
    """Every other run against the first, on every set that both have evaluated."""
    compared = [
        (label, result)
        for label, record in zip(labels[1:], records[1:], strict=True)
        for result in compare_runs(records[0].run.root, record.run.root)
    ]
    corrected = correct([result for _, result in compared])
    return [
        {"run": label, "set": set_label(result.name), "result": result}
        for (label, _), result in zip(compared, corrected, strict=True)
    ]


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
