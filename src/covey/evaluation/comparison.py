"""Comparing evaluations on the same problems: which can be compared, on what figure, and the paired test.

`covey compare`, the pages, the final table and the model card all compare through here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.advice import command
from covey.config.compose.recipe import script_of
from covey.errors import CoveyError, RunDirectoryError
from covey.evaluation.grading import SEED_OFFSET
from covey.evaluation.metrics import credit, values_at_k
from covey.evaluation.paired import Comparison, compare, holm
from covey.evaluation.stored import evaluations_of, read_stored
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import StoredEvaluation, list_evaluations, training_file, training_files

LEVEL = 0.05
"""A change is stated if its p-value is below this."""

_SAME = {
    "the problems": ("data", "problems_fingerprint"),
    "the system prompt": ("data", "system_prompt"),
    "the arguments of the chat template": ("data", "chat_template_kwargs"),
    "the chat template": ("data", "chat_template"),
    "the prompts": ("data", "prompts_fingerprint"),
    "the grader": ("grader",),
    "the value from which an answer is right": ("right_at",),
    "whether unevaluated answers are right": ("unevaluated",),
    "the environment and tools": ("episodes",),
}
"""What two evaluations must have in common, and its place in their settings."""
_WHERE_KNOWN = ("problems_fingerprint", "prompts_fingerprint", "chat_template")
"""Not in the settings of every evaluation: prompts are known of those by `covey eval`, templates of training's."""
_UNSHOWN = ("problems_fingerprint", "prompts_fingerprint")

_COLUMNS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    names.ACCURACY: lambda item: None if item["outcome"] is None else credit(item["outcome"], item.get(names.SCORE)),
    names.MEAN_REWARD: lambda item: item["reward"],
    names.FORMAT: lambda item: item["well_formed"],
    names.LENGTH: lambda item: item["length"],
}
"""A completion's score for a metric; of others (`truncated`, …) the field of that name."""

_OF_MODES = (names.DISTINCT, names.COVERAGE)


class NotComparableError(RunDirectoryError):
    """Two evaluations that must not be compared."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """What differs, in a few words."""


@dataclass(frozen=True, slots=True)
class PairedResult:
    """The paired comparison of two evaluations, or why there is none."""

    name: str
    """The held-out set, or the folder's name of an evaluation by `covey eval`."""
    metric: str = names.ACCURACY
    grader: str | None = None
    steps: tuple[int, int] | None = None
    """Of two evaluations of training."""
    found: Comparison | None = None
    corrected: float | None = None
    """The p-value after Holm's correction, if there are several comparisons."""
    reason: str = ""
    """Why they are not compared."""

    @property
    def verdict(self) -> int:
        """1 for a gain and -1 for a loss that chance does not explain, else 0."""
        if self.found is None or not self.found.p_value < LEVEL:
            return 0
        return 1 if self.found.difference > 0 else -1


def compare_evaluations(
    first: StoredEvaluation, other: StoredEvaluation, *, metric: str | None = None, any_sampling: bool = False
) -> Comparison:
    """The paired comparison of two evaluations.

    Args:
        metric: a metric's name after `eval/`; None takes the accuracy, or without a grader the mean reward.
        any_sampling: compare also where the sampling settings differ.

    Returns:
        The comparison on the problems with a score on both sides: a reward may be missing.

    Raises:
        NotComparableError: they differ in more than the model.
        RunDirectoryError: one of them is damaged.
    """
    metric = metric or metric_of(first)
    pair, settings = f"{first.folder} and {other.folder}", (first.settings, other.settings)
    if differ := _differing(*settings, metric, lambda: _which_problems(first, other)):
        reason, seeds = f"{' and '.join(differ)} differ", _seeds(*settings)
        raise NotComparableError(
            f"{pair} cannot be compared: {reason}. Evaluate both on the same problems, with the same system prompt, "
            f"chat template, grader, rewards, environment and tools.{seeds}",
            f"{reason}.{seeds}" if seeds else reason,
        )
    if differ := [] if any_sampling else _sampled_differently(*settings):
        shown = f"sampled differently ({', '.join(differ)})"
        raise NotComparableError(
            f"{pair} were {shown}, which could explain a difference. Evaluate both alike, or compare them anyway with "
            "--any-sampling.",
            shown,
        )
    ones, others = scores(first, metric), scores(other, metric)
    scored = [at for at, pair in enumerate(zip(ones, others, strict=True)) if all(pair)]
    found = compare([ones[at] for at in scored], [others[at] for at in scored])
    gained, lost = (tuple(scored[place] for place in places) for places in (found.gained, found.lost))
    return replace(found, gained=gained, lost=lost)


