"""How well pilots predict the required sample size: `python scripts/pilot_plans.py [pilots]` prints a table.

Pilots of known problems: A's success probabilities are beta (of total 1: unequal; of total 20: nearly equal; or 0 for
40%, else beta(6, 3)), B's are A's shifted on the logit scale, with a spread between the problems. The sample size that
the observed difference really requires follows from the known variances. Counted is how often the ranges of `covey
compare` contain it, and how far off a single number of samples is.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np

from covey.evaluation.paired import plan

REACH = 1.959963984540054 + 0.8416212335729143
MOST_SAMPLES = 10_000
PILOTS = ((50, 2), (50, 8), (200, 2), (200, 4), (500, 4))
"""Problems, and samples of each."""
DIFFERENCES = (0.01, 0.03, 0.1)
SPREAD = 0.5
"""Of B's shift between the problems, on the logit scale."""

Chances = Callable[[np.random.Generator, int], np.ndarray]

KINDS: dict[str, Chances] = {
    "unequal": lambda rng, n: rng.beta(0.5, 0.5, n),
    "nearly equal": lambda rng, n: rng.beta(10, 10, n),
    "solved or hopeless": lambda rng, n: np.where(rng.random(n) < 0.4, 0.0, rng.beta(6, 3, n)),
}


def shifted(chances: np.ndarray, shift: float, rng: np.random.Generator) -> np.ndarray:
    """B's probabilities; 0 stays 0."""
    inner = np.clip(chances, 1e-9, 1 - 1e-9)
    logits = np.log(inner / (1 - inner)) + shift + SPREAD * rng.normal(size=chances.shape)
    return np.where(chances < 1e-6, chances, 1 / (1 + np.exp(-logits)))


def known(kind: Chances, difference: float) -> tuple[float, float, float]:
    """The shift that makes this difference, the variance between the problems, and that of one completion of each."""
    p = kind(np.random.default_rng(1), 200_000)
    low, high = 0.0, 6.0
    for _ in range(40):
        shift = (low + high) / 2
        q = shifted(p, shift, np.random.default_rng(2))
        low, high = (shift, high) if float((q - p).mean()) < difference else (low, shift)
    return shift, float((q - p).var()), float((p * (1 - p) + q * (1 - q)).mean())


def tried(kind: Chances, difference: float, problems: int, samples: int, pilots: int) -> list[tuple[bool, bool, float]]:
    """For each pilot whether the two ranges hold, and the advised over the true number of samples (NaN, infinite or 0
    where one of them is infinite)."""
    shift, between, noise = known(kind, difference)
    rng, found = np.random.default_rng(problems + samples), []
    for _ in range(pilots):
        p = kind(rng, problems)
        q = shifted(p, shift, rng)
        a, b = ((rng.random((problems, samples)) < side[:, None]).astype(float) for side in (p, q))
        got, size = plan(a.tolist(), b.tolist()), abs(float((b - a).mean()))
        if math.isnan(got.problems.value) or got.samples.value <= samples:
            continue  # no observed difference, or already significant
        wanted = (size / REACH) ** 2
        more = max(0.0, (between + noise / samples) / wanted - problems)
        room = problems * wanted - between
        needed = max(float(samples), noise / room) if room > 0 else math.inf
        needed = needed if needed <= MOST_SAMPLES else math.inf
        holds = (
            got.problems.low - 1 <= more <= got.problems.high + 1,
            got.samples.low - 1 <= needed <= got.samples.high + 1,
        )
        ratio = math.nan if math.isinf(needed) and math.isinf(got.samples.value) else got.samples.value / needed
        found.append((*holds, ratio))
    return found


def main() -> None:
    pilots = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(
        "| pilot | range of problems holds | range of samples holds | a single number of samples, over the true one |"
    )
    print("|---|---|---|---|")
    for problems, samples in PILOTS:
        found = [
            tried(kind, difference, problems, samples, pilots) for kind in KINDS.values() for difference in DIFFERENCES
        ]
        shares = [[np.mean([one[place] for one in some]) for some in found if len(some) > 20] for place in (0, 1)]
        ratios = np.array([one[2] for some in found for one in some])
        usable = ratios[np.isfinite(ratios) & (ratios > 0)]
        low, high = np.quantile(usable, (0.05, 0.95))
        wrong = float(np.mean(np.isinf(ratios) | (ratios == 0)))
        ends = [f"{np.mean(one):.0%} ({min(one):.0%} to {max(one):.0%})" for one in shares]
        print(
            f"| {problems} problems, {samples} samples | {ends[0]} | {ends[1]} | "
            f"{low:.1f} to {high:.1f} times (9 of 10), missing or none for {wrong:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
