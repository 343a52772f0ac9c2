"""`covey compare`: two or more evaluations on the same problems, problem by problem."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli import composing
from covey.errors import ConfigError, RunDirectoryError

if TYPE_CHECKING:
    from covey.evaluation.paired import Comparison
    from covey.runlog.evaluations import StoredEvaluation

_SAME = (("name", None), ("data", "problems_fingerprint"), ("data", "prompts_fingerprint"), ("grader", None))
_WORDS = {"problems_fingerprint": "the problems", "prompts_fingerprint": "the prompts", "grader": "the grader"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare evaluations problem by problem",
        description=(
            "Compare evaluations (folders that `covey eval` wrote, or run directories that hold some) on the same "
            "problems: the difference with its 95% interval and p-value, the problems that changed, and how many more "
            "it would take to tell. The first is what the others are compared with."
        ),
    )
    parser.add_argument("evaluations", nargs="+", metavar="EVALUATION|RUN")
    parser.add_argument("--list", dest="listed", type=int, default=5, metavar="N", help="changed problems shown (5)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.evaluation.paired import compare, holm

    if len(arguments.evaluations) < 2:
        raise ConfigError("covey compare wants two or more evaluations or run directories.")
    found = _find([Path(name) for name in arguments.evaluations])
    first = found[0]
    for other in found[1:]:
        _check_alike(first, other)
    scores = [_scores(evaluation) for evaluation in found]
    results = [compare(scores[0], other) for other in scores[1:]]
    corrected = holm([result.p_value for result in results])
    console = composing.make_console()
    for evaluation, result, p_value in zip(found[1:], results, corrected, strict=True):
        _print(console, first, evaluation, result, p_value if len(results) > 1 else None, arguments.listed)
    return 0


def _find(folders: list[Path]) -> list[StoredEvaluation]:
    """One evaluation for each folder; of run directories the newest that all of them have by the same name."""
    from covey.runlog.evaluations import is_evaluation, list_evaluations, read_evaluation

    runs = {folder: list_evaluations(folder) for folder in folders if not is_evaluation(folder)}
    for folder, held in runs.items():
        if not held:
            raise RunDirectoryError(
                f"{folder} is neither an evaluation (it has no settings.json) nor a run directory with one in its "
                f"evaluation/ that is done. Make one with: covey eval {folder}"
            )
    singles = [read_evaluation(folder) for folder in folders if folder not in runs]
    for single in singles:
        if not single.done:
            raise RunDirectoryError(f"{single.folder} is not done: the same `covey eval` command goes on with it.")
    common = [one.name for one in next(iter(runs.values()), [])]
    for held in runs.values():
        common = [name for name in common if name in {one.name for one in held}]
    if runs and len(runs) > 1 and not common:
        has = "; ".join(f"{folder}: {', '.join(one.name for one in held)}" for folder, held in runs.items())
        raise RunDirectoryError(f"These runs have no evaluation in common ({has}). Name the evaluation folders.")
    chosen = {folder: next(one for one in reversed(held) if one.name == common[-1]) for folder, held in runs.items()}
    return [chosen[folder] if folder in chosen else read_evaluation(folder) for folder in folders]


def _check_alike(first: StoredEvaluation, other: StoredEvaluation) -> None:
    differ = []
    for key, inner in _SAME:
        one, two = (
            evaluation.settings.get(key) if inner is None else evaluation.settings.get(key, {}).get(inner)
            for evaluation in (first, other)
        )
        if one != two and key != "name":
            differ.append(_WORDS[inner or key])
    if differ:
        raise RunDirectoryError(
            f"{first.folder} and {other.folder} cannot be compared: {' and '.join(differ)} differ. Evaluate both on "
            "the same problems, with the same system prompt, chat template and grader."
        )


def _scores(evaluation: StoredEvaluation) -> list[list[float]]:
    found: dict[int, list[float]] = {}
    for item in evaluation.completions():
        found.setdefault(item["problem"], []).append(float(item["outcome"] == "right"))
    return [found[problem] for problem in sorted(found)]


def _print(
    console: Any,
    first: StoredEvaluation,
    second: StoredEvaluation,
    result: Comparison,
    corrected: float | None,
    listed: int,
) -> None:
    lines = [
        f"A  {first.folder}: {result.first:.1%}",
        f"B  {second.folder}: {result.second:.1%}",
        f"B - A on {result.problems} problems: {100 * result.difference:+.1f} points "
        f"(95% interval {100 * result.low:+.1f} to {100 * result.high:+.1f}), p = {result.p_value:.3g}"
        + ("" if corrected is None else f", {corrected:.3g} corrected for several comparisons (Holm)"),
        f"better in B: {_some(result.gained, listed)}",
        f"worse in B: {_some(result.lost, listed)}",
    ]
    if math.isfinite(result.more_problems):
        lines.append(
            "to tell a difference of this size (80% power, two-sided 5%): "
            + (f"{result.more_problems:,.0f} more problems" if result.more_problems else "these problems are enough")
            + _samples(result)
        )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _samples(result: Comparison) -> str:
    if math.isnan(result.samples_needed):
        return ""
    if math.isinf(result.samples_needed):
        return "; more samples of these problems would not do"
    return f"; or {result.samples_needed:,.0f} samples of each of these"


def _some(problems: tuple[int, ...], listed: int) -> str:
    if not problems:
        return "none"
    shown = ", ".join(map(str, problems[:listed]))
    rest = ", …" if len(problems) > listed else ""
    return f"{len(problems)} (problem {shown}{rest})" if shown else str(len(problems))
