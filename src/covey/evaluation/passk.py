"""pass@k and maj@k of one problem: pure functions of its completions. Undefined is NaN."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from covey.errors import ConfigError

_MOST_SUBSETS = 2000
"""Most subsets that are enumerated; if there are more, this many are drawn."""


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The probability that at least one of k completions, drawn without replacement, is right.

    `1 - C(n-c, k) / C(n, k)`, the unbiased estimate of Chen et al. (2021, equation 1), as a product of ratios so that
    no binomial coefficient overflows.

    Args:
        samples: completions of the problem, n.
        right: how many of them are right, c.
        k: how many are drawn.

    Raises:
        ConfigError: k is below 1 or above the samples.
    """
    check_k(samples, k)
    if samples - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(samples - right + 1, samples + 1))


def majority_at_k(answers: Sequence[str | None], right: Sequence[bool], k: int, seed: int = 0) -> float:
    """The probability that the most frequent answer among k completions, drawn without replacement, is right.

    Ties are broken at random, and the value is the mean over that. Completions without an answer do not vote; without
    votes the majority is wrong. Up to 2,000 subsets are enumerated; else 2,000 are drawn.

    Args:
        answers: the answer of each completion, equal texts are the same vote; None for none.
        right: whether each is right. Equal answers that were graded differently count by their mean.
        k: how many are drawn.
        seed: of the subsets that are drawn.

    Raises:
        ConfigError: k is below 1 or above the samples.
    """
    n = len(answers)
    check_k(n, k)
    votes = Counter(answer for answer in answers if answer is not None)
    credit = {
        answer: sum(ok for given, ok in zip(answers, right, strict=True) if given == answer) / count
        for answer, count in votes.items()
    }
    subsets = _subsets(n, k, seed)
    cast = np.array([[given == answer for answer in credit] for given in answers], dtype=np.int64).reshape(n, -1)
    counts = cast[subsets].sum(axis=1)
    counts = counts[(counts > 0).any(axis=1)]  # without votes, 0
    first = counts == counts.max(axis=1, keepdims=True, initial=0)
    shares = (first @ np.array(list(credit.values()))) / first.sum(axis=1)
    return math.fsum(shares) / len(subsets)


@lru_cache(maxsize=64)
def _subsets(n: int, k: int, seed: int) -> NDArray[np.int64]:
    """All subsets of k of n completions, one a row, or `_MOST_SUBSETS` random ones where there are more."""
    if math.comb(n, k) <= _MOST_SUBSETS:
        return np.array(list(combinations(range(n), k)))
    rng = random.Random(seed)
    return np.array([rng.sample(range(n), k) for _ in range(_MOST_SUBSETS)])


def powers_up_to(samples: int) -> list[int]:
    """1, 2, 4, … and the number of samples itself."""
    ks = [1 << power for power in range(samples.bit_length()) if 1 << power <= samples]
    return ks if ks and ks[-1] == samples else [*ks, samples]


def check_k(samples: int, k: int) -> None:
    """Raise a `ConfigError` if k completions cannot be drawn."""
    if not 1 <= k <= samples:
        raise ConfigError(
            f"k={k} is not possible for pass@k, maj@k and the like with {samples} completions of a problem: k must be "
            f"between 1 and {samples}. Sample more with evaluation.num_samples={max(k, 1)}."
        )