def metric_of(evaluation: StoredEvaluation) -> str:
    """The metric by which it is compared: the accuracy, or without a grader the mean reward."""
    return names.ACCURACY if evaluation.settings.get("grader") else names.MEAN_REWARD


def compare_runs(first: Path, other: Path) -> list[PairedResult]:
    """The newest evaluations that two runs have in common, the main held-out set first."""
    ones, others = (newest_evaluations(run, skip_damaged=True) for run in (first, other))
    keys = sorted(ones.keys() & others.keys(), key=lambda key: (key != (True, names.TEST_SET), not key[0], key[1]))
    return [compare_files(name, ones[of_training, name], others[of_training, name]) for of_training, name in keys]


def compare_steps(run: Path, set_name: str, first: int, last: int, metric: str) -> PairedResult:
    """Two evaluations of one run's training."""
    files = [training_file(run, set_name, step) for step in (first, last)]
    if missing := [step for step, file in zip((first, last), files, strict=True) if not file.is_file()]:
        return PairedResult(set_name, metric, reason=f"the completions of step {missing[0]} are not there")
    return compare_files(set_name, files[0], files[1], metric)


def correct(results: Sequence[PairedResult]) -> list[PairedResult]:
    """These results with Holm's correction over those of each set, where there are several."""
    corrected = list(results)
    for name in {result.name for result in results}:
        tests = [at for at, result in enumerate(results) if result.name == name and result.found]
        p_values = holm([found.p_value for at in tests if (found := results[at].found)])
        for at, p_value in zip(tests, p_values, strict=True):
            corrected[at] = replace(results[at], corrected=p_value if len(tests) > 1 else None)
    return corrected


def newest_evaluations(run: Path, *, skip_damaged: bool = False) -> dict[tuple[bool, str], Path]:
    """A run's newest evaluations, to be matched with another run's: of training by set, else by the folder's name.

    Returns:
        Whether training made it, and its name, to its file or folder.
    """
    RunDirectory(run).refuse_newer()
    found = {(True, set_name): file for set_name, _, file in training_files(run)}  # the newest step comes last
    return found | {(False, one.name): one.folder for one in list_evaluations(run, skip_damaged=skip_damaged)}


def newest_in_common(runs: Sequence[Path], wanted: str | None) -> list[StoredEvaluation]:
    """The newest evaluation of each run with the same name: by `covey eval`, else by training.

    Args:
        runs: run directories.
        wanted: for a single run, the set of the evaluation that it is compared with, if any.

    Raises:
        RunDirectoryError: a run holds none, or they have none in common.
    """
    if not (held := {run: newest_evaluations(run) for run in runs}):
        return []
    for run, found in held.items():
        if not found:
            advice = command("eval {run}", run=run)
            if script_of(RunDirectory(run).config) is not None:
                advice = command("eval {run} dataset.path={rows}", run=run, rows="ROWS.jsonl")
            raise RunDirectoryError(
                f"{run} is neither an evaluation (it has no settings.json) nor a run directory with one in its "
                f"evaluation/ that is finished. Make one with: {advice}"
            )
    for of_training in (False, True):
        named = [{name: path for (kind, name), path in found.items() if kind == of_training} for found in held.values()]
        in_all = [name for name in named[0] if all(name in one for one in named)]
        common = {name: read_stored(named[0][name]) for name in in_all}
        if wanted is not None and len(runs) == 1:
            common = {name: one for name, one in common.items() if one.settings["name"] == wanted}
        if common:
            # The newest, with the harder set last, and of training's the set that decides the best checkpoint.
            sets = {name: one.settings["name"] for name, one in common.items()}
            newest = max(
                reversed(sets),
                key=lambda name: (sets[name] != names.HARD_SET, of_training and sets[name] == names.TEST_SET),
            )
            return [common[newest], *(read_stored(one[newest]) for one in named[1:])]
    has = "; ".join(f"{run}: {', '.join(one.name for one in evaluations_of(run))}" for run in runs)
    raise RunDirectoryError(f"These runs have no evaluation in common ({has}). Name the evaluation folders.")


