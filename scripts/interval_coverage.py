"""Measure how often Covey's 95% intervals hold the true value, and write the tables of benchmarks/intervals.md.

python scripts/interval_coverage.py [--check]

Every figure comes from 2,000 evaluations drawn with a fixed seed. Each problem has its own success probability; the
problems of an evaluation are drawn from a population whose true mean is known. `--check` only reports whether the page
is up to date.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from covey.evaluation.estimators import (
    Estimate,
    majority_at_k,
    mean_estimate,
    pass_at_k,
    share_estimate,
    share_interval,
)

TARGET = Path(__file__).resolve().parents[1] / "benchmarks" / "intervals.md"
BEGIN, END = "<!-- coverage: begin (scripts/interval_coverage.py writes what follows) -->", "<!-- coverage: end -->"

DRAWS = 2000
ACCURACIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
PROBLEMS = (10, 30, 100, 200)
POPULATIONS = ("unequal", "nearly equal", "solved or hopeless")
"""Probabilities from a beta distribution of total 1 or 20; or a part of the problems has 0, the rest 60% or more."""
_TOTAL = {"unequal": 1.0, "nearly equal": 20.0}
_WRONG = 3
"""Wrong answers that are equally likely, where answers vote."""


def chances(population: str, accuracy: float, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Success probabilities, `[evaluations, problems]`, of a population with this mean."""
    if population in _TOTAL:
        total = _TOTAL[population]
        return rng.beta(total * accuracy, total * (1 - accuracy), size=shape)
    rare = min(accuracy, 1 - accuracy)
    high = max(0.6, rare)
    drawn = np.where(rng.random(shape) < rare / high, high, 0.0)
    return drawn if accuracy <= 0.5 else 1 - drawn


def accuracy_coverage(population: str, accuracy: float, problems: int, samples: int, draws: int = DRAWS) -> float:
    """The share of evaluations whose interval of the accuracy holds the true one."""
    rng = np.random.default_rng([POPULATIONS.index(population), int(1000 * accuracy), problems, samples])
    right = rng.binomial(samples, chances(population, accuracy, (draws, problems), rng))
    return _covered(right, [count / samples for count in range(samples + 1)], accuracy, samples)


def exact_coverage(accuracy: float, problems: int) -> float:
    """The same for one completion each: not drawn, but summed over all counts."""
    covered = 0.0
    for right in range(problems + 1):
        low, high = share_interval(right, problems)
        if low <= accuracy <= high:
            covered += math.comb(problems, right) * accuracy**right * (1 - accuracy) ** (problems - right)
    return covered


def pass_coverage(population: str, accuracy: float, problems: int, samples: int, k: int, draws: int = DRAWS) -> float:
    """The share of evaluations whose interval of pass@k holds the true one; a beta population."""
    rng = np.random.default_rng([7, POPULATIONS.index(population), int(1000 * accuracy), problems, samples, k])
    right = rng.binomial(samples, chances(population, accuracy, (draws, problems), rng))
    total = _TOTAL[population]
    a, b = total * accuracy, total * (1 - accuracy)
    missed = math.prod((b + i) / (a + b + i) for i in range(k))  # the mean of (1 - chance)^k
    return _covered(right, [pass_at_k(samples, count, k) for count in range(samples + 1)], 1 - missed, samples, k)


def majority_coverage(
    population: str, accuracy: float, problems: int, samples: int, k: int, draws: int = DRAWS
) -> float:
    """The share of evaluations whose interval of maj@k holds the true one; a beta population, three wrong answers."""
    rng = np.random.default_rng([8, POPULATIONS.index(population), int(1000 * accuracy), problems, samples, k])
    drawn = chances(population, accuracy, (draws, problems), rng)
    right = rng.binomial(samples, drawn)
    wrong = rng.multinomial(samples - right, [1 / _WRONG] * _WRONG)
    counts = np.concatenate([right[..., None], -np.sort(-wrong, axis=-1)], axis=-1)  # which is which does not matter
    kinds, place = np.unique(counts.reshape(-1, 1 + _WRONG), axis=0, return_inverse=True)
    values = [_majority(tuple(map(int, kind)), k) for kind in kinds]
    truth = float(np.mean(_true_majority(chances(population, accuracy, (1, 200_000), rng)[0], k)))
    return _covered(place.reshape(right.shape), values, truth, samples, k)


