"""From graded completions to metrics, each with a 95% interval over problems. Needs no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.answers import VALUE_GRADERS, Outcome
from covey.answers.tasks import MODES
from covey.evaluation.estimators import (
    Estimate,
    chance_at_k,
    coverage_at_k,
    distinct_at_k,
    majority_at_k,
    mean,
    mean_estimate,
    pass_at_k,
    powers_up_to,
    ratio_estimate,
    share_estimate,
)
from covey.runlog import names


def compute_metrics(
    completions: Iterable[Mapping[str, Any]], seed: int = 0, ks: Sequence[int] = (), grader: str | None = None
) -> dict[str, Estimate]:
    """All metrics of an evaluation by name.

    Args:
        completions: with `problem`, `outcome` (None without a grader), `partial`, `well_formed`, `truncated`, `length`,
            `answer` and `extracted`; `mode` and `num_modes`, where they are known; `reward` and `rewards`, where they
            were computed; `score`, where an environment's reward counts as accuracy; and of episodes `turns`,
            `tool_calls`, `tool_failures`, `environment_seconds` and `episode`.
        seed: of the subsets that are drawn where not all are counted.
        ks: the k of pass@k and its like; if empty, the powers of two up to the completions of a problem, if several.
        grader: which decided on the outcomes; some know every right answer of a problem.

    Raises:
        ConfigError: a k is above the completions of some problem.
    """
    by_problem: dict[int, list[Mapping[str, Any]]] = {}
    for item in completions:
        by_problem.setdefault(item["problem"], []).append(item)
    problems = list(by_problem.values())
    graded = [problem for problem in problems if any(item["outcome"] is not None for item in problem)]
    has_grader = not problems or bool(graded)
    right = [[item["outcome"] == Outcome.RIGHT for item in problem] for problem in graded]
    found = {}
    if has_grader:
        found["accuracy"] = accuracy([[credit(item["outcome"], item.get(names.SCORE)) for item in p] for p in graded])
        found["partial_accuracy"] = _share([[item["partial"] for item in problem] for problem in graded])
    found |= _reward_estimates(problems)
    found["format"] = _share([[item["well_formed"] for item in problem] for problem in problems])
    signs = [[(item.get("repeats_prompt"), item.get("holds_gold")) for item in problem] for problem in problems]
    found |= watch_estimates(signs, grader)
    found["truncated"] = _share([[item["truncated"] for item in problem] for problem in problems])
    lengths = [mean([item["length"] for item in problem]) for problem in problems]
    found["completion_length"] = mean_estimate(lengths, lowest=0.0)
    found |= episode_estimates(problems)
    if has_grader:
        for outcome in Outcome:
            found[f"grader/{outcome}"] = _share([[item["outcome"] == outcome for item in p] for p in graded])
        scored = any(item.get(names.SCORE) is not None for problem in graded for item in problem)
        answers = None if scored else [[item["extracted"] for item in problem] for problem in graded]
        found |= _of_several(right, answers, seed, ks) | modes_at(graded, ks, grader)
    return found


def modes_at(
    problems: Sequence[Sequence[Mapping[str, Any]]], ks: Sequence[int], grader: str | None
) -> dict[str, Estimate]:
    """The figures of several right answers, see `mode_metrics`; empty where none are known, or for one completion each.

    Args:
        problems: for each problem its graded completions, as those of `compute_metrics`.
        ks: see there.
        grader: see there.
    """
    chosen = _chosen(min(map(len, problems), default=0), ks)
    found, named = by_mode(problems, grader) if chosen else ([], False)
    return mode_metrics(found, chosen) if named else {}


@dataclass(frozen=True, slots=True)
class ProblemModes:
    """The completions of one problem, by mode."""

    counts: tuple[int, ...]
    """Right completions of each mode that was found."""
    right: int
    samples: int
    modes: int | None = None
    """Different right answers that the problem has; None where that is not known."""
    chances: tuple[float, ...] | None = None
    """The probability of each under random well-formed answers; None where that is not known."""

    def distinct(self, k: int) -> float:
        """See `distinct_at_k`."""
        return distinct_at_k(self.counts, self.samples, k)

    def coverage(self, k: int) -> float:
        """See `coverage_at_k`; NaN where the number of right answers is not known."""
        return (
            coverage_at_k(self.counts, self.samples, k, max(self.modes, len(self.counts))) if self.modes else math.nan
        )

    def passed(self, k: int) -> float:
        """See `pass_at_k`."""
        return pass_at_k(self.samples, self.right, k)


def by_mode(problems: Iterable[Sequence[Mapping[str, Any]]], grader: str | None) -> tuple[list[ProblemModes], bool]:
    """The completions of each problem by mode, and whether their grader names modes.

    Args:
        problems: for each problem its completions, as they are stored.
        grader: their grader. Those of `answers.tasks.MODES` know every right answer; for others the data may say how
            many there are (a column `num_modes`).
    """
    known, found = MODES.get(str(grader)), []
    for items in problems:
        right = [item for item in items if item["outcome"] == Outcome.RIGHT]
        counts = Counter(item.get(names.MODE) for item in right)
        counts.pop(None, None)
        every = known(items[0]["answer"]) if known else None
        modes = items[0].get(names.NUM_MODES) if every is None else len(every)
        chances = None if every is None else tuple(every.values())
        found.append(ProblemModes(tuple(counts.values()), len(right), len(items), modes, chances))
    return found, known is not None or any(problem.counts for problem in found)


def values_at_k(problems: Sequence[Sequence[Mapping[str, Any]]], metric: str, grader: str | None) -> list[float] | None:
    """The value of each problem in a figure such as `pass@8`, `distinct@8` or `coverage@8`; NaN where it is undefined.

    Args:
        problems: see `by_mode`.
        metric: the figure's name.
        grader: see `by_mode`.

    Returns:
        None where there is no such figure, or k is above the completions of a problem.
    """
    kind, _, text = metric.partition("@")
    value = {"pass": ProblemModes.passed, names.DISTINCT: ProblemModes.distinct, names.COVERAGE: ProblemModes.coverage}
    if kind not in value or not text.isdecimal() or not 1 <= int(text) <= min(map(len, problems), default=0):
        return None
    found, named = by_mode(problems, grader)
    return [value[kind](problem, int(text)) for problem in found] if named or kind == "pass" else None


def mode_metrics(problems: Sequence[ProblemModes], ks: Iterable[int]) -> dict[str, Estimate]:
    """`distinct@k`, `distinct_if_solved@k`, `coverage@k` and what random answers reach, `chance/…`; each k is at most
    the fewest completions of a problem."""
    ks, found = [*ks], dict[str, Estimate]()
    counted = [problem for problem in problems if problem.modes]
    for k in ks:
        distinct = [problem.distinct(k) for problem in problems]
        found[f"{names.DISTINCT}@{k}"] = mean_estimate(distinct, lowest=0.0)
        found[f"{names.DISTINCT_IF_SOLVED}@{k}"] = ratio_estimate(distinct, [problem.passed(k) for problem in problems])
        if counted:
            shares = [problem.coverage(k) for problem in counted]
            found[f"{names.COVERAGE}@{k}"] = share_estimate(shares, sum(p.samples for p in counted), k)
    return found | chance_metrics(problems, ks)


def chance_metrics(problems: Sequence[ProblemModes], ks: Iterable[int]) -> dict[str, Estimate]:
    """What k random well-formed answers reach, over the problems for which that is known: exact, so without an
    interval."""
    known = [(problem.modes, problem.chances) for problem in problems if problem.modes and problem.chances is not None]
    if not known:
        return {}
    found = {"accuracy": mean([math.fsum(chances) for _, chances in known])}
    for k in ks:
        passed, distinct = zip(*(chance_at_k(chances, k) for _, chances in known), strict=True)
        found[f"pass@{k}"] = mean(passed)
        found[f"{names.DISTINCT}@{k}"] = mean(distinct)
        found[f"{names.DISTINCT_IF_SOLVED}@{k}"] = math.fsum(distinct) / (math.fsum(passed) or math.nan)
        found[f"{names.COVERAGE}@{k}"] = mean([d / modes for d, (modes, _) in zip(distinct, known, strict=True)])
    return {f"{names.CHANCE}{name}": Estimate(value, math.nan, math.nan) for name, value in found.items()}


def credit(outcome: str | None, score: float | None) -> float:
    """What a completion counts in the accuracy: its environment's reward, else 1 for right and 0 for anything else."""
    return float(outcome == Outcome.RIGHT) if score is None else score


