"""`covey compare`: two or more evaluations on the same problems, problem by problem."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli import config_arguments
from covey.cli.json_output import add_json, print_json
from covey.errors import ConfigError
from covey.runlog.names import ACCURACY, CHANCE, DISTINCT_IF_SOLVED, MEAN_REWARD

if TYPE_CHECKING:
    from rich.table import Table

    from covey.evaluation.estimators import Estimate
    from covey.evaluation.paired import Comparison, Plan
    from covey.report.results import Comparisons
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
    parser.add_argument(
        "--list", dest="listed", type=int, default=5, metavar="N", help="changed problems shown, with their answers (5)"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.evaluation.comparison import figures_of_several
    from covey.evaluation.figures import value_text
    from covey.report.results import compare_all, find_evaluations

    folders = [Path(name) for name in arguments.evaluations]
    if len(folders) == 1:
        return _list(folders[0], as_json=arguments.as_json)
    found = find_evaluations(folders)
    compared = compare_all(found, arguments.metric, any_sampling=arguments.any_sampling)
    results, metric = compared.results, compared.metric
    figures = figures_of_several(found) if arguments.metric is None else ()
    further = [compare_all(found, figure, any_sampling=arguments.any_sampling) for figure in figures]
    letters = [_letter(place) for place in range(len(found))]
    if arguments.as_json:
        print_json(_as_json(dict(zip(letters, found, strict=True)), [compared, *further]))
        return 0
    console = config_arguments.make_console()
    for name, evaluation, value in zip(letters, found, compared.values, strict=True):
        _print_line(console, f"{name}  {evaluation.folder}: {value_text(value, metric)}")
    shown = {ACCURACY: f"accuracy (grader: {compared.grader})", MEAN_REWARD: "mean reward"}.get(metric, metric)
    _print_line(console, shown + _chance(found, metric))
    if len(results) > 1:
        console.print(_table(letters[1:], results, compared.corrected, metric))
    for name, other, result in zip(letters[1:], found[1:], results, strict=True):
        _print(console, name, result, arguments.listed, metric, shown=len(results) > 1)
        _print_answers(console, {"A": found[0], name: other}, result, arguments.listed)
    for one in further:
        _print_figure(console, one)
    solved = f"{DISTINCT_IF_SOLVED}@{figures[0].partition('@')[2]}" if figures else ""
    if all(solved in one.summary for one in found):  # of both together, so without a paired test
        values = (value_text(one.summary[solved]["value"], solved) for one in found)
        _print_line(console, f"{solved}: {', '.join(values)}{_ends(found, solved)}")
    return 0


def _as_json(found: Mapping[str, StoredEvaluation], figures: Sequence[Comparisons]) -> dict[str, Any]:
    """What is printed as tables and lines: the evaluations, and how each differs from the first in every figure."""
    first, *others = found
    differences = [
        {"metric": one.metric, "of": name, "to": first, **dataclasses.asdict(result), "p_value_corrected": p_value}
        for one in figures
        for name, result, p_value in zip(others, one.results, one.corrected, strict=True)
    ]
    evaluations = [
        {"letter": letter, "path": one.folder, "grader": one.settings.get("grader"), "metrics": one.summary}
        for letter, one in found.items()
    ]
    return {"evaluations": evaluations, "differences": differences}


def _print_figure(console: Any, compared: Comparisons) -> None:
    """Print how each evaluation differs from the first in a further figure."""
    from covey.evaluation.figures import paired_text, value_text

    figure, results = compared.metric, compared.results
    values = ", ".join(value_text(value, figure) for value in compared.values)
    _print_line(console, f"{figure}: {values}{_ends(compared.evaluations, figure)}")
    for place, (result, p_value) in enumerate(zip(results, compared.corrected, strict=True), 1):
        corrected = f" (corrected: {p_value:.3g})" if len(results) > 1 else ""
        _print_line(console, f"  {_letter(place)} - A: {paired_text(result, figure)}{corrected}")


def _ends(found: Sequence[StoredEvaluation], figure: str) -> str:
    """The 95% interval of each evaluation, and what random answers reach, to stand behind the values."""
    from covey.evaluation.estimators import Estimate
    from covey.evaluation.figures import ends_text

    ends = ", ".join(ends_text(Estimate(**one.summary[figure]), figure) for one in found)
    return f" (95% intervals {ends}{_chance(found, figure)})"


def _chance(found: Sequence[StoredEvaluation], figure: str) -> str:
    """What random answers reach, where that is known: of the same problems, so the same for all evaluations."""
    from covey.evaluation.figures import value_text

    chance = found[0].summary.get(CHANCE + figure)
    return "" if chance is None else f"; random answers {value_text(chance['value'], figure)}"


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
        *_needed(result.plan, metric),
        f"better in {name}: {_some(result.gained, listed)}",
        f"worse in {name}: {_some(result.lost, listed)}",
    ]
    for line in lines:
        _print_line(console, line)


def _print_answers(console: Any, sides: Mapping[str, StoredEvaluation], result: Comparison, listed: int) -> None:
    """Print the questions of the problems that changed, and what each side answered."""
    from covey.evaluation.stored import answers_text, by_problem
    from covey.training.terminal import fit, readable

    width = min(console.width, 140)
    changed = [*result.gained[:listed], *result.lost[:listed]]
    answers = {name: by_problem(evaluation.completions()) for name, evaluation in sides.items()} if changed else {}
    for place in changed:
        first = answers["A"][place][0]
        gold = "" if first.get("answer") is None else f" (gold answer: {fit(readable(str(first['answer'])), 40)})"
        heading = f"  problem {place}: "
        question = fit(readable(str(first.get("prompt") or "")), max(20, width - len(heading) - len(gold)))
        _print_line(console, f"{heading}{question}{gold}")
        for name, problems in answers.items():
            _print_line(console, fit(f"    {name}  {readable(answers_text(problems[place]))}", width))


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