def length_coverage(spread: float, problems: int, draws: int = DRAWS) -> float:
    """The share of intervals of a mean that hold it, for log-normal lengths: skewed, the more the larger `spread`."""
    rng = np.random.default_rng([9, int(10 * spread), problems])
    lengths = np.exp(spread * rng.standard_normal((draws, problems)))
    truth = math.exp(spread**2 / 2)
    return _held((mean_estimate(row) for row in lengths.tolist()), truth)


def _covered(kinds: np.ndarray, values: Sequence[float], truth: float, samples: int, k: int = 1) -> float:
    """The share of rows whose interval holds the truth; `kinds` says which of the values each problem has."""
    counts = np.stack([(kinds == kind).sum(axis=1) for kind in range(len(values))], axis=1)
    rows, times = np.unique(counts, axis=0, return_counts=True)  # the order of the problems does not matter
    held = 0
    for row, often in zip(rows, times, strict=True):
        shares = [value for value, count in zip(values, row, strict=True) for _ in range(count)]
        estimate = share_estimate(shares, len(shares) * samples, k)
        held += int(often) * (estimate.low <= truth <= estimate.high)
    return held / len(kinds)


def _held(estimates: Iterable[Estimate], truth: float) -> float:
    return float(np.mean([one.low <= truth <= one.high for one in estimates]))


@cache
def _majority(counts: tuple[int, ...], k: int) -> float:
    answers = [str(answer) for answer, count in enumerate(counts) for _ in range(count)]
    return majority_at_k(answers, [answer == "0" for answer in answers], k)


def _true_majority(chance: np.ndarray, k: int) -> np.ndarray:
    """The probability that the most common of k answers is right, by the formula: a sum over counts of the answers."""
    total = np.zeros_like(chance)
    for counts in product(range(k + 1), repeat=1 + _WRONG):
        if sum(counts) != k:
            continue
        most = max(counts)
        if counts[0] < most:
            continue
        ways = math.factorial(k) / math.prod(map(math.factorial, counts))
        share = 1 / sum(count == most for count in counts)
        total += ways * share * chance ** counts[0] * ((1 - chance) / _WRONG) ** (k - counts[0])
    return total


def tables() -> str:
    """All tables, in Markdown."""
    lines = ["| | " + " | ".join(f"{n} problems" for n in PROBLEMS) + " |", "|---|" + "---|" * len(PROBLEMS)]

    def row(label: str, coverage: Callable[[float, int], float]) -> None:
        cells = []
        for n in PROBLEMS:
            found = [coverage(accuracy, n) for accuracy in ACCURACIES]
            cells.append(f"{np.mean(found):.1%} ({min(found):.1%} to {max(found):.1%})")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
        print(lines[-1], file=sys.stderr)

    row("accuracy, one completion each (exact)", exact_coverage)
    for population in POPULATIONS:
        row(f"accuracy, 8 each, {population}", lambda p, n, kind=population: accuracy_coverage(kind, p, n, 8))  # type: ignore[misc]
    for population in _TOTAL:
        row(f"pass@4 of 8, {population}", lambda p, n, kind=population: pass_coverage(kind, p, n, 8, 4))  # type: ignore[misc]
        row(f"maj@4 of 8, {population}", lambda p, n, kind=population: majority_coverage(kind, p, n, 8, 4))  # type: ignore[misc]
    for label, spread in (("moderately skewed", 0.5), ("very skewed", 1.0)):
        cells = [f"{length_coverage(spread, n):.1%}" for n in PROBLEMS]
        lines.append(f"| length, {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only report whether the page is up to date")
    check = parser.parse_args().check
    page = TARGET.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    wanted = f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"
    if check:
        print("up to date" if wanted == page else f"{TARGET} differs from what the script writes")
        return int(wanted != page)
    TARGET.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