def accuracy(credits: Sequence[Sequence[float]]) -> Estimate:
    """The mean over problems of what their completions count, with its interval: that of a share where all are 0 or 1,
    and within 0 and 1 where all are.

    Args:
        credits: for each problem, those of its completions, see `credit`.
    """
    shares, count = [mean(problem) for problem in credits], sum(map(len, credits))
    values = {value for problem in credits for value in problem}
    if values <= {0.0, 1.0}:
        return share_estimate(shares, count)
    found = mean_estimate(shares)
    if min(values) < 0 or max(values) > 1:
        return found
    return Estimate(found.value, max(found.low, 0.0), min(found.high, 1.0))


def rewards_by_problem(
    completions: Iterable[tuple[int, float | None, Mapping[str, float | None]]],
) -> tuple[list[float], dict[str, list[float]]]:
    """The mean rewards of each problem: the weighted sums, and those of each function.

    Args:
        completions: problem, weighted reward and rewards by function; None does not count.

    Returns:
        One value for each problem with any.
    """
    found: dict[str | None, dict[int, list[float]]] = {None: {}}
    for problem, reward, rewards in completions:
        for name, value in ((None, reward), *rewards.items()):
            if value is not None:
                found.setdefault(name, {}).setdefault(problem, []).append(value)
    means = {name: [mean(values) for values in problems.values()] for name, problems in found.items()}
    return means.pop(None), {str(name): values for name, values in means.items()}


