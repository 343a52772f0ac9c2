"""`covey compare`: two or more evaluations on the same problems, problem by problem."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli import config_arguments
from covey.errors import ConfigError, RunDirectoryError
from covey.runlog.names import HARD_SET, TEST_SET

if TYPE_CHECKING:
    from rich.table import Table

    from covey.evaluation.estimators import Estimate
    from covey.evaluation.paired import Comparison
    from covey.evaluation.planning import Plan
    from covey.runlog.evaluations import StoredEvaluation

_SAME = {
    "the problems": ("data", "problems_fingerprint"),
    "the system prompt": ("data", "system_prompt"),
    "the arguments of the chat template": ("data", "chat_template_kwargs"),
    "the prompts": ("data", "prompts_fingerprint"),
    "the grader": ("grader",),
}
"""What two evaluations must have in common, and its place in their settings."""
_FINGERPRINTS = ("problems_fingerprint", "prompts_fingerprint")


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
    parser.add_argument("--list", dest="listed", type=int, default=5, metavar="N", help="changed problems shown (5)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.evaluation.paired import compare, holm

    folders = [Path(name) for name in arguments.evaluations]
    if len(folders) == 1:
        return _list(folders[0])
    found = _find(folders)
    first = found[0]
    for other in found[1:]:
        _check_alike(first, other, any_sampling=arguments.any_sampling)
    scores = [_scores(evaluation) for evaluation in found]
    results = [compare(scores[0], other) for other in scores[1:]]
    console = config_arguments.make_console()
    names = [_letter(place) for place in range(len(found))]
    accuracies = [results[0].first, *(result.second for result in results)]
    for name, evaluation, accuracy in zip(names, found, accuracies, strict=True):
        _print_line(console, f"{name}  {evaluation.folder}: {accuracy:.1%}")
    if len(results) > 1:
        console.print(_table(names[1:], results, holm([result.p_value for result in results])))
    for name, result in zip(names[1:], results, strict=True):
        _print(console, name, result, arguments.listed, shown=len(results) > 1)
    return 0


def _list(folder: Path) -> int:
    from rich.table import Table

    from covey.evaluation.stored import evaluations_of

    held = evaluations_of(folder)
    if not held:
        raise ConfigError(
            f"covey compare needs two or more evaluations or run directories, and {folder} holds no evaluation to list."
        )
    table = Table("evaluation", "problems", "samples", "accuracy", "95% interval")
    for one in held:
        figure = one.summary["accuracy"]
        counts = str(one.settings["data"]["problems"]), str(one.settings["num_samples"])
        table.add_row(one.folder.name, *counts, f"{figure['value']:.1%}", f"{figure['low']:.1%} – {figure['high']:.1%}")
    config_arguments.make_console().print(table)
    return 0


def _find(folders: list[Path]) -> list[StoredEvaluation]:
    """One evaluation per folder or file; of run directories the newest that all of them have."""
    from covey.evaluation.stored import read_training_evaluation
    from covey.runlog.evaluations import is_evaluation, read_evaluation

    if repeated := [str(folder) for folder, count in Counter(folders).items() if count > 1]:
        raise ConfigError(f"{', '.join(repeated)} is given twice: a run is compared with another one.")
    singles = {}
    for folder in folders:
        if folder.suffix == ".jsonl":
            singles[folder] = read_training_evaluation(folder)
        elif is_evaluation(folder):
            singles[folder] = read_evaluation(folder)
            if not singles[folder].done:
                raise RunDirectoryError(f"{folder} is not finished: the same `covey eval` command resumes it.")
    runs = [folder for folder in folders if folder not in singles]
    wanted = next((one.settings.get("name") for one in singles.values()), None)
    singles |= dict(zip(runs, _newest_in_common(runs, wanted), strict=True))
    return [singles[folder] for folder in folders]


def _newest_in_common(runs: list[Path], wanted: str | None) -> list[StoredEvaluation]:
    """The newest evaluation of each run with the same name: by `covey eval`, else by training.

    Args:
        runs: run directories.
        wanted: the set that the other evaluations are on, if any.
    """
    from covey.evaluation.stored import evaluations_of

    held = {run: evaluations_of(run) for run in runs}
    for run, found in held.items():
        if not found:
            raise RunDirectoryError(
                f"{run} is neither an evaluation (it has no settings.json) nor a run directory with one in its "
                f"evaluation/ that is finished. Make one with: covey eval {run}"
            )
    for of_training in (False, True):
        named = [
            {_name(one): one for one in found if (one.folder.suffix == ".jsonl") is of_training}
            for found in held.values()
        ]
        common = [name for name in (named[0] if named else {}) if all(name in one for one in named)]
        if wanted is not None and len(runs) == 1:
            common = [name for name in common if named[0][name].settings.get("name") == wanted]
        # The newest, with the harder set last, and of training's the set that decides the best checkpoint.
        common.sort(key=lambda name: (named[0][name].settings["name"] != HARD_SET, of_training and name == TEST_SET))
        if common:
            return [one[common[-1]] for one in named]
    if not runs:
        return []
    has = "; ".join(f"{run}: {', '.join(one.name for one in found)}" for run, found in held.items())
    raise RunDirectoryError(f"These runs have no evaluation in common ({has}). Name the evaluation folders.")


def _name(one: StoredEvaluation) -> str:
    """The name by which evaluations of different runs are matched: of training's the set, at any step."""
    return str(one.settings["name"]) if one.folder.suffix == ".jsonl" else one.name