def measured_differently(one: Mapping[str, Any], two: Mapping[str, Any], metric: str) -> str:
    """How evaluations with these settings differ in prompts, grader or sampling; empty if they do not."""
    return ", ".join([*_differing(one, two, metric), *_sampled_differently(one, two)])


def scores(evaluation: StoredEvaluation, metric: str = names.ACCURACY) -> list[list[float]]:
    """For each problem, the score of each of its completions that has one: for the accuracy 0 or 1. Of a figure of
    several completions, such as `coverage@8`, the problem's own value, none where it is undefined.

    Raises:
        RunDirectoryError: the evaluation is damaged, or has no such figure.
    """
    problems = _by_problem(evaluation, metric)
    if "@" in metric:
        return _of_several(evaluation, problems, metric)
    score = _column(metric)
    values = [[score(item) for item in problem] for problem in problems]
    return [[float(value) for value in problem if value is not None] for problem in values]


def figures_of_several(evaluations: Sequence[StoredEvaluation]) -> list[str]:
    """distinct@k and coverage@k of the largest k above 1, where all evaluations have them."""
    common = [name for name in evaluations[0].summary if all(name in one.summary for one in evaluations)]
    ks = {kind: [int(name.partition("@")[2]) for name in common if name.startswith(f"{kind}@")] for kind in _OF_MODES}
    return [f"{kind}@{max(found)}" for kind, found in ks.items() if found and max(found) > 1]


def check_metric(evaluations: Sequence[StoredEvaluation], metric: str) -> None:
    """Raise a `RunDirectoryError`, listing the metrics that would do, if evaluations cannot be compared by this one."""
    kinds = ("pass@", *(f"{kind}@" for kind in _OF_MODES), f"{names.MEAN_REWARD}/")
    known = [name for name in evaluations[0].summary if name in (*_COLUMNS, names.TRUNCATED) or name.startswith(kinds)]
    shared = [name for name in known if all(name in one.summary for one in evaluations)]
    if metric not in shared:
        raise RunDirectoryError(
            f"--metric {metric} is not a figure by which these evaluations can be compared; those are "
            f"{', '.join(shared)}."
        )


def _by_problem(evaluation: StoredEvaluation, metric: str) -> list[list[Mapping[str, Any]]]:
    """The completions of each problem, checked for what the metric reads."""
    several = "@" in metric
    score, field = _column(names.ACCURACY if several else metric), "outcome" if several else metric
    field = "outcome" if metric == names.ACCURACY else field
    found: dict[int, list[Mapping[str, Any]]] = {}
    for number, item in enumerate(evaluation.completions(), start=1):
        try:
            value = score(item)
            if value is not None:
                float(value)
            found.setdefault(int(item["problem"]), []).append(item)
        except (KeyError, TypeError, ValueError):
            raise RunDirectoryError(
                f"Completion {number} of {evaluation.folder} has no problem or no {field}, so the evaluation is "
                "damaged. Delete it and evaluate again."
            ) from None
    problems = int(evaluation.settings["data"]["problems"])
    if len(found) != problems:
        raise RunDirectoryError(
            f"{evaluation.folder} should have completions of {problems:,} problems and has them of {len(found):,}, so "
            "the evaluation is damaged. Delete it and evaluate again."
        )
    return [found[problem] for problem in sorted(found)]


def _of_several(
    evaluation: StoredEvaluation, problems: Sequence[Sequence[Mapping[str, Any]]], metric: str
) -> list[list[float]]:
    try:
        values = values_at_k(problems, metric, evaluation.settings.get("grader"))
    except (KeyError, TypeError):
        raise RunDirectoryError(
            f"{evaluation.folder} has completions whose answers or modes are no texts, so the evaluation is damaged. "
            "Delete it and evaluate again."
        ) from None
    if values is None:
        raise RunDirectoryError(
            f"{evaluation.folder} has no {metric}: the figures of several completions are pass@k, and where the "
            "grader knows different right answers distinct@k and coverage@k, with k up to the completions of a problem."
        )
    return [[] if math.isnan(value) else [value] for value in values]