def _reward_estimates(problems: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Estimate]:
    """Mean rewards; none if an older version evaluated some of the problems without rewards."""
    every = [item for problem in problems for item in problem]
    if not all(item.get("rewards") for item in every):
        return {}
    reward, rewards = rewards_by_problem((item["problem"], item["reward"], item["rewards"]) for item in every)
    named = {"reward": reward} | {f"reward/{name}": values for name, values in rewards.items()}
    return {name: mean_estimate(values) for name, values in named.items() if values}


def watch_estimates(
    signs: Sequence[Sequence[tuple[bool | None, bool | None]]], grader: str | None
) -> dict[str, Estimate]:
    """The signs of `covey.answers.watch`, by problem: whether each completion repeats the prompt and holds the gold
    answer's value. Those that are None do not count."""
    kinds = (names.REPEATS_PROMPT, names.GOLD_VALUE_SHARE)[: 2 if grader in (None, *VALUE_GRADERS) else 1]
    found = {}
    for at, name in enumerate(kinds):
        flags = [[each[at] for each in problem if each[at] is not None] for problem in signs]
        if any(flags):
            found[name] = _share([[bool(flag) for flag in problem] for problem in flags if problem])
    return found


def episode_estimates(problems: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Estimate]:
    """The metrics of episodes, over the problems of which every completion is one; arguments as of the completions of
    `compute_metrics`, by problem."""
    played = [problem for problem in problems if all(item.get(names.COLUMN_TURNS) is not None for item in problem)]
    if not played:
        return {}
    found = {
        name: mean_estimate([mean([item[name] for item in problem]) for problem in played], lowest=0.0)
        for name in names.PER_EPISODE
        if all(item.get(name) is not None for problem in played for item in problem)  # older versions counted fewer
    }
    for end in names.ENDS:
        shares = [[item[names.COLUMN_EPISODE] == end for item in problem] for problem in played]
        found[f"{names.EPISODE}{end}"] = _share(shares)
    return found


def _of_several(
    right: Sequence[Sequence[bool]], answers: Sequence[Sequence[str | None]] | None, seed: int, ks: Sequence[int]
) -> dict[str, Estimate]:
    """The metrics of several completions per problem; without answers, as where an environment rewards, no majority."""
    samples, total = min(map(len, right), default=0), sum(map(len, right))
    found = {}
    if samples > 1:
        found[f"avg@{samples}"] = _share(right)
    chosen = _chosen(samples, ks)
    for k in chosen:
        passed = [pass_at_k(len(problem), sum(problem), k) for problem in right]
        found[f"pass@{k}"] = share_estimate(passed, total, k)
    if answers is None:
        return found
    for k in (k for k in chosen if k > 1):
        voted = [majority_at_k(a, r, k, seed + i) for i, (a, r) in enumerate(zip(answers, right, strict=True))]
        found[f"maj@{k}"] = share_estimate(voted, total, k)
    return found


def _chosen(samples: int, ks: Sequence[int]) -> list[int]:
    return sorted(set(ks)) or (powers_up_to(samples) if samples > 1 else [])


def _share(flags: Sequence[Sequence[bool]]) -> Estimate:
    return share_estimate([mean([float(flag) for flag in problem]) for problem in flags], sum(map(len, flags)))