def _check_alike(first: StoredEvaluation, other: StoredEvaluation, *, any_sampling: bool) -> None:
    differ: list[str] = []
    for word, keys in _SAME.items():
        one, two = (_value(evaluation, keys) for evaluation in (first, other))
        known = one is not None and two is not None
        if one == two or (keys[-1] in _FINGERPRINTS and not known) or (word == "the prompts" and differ):
            continue
        if word == "the problems":
            word += _which_problems(first, other)
        differ.append(word if keys[-1] in _FINGERPRINTS else f"{word} ({_shown(one)} and {_shown(two)})")
    if differ:
        raise RunDirectoryError(
            f"{first.folder} and {other.folder} cannot be compared: {' and '.join(differ)} differ. Evaluate both on "
            f"the same problems, with the same system prompt, chat template and grader.{_seeds(first, other)}"
        )
    if any_sampling:
        return
    one, two = (evaluation.settings.get("sampling") or {} for evaluation in (first, other))
    differ = [f"{key} {_shown(one.get(key))} and {_shown(two.get(key))}" for key in one if one[key] != two.get(key)]
    if differ:
        raise RunDirectoryError(
            f"{first.folder} and {other.folder} were sampled differently ({', '.join(differ)}), which could "
            "explain a difference. Evaluate both alike, or compare them anyway with --any-sampling."
        )


def _seeds(first: StoredEvaluation, other: StoredEvaluation) -> str:
    """A hint when the seeds may have made the problems differ."""
    one, two = (evaluation.settings.get("seed") for evaluation in (first, other))
    same_data = _value(first, ("data", "problems")) == _value(other, ("data", "problems"))
    if one is None or two is None or one == two or not same_data:
        return ""
    return " Their seeds differ, and the seed draws held-out problems: give `covey eval` one seed=N for both."


def _which_problems(first: StoredEvaluation, other: StoredEvaluation) -> str:
    """How many problems differ, and the first that does, as far as the completions show."""
    one, two = (
        {item["problem"]: (item.get("prompt"), item.get("answer")) for item in evaluation.completions()}
        for evaluation in (first, other)
    )
    if len(one) != len(two):
        return f" ({len(one):,} and {len(two):,})"
    differ = sorted(number for number in one if one[number] != two.get(number))
    if not differ:
        return ""
    here, there = (side.get(differ[0], (None, None)) for side in (one, two))
    part = 0 if here[0] != there[0] else 1  # the question, else its answer
    shown = f"{_shown(here[part])} and {_shown(there[part])}"
    return f" ({len(differ):,} of {len(one):,}; the first is problem {differ[0]}, {('', 'its answer ')[part]}{shown})"


def _value(evaluation: StoredEvaluation, keys: tuple[str, ...]) -> Any:
    value: Any = evaluation.settings
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _shown(value: Any) -> str:
    text = "none" if value in (None, {}) else f"“{value}”" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _scores(evaluation: StoredEvaluation) -> list[list[float]]:
    """0 or 1 for each completion of each problem."""
    found: dict[int, list[float]] = {}
    for number, item in enumerate(evaluation.completions(), start=1):
        if not isinstance(item.get("problem"), int) or "outcome" not in item:
            raise RunDirectoryError(
                f"Completion {number} of {evaluation.folder} has no problem or no outcome, so the evaluation is "
                "damaged. Delete it and evaluate again."
            )
        found.setdefault(item["problem"], []).append(float(item["outcome"] == "right"))
    problems = int(evaluation.settings["data"]["problems"])
    if len(found) != problems:
        raise RunDirectoryError(
            f"{evaluation.folder} should have completions of {problems:,} problems and has them of {len(found):,}, so "
            "the evaluation is damaged. Delete it and evaluate again."
        )
    return [found[problem] for problem in sorted(found)]


def _letter(place: int) -> str:
    """A, B, …, Z, AA, AB, …"""
    return (_letter(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)


def _print_line(console: Any, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(names: Sequence[str], results: Sequence[Comparison], corrected: Sequence[float]) -> Table:
    """How each evaluation differs from the first."""
    from rich.table import Table

    table = Table("points", "difference", "95% interval", "p", "p, corrected (Holm)", "better", "worse")
    for name, result, p_value in zip(names, results, corrected, strict=True):
        interval = f"{100 * result.low:+.1f} to {100 * result.high:+.1f}"
        ps = f"{result.p_value:.3g}", f"{p_value:.3g}"
        counts = str(len(result.gained)), str(len(result.lost))
        table.add_row(f"{name} - A", f"{100 * result.difference:+.1f}", interval, *ps, *counts)
    return table


def _print(console: Any, name: str, result: Comparison, listed: int, *, shown: bool) -> None:
    """Print the difference of two evaluations; without the figures if a table has shown them."""
    interval = f"(95% interval {100 * result.low:+.1f} to {100 * result.high:+.1f})"
    figures = f"{100 * result.difference:+.1f} points {interval}, p = {result.p_value:.3g}"
    lines = [
        f"{name} - A on {result.problems} problems" + ("" if shown else f": {figures}"),
        f"better in {name}: {_some(result.gained, listed)}",
        f"worse in {name}: {_some(result.lost, listed)}",
        *_needed(result.plan),
    ]
    for line in lines:
        _print_line(console, line)


def _needed(plan: Plan) -> list[str]:
    """The difference that these problems can detect, and the problems or samples needed for the one observed."""
    if math.isnan(plan.detectable):
        return []
    lines = [
        f"these problems tell a true difference of about {100 * plan.detectable:.1f} points (80% power, two-sided 5%)"
    ]
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
