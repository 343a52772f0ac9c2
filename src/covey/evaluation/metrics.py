"""From graded completions to metrics, each with a 95% interval over problems. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from covey.answers import Outcome
from covey.evaluation.estimators import Estimate, mean, mean_estimate, share_estimate
from covey.evaluation.passk import majority_at_k, pass_at_k, powers_up_to


def compute_metrics(
    completions: Iterable[Mapping[str, Any]], seed: int = 0, ks: Sequence[int] = ()
) -> dict[str, Estimate]:
    """All metrics of an evaluation by name.

    Args:
        completions: with `problem`, `outcome`, `partial`, `well_formed`, `truncated`, `length` and `extracted`.
        seed: of the subsets that are drawn where not all are counted.
        ks: the k of pass@k and maj@k; if empty, the powers of two up to the completions of a problem, if several.

    Raises:
        ConfigError: a k is above the completions of some problem.
    """
    by_problem: dict[int, list[Mapping[str, Any]]] = {}
    for item in completions:
        by_problem.setdefault(item["problem"], []).append(item)
    problems = list(by_problem.values())
    right = [[item["outcome"] == Outcome.RIGHT for item in problem] for problem in problems]
    found = {
        "accuracy": _share(right),
        "partial_accuracy": _share([[item["partial"] for item in problem] for problem in problems]),
        "format": _share([[item["well_formed"] for item in problem] for problem in problems]),
        "truncated": _share([[item["truncated"] for item in problem] for problem in problems]),
        "completion_length": mean_estimate(
            [mean([item["length"] for item in problem]) for problem in problems], lowest=0.0
        ),
    }
    for outcome in Outcome:
        found[f"grader/{outcome}"] = _share([[item["outcome"] == outcome for item in p] for p in problems])
    samples, total = min(map(len, right), default=0), sum(map(len, right))
    answers = [[item["extracted"] for item in problem] for problem in problems]
    if samples > 1:
        found[f"avg@{samples}"] = found["accuracy"]
    chosen = sorted(set(ks)) or (powers_up_to(samples) if samples > 1 else [])
    for k in chosen:
        passed = [pass_at_k(len(problem), sum(problem), k) for problem in right]
        found[f"pass@{k}"] = share_estimate(passed, total, k)
    for k in (k for k in chosen if k > 1):
        voted = [majority_at_k(a, r, k, seed + i) for i, (a, r) in enumerate(zip(answers, right, strict=True))]
        found[f"maj@{k}"] = share_estimate(voted, total, k)
    return found


def _share(flags: Sequence[Sequence[bool]]) -> Estimate:
    return share_estimate([mean([float(flag) for flag in problem]) for problem in flags], sum(map(len, flags)))