def compare_files(name: str, first: Path, other: Path, metric: str | None = None) -> PairedResult:
    """Two evaluations, each a file of training or a folder of `covey eval`, under this name."""
    try:
        ours, theirs = read_stored(first), read_stored(other)
        metric, grader = metric or metric_of(ours), ours.settings.get("grader")
        found = compare_evaluations(ours, theirs, metric=metric)
    except NotComparableError as error:
        return PairedResult(name, reason=error.reason)
    except CoveyError as error:  # without the folders above the runs: pages are shared
        return PairedResult(
            name, reason=str(error).replace(f"{first.parents[2]}/", "").replace(f"{other.parents[2]}/", "")
        )
    one, two = ours.settings.get("step"), theirs.settings.get("step")
    steps = None if one is None or two is None else (int(one), int(two))
    if not found.problems:
        return PairedResult(name, metric, grader, steps, reason="no problem has a score in both")
    return PairedResult(name, metric, grader, steps, found)


def _column(metric: str) -> Callable[[Mapping[str, Any]], Any]:
    function = metric.removeprefix(f"{names.MEAN_REWARD}/")
    if function != metric:
        return lambda item: item["rewards"][function]
    return _COLUMNS.get(metric, lambda item: item[metric])


def _differing(
    one: Mapping[str, Any], two: Mapping[str, Any], metric: str, which_problems: Callable[[], str] = str
) -> list[str]:
    """What makes evaluations with these settings incomparable, in words."""
    differ: list[str] = []
    same = _SAME | ({"the rewards": ("rewards",)} if metric.startswith(names.MEAN_REWARD) else {})
    for word, keys in same.items():
        (known, first), (also_known, second) = _lookup(one, keys), _lookup(two, keys)
        if first == second or (keys[-1] in _WHERE_KNOWN and not (known and also_known)):
            continue
        if word == "the prompts" and differ:
            continue
        shown = f" ({_shown(first)} and {_shown(second)})" if keys[-1] not in _UNSHOWN else ""
        differ.append(word + (which_problems() if word == "the problems" else shown))
    of_reward = metric.startswith(names.MEAN_REWARD)
    used = [*((one.get("rewards") or {}).get("funcs", ()) if of_reward else (str(one.get("grader")),))]
    used += _own_names(one.get("episodes") or {})
    codes = [settings.get("code") or {} for settings in (one, two)]
    changed = [name for name in used if all(name in code for code in codes) and codes[0][name] != codes[1][name]]
    return [*differ, *(f"the contents of {name.rpartition(':')[0]}" for name in changed)]


def _sampled_differently(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    one, two = first.get("sampling") or {}, second.get("sampling") or {}
    keys = dict.fromkeys([*one, *two])
    return [f"{key} {_shown(one.get(key))} and {_shown(two.get(key))}" for key in keys if one.get(key) != two.get(key)]


def _seeds(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """A hint when the seeds of held-out problems may have made these differ; older versions drew them with `seed`."""
    seeds = [(side.get("data") or {}).get("seed", side.get("seed", 0) - SEED_OFFSET) for side in (one, two)]
    same = [_lookup(one, keys) == _lookup(two, keys) for keys in (("data", "problems"), _SAME["the problems"])]
    if seeds[0] == seeds[1] or same != [True, False]:
        return ""
    return (
        f" Their seeds differ (dataset.seed={seeds[0]} and {seeds[1]}): give `covey eval` one dataset.seed=N for both, "
        "unless they are rows of the training data, where another seed holds out what was trained on."
    )


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


def _lookup(settings: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[bool, Any]:
    """Whether the settings have this key, and its value."""
    place: Any = settings
    for key in keys:
        if not isinstance(place, Mapping) or key not in place:
            return False, None
        place = place[key]
    return True, place


def _own_names(episodes: Mapping[str, Any]) -> list[str]:
    """The environments and tools of an evaluation, as its config names them."""
    return [*(one["factory"] for one in episodes.get("environments", ())), *episodes.get("tools", ())]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and "funcs" in value:
        value = ", ".join(value["funcs"]) + (f" × {value['weights']}" if value["weights"] else "")
    elif isinstance(value, Mapping) and "max_turns" in value:
        settings = [one["settings"] for one in value["environments"] if one["settings"]]
        parts = [*_own_names(value), *map(str, settings), f"at most {value['max_turns']} turns"]
        value = ", ".join(parts)
    text = "none" if value in (None, {}) else f"“{value}”" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"
