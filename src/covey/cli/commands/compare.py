"""`covey compare`: two or more evaluations on the same problems, problem by problem."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli import config_arguments
from covey.cli.json_output import add_json, print_json
from covey.errors import ConfigError
from covey.runlog.names import ACCURACY, MEAN_REWARD

if TYPE_CHECKING:
    from rich.table import Table

    from covey.evaluation.estimators import Estimate
    from covey.evaluation.paired import Comparison
    from covey.evaluation.planning import Plan
    from covey.runlog.evaluations import StoredEvaluation


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare evaluations problem by problem",
        description=(
            "Compare evaluations (folders that `covey eval` wrote, or run directories that hold some) on the same "
            "problems: the difference with its 95% interval and p-value, the problems that changed, and how many more "
            "would settle the question. The others are compared with the first. Files that training wrote "
            "(RUN/evaluation/test-step-000100.jsonl) can be named too; a single run is listed."
        ),
    )
    parser.add_argument("evaluations", nargs="+", metavar="EVALUATION|RUN")
    parser.add_argument("--any-sampling", action="store_true", help="compare even if the sampling settings differ")
    parser.add_argument(
        "--metric", metavar="NAME", help="compare this figure, as in coverage@8, distinct@8, pass@8, reward or format"
    )
    parser.add_argument("--list", dest="listed", type=int, default=5, metavar="N", help="changed problems shown (5)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.evaluation.comparison import check_metric, compare_evaluations, figures_of_several, metric_of
    from covey.evaluation.figures import value_text
    from covey.evaluation.paired import holm

    folders = [Path(name) for name in arguments.evaluations]
    if len(folders) == 1:
        return _list(folders[0], as_json=arguments.as_json)
    found = _find(folders)
    first = found[0]
    if arguments.metric is not None:
        check_metric(found, arguments.metric)
    metric = arguments.metric or metric_of(first)
    further = figures_of_several(found) if arguments.metric is None else []
    figures = {
        name: [
            compare_evaluations(first, other, metric=name, any_sampling=arguments.any_sampling) for other in found[1:]
        ]
        for name in (metric, *further)
    }
    letters = [_letter(place) for place in range(len(found))]
    if arguments.as_json:
        print_json(_as_json(dict(zip(letters, found, strict=True)), figures))
        return 0
    console, results = config_arguments.make_console(), figures[metric]
    values = [results[0].first, *(result.second for result in results)]
    for name, evaluation, value in zip(letters, found, values, strict=True):
        _print_line(console, f"{name}  {evaluation.folder}: {value_text(value, metric)}")
    grader = first.settings.get("grader")
    shown = {ACCURACY: f"accuracy (grader: {grader})", MEAN_REWARD: "mean reward"}.get(metric, metric)
    _print_line(console, shown)
    if len(results) > 1:
        console.print(_table(letters[1:], results, holm([result.p_value for result in results]), metric))
    for name, result in zip(letters[1:], results, strict=True):
        _print(console, name, result, arguments.listed, metric, shown=len(results) > 1)
    for name in further:
        _print_figure(console, name, figures[name])
    return 0


def _as_json(found: Mapping[str, StoredEvaluation], figures: Mapping[str, Sequence[Comparison]]) -> dict[str, Any]:
    """What is printed as tables and lines: the figures of each evaluation, and how each differs from the first."""
    from covey.evaluation.paired import holm

    first, *others = found
    differences = []
    for metric, results in figures.items():
        corrected = holm([result.p_value for result in results])
        for name, result, p_value in zip(others, results, corrected, strict=True):
            values = dataclasses.asdict(result)
            differences.append({"metric": metric, "of": name, "to": first, **values, "p_value_corrected": p_value})
    evaluations = [
        {"letter": letter, "path": one.folder, "grader": one.settings.get("grader")} for letter, one in found.items()
    ]
    return {"evaluations": evaluations, "differences": differences}


def _print_figure(console: Any, figure: str, results: Sequence[Comparison]) -> None:
    """Print how each evaluation differs from the first in a further figure."""
    from covey.evaluation.figures import paired_text, value_text
    from covey.evaluation.paired import holm

    values = [results[0].first, *(result.second for result in results)]
    _print_line(console, f"{figure}: {', '.join(value_text(value, figure) for value in values)}")
    for place, (result, p_value) in enumerate(zip(results, holm([one.p_value for one in results]), strict=True), 1):
        corrected = f" (corrected: {p_value:.3g})" if len(results) > 1 else ""
        _print_line(console, f"  {_letter(place)} - A: {paired_text(result, figure)}{corrected}")


def _list(folder: Path, *, as_json: bool) -> int:
    from rich.table import Table

    from covey.evaluation.comparison import metric_of
    from covey.evaluation.estimators import Estimate
    from covey.evaluation.figures import ends_text, value_text
    from covey.evaluation.stored import evaluations_of

    held = evaluations_of(folder)
    if not held:
        raise ConfigError(
            f"covey compare needs two or more evaluations or run directories, and {folder} holds no evaluation to list."
        )
    if as_json:
        print_json([{"path": one.folder, "settings": one.settings, "metrics": one.summary} for one in held])
        return 0
    table = Table("evaluation", "problems", "samples", "figure", "value", "95% interval")
    for one in held:
        metric = metric_of(one)
        found = Estimate(**one.summary[metric])
        name = f"accuracy (grader: {one.settings['grader']})" if metric == ACCURACY else metric
        counts = str(one.settings["data"]["problems"]), str(one.settings["num_samples"])
        table.add_row(one.folder.name, *counts, name, value_text(found.value, metric), ends_text(found, metric))
    config_arguments.make_console().print(table)
    return 0


def _find(folders: list[Path]) -> list[StoredEvaluation]:
    """One evaluation per folder or file; of run directories the newest that all of them have."""
    from covey.evaluation.comparison import newest_in_common
    from covey.evaluation.stored import read_stored
    from covey.runlog.evaluations import is_evaluation

    if repeated := [str(folder) for folder, count in Counter(folders).items() if count > 1]:
        raise ConfigError(f"{', '.join(repeated)} is given twice: a run is compared with another one.")
    singles = {one: read_stored(one) for one in folders if one.suffix == ".jsonl" or is_evaluation(one)}
    runs = [folder for folder in folders if folder not in singles]
    wanted = next((one.settings.get("name") for one in singles.values()), None)
    singles |= dict(zip(runs, newest_in_common(runs, wanted), strict=True))
    return [singles[folder] for folder in folders]


def _letter(place: int) -> str:
    """A, B, …, Z, AA, AB, …"""
    return (_letter(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)


def _print_line(console: Any, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(names: Sequence[str], results: Sequence[Comparison], corrected: Sequence[float], metric: str) -> Table:
    """How each evaluation differs from the first."""
    from rich.table import Table

    from covey.evaluation.figures import change_ends_text, change_text, is_share, p_text

    heading = "points" if is_share(metric) else metric
    table = Table(heading, "difference", "95% interval", "p", "p, corrected (Holm)", "better", "worse")
    for name, result, p_value in zip(names, results, corrected, strict=True):
        change = change_text(result.difference, metric), change_ends_text(result.low, result.high, metric)
        counts = str(len(result.gained)), str(len(result.lost))
        table.add_row(f"{name} - A", *change, p_text(result.p_value), p_text(p_value), *counts)
    return table


def _print(console: Any, name: str, result: Comparison, listed: int, metric: str, *, shown: bool) -> None:
    """Print the difference of two evaluations; without the figures if a table has shown them."""
    from covey.evaluation.figures import paired_text

    lines = [
        f"{name} - A on {result.problems} problems" + ("" if shown else f": {paired_text(result, metric)}"),
        f"better in {name}: {_some(result.gained, listed)}",
        f"worse in {name}: {_some(result.lost, listed)}",
        *_needed(result.plan, metric),
    ]
    for line in lines:
        _print_line(console, line)


def _needed(plan: Plan, metric: str) -> list[str]:
    """The difference that these problems can detect, and the problems or samples needed for the one observed."""
    from covey.evaluation.figures import sized_text

    if math.isnan(plan.detectable):
        return []
    size = sized_text(plan.detectable, metric).lstrip("+")
    lines = [f"these problems tell a true difference of about {size} (80% power, two-sided 5%)"]
    if plan.problems.value > 0:
        low, high = (_rounded(end) for end in (plan.problems.low, plan.problems.high))
        more = f"{low} to {high}" if plan.problems.low > 0 else f"up to {high}"
        lines.append(f"to detect one of the size observed: {more} more problems{_samples(plan.samples)}")
    return lines


def _samples(samples: Estimate) -> str:
    """The samples needed, for a message; how certain their number is depends on the existing samples."""
    if math.isnan(samples.value):
        return " (one sample of each does not show whether more samples would do)"
    if math.isinf(samples.low):
        return "; more samples of these problems would not do"
    low, high = _rounded(samples.low), _rounded(samples.high)
    if math.isinf(samples.high):
        return f"; or at least {low} samples of each of these, if any number would do"
    return f"; or {low} to {high} samples of each of these" if low != high else f"; or {low} samples of each of these"


def _rounded(number: float) -> str:
    """The number to two significant figures."""
    if not math.isfinite(number) or number < 100:
        return f"{number:.0f}"
    return f"{round(number, 1 - math.floor(math.log10(number))):,.0f}"


def _some(problems: tuple[int, ...], listed: int) -> str:
    if not problems:
        return "none"
    shown = ", ".join(map(str, problems[:listed]))
    rest = ", …" if len(problems) > listed else ""
    return f"{len(problems)} (problem {shown}{rest})" if shown else str(len(problems))
