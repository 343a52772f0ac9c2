"""Independent implementations of the exploration objectives, for one group whose completions all count.

By loops and enumeration, without logarithms of sums; no code is shared with `covey.objective`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

import numpy as np


def advantages(rewards: Sequence[float]) -> np.ndarray:
    """r - r̄."""
    return np.array([reward - fmean(rewards) for reward in rewards])


def xdr_weights(
    rewards: Sequence[float],
    lengths: Sequence[int],
    tau: float,
    limit: float,
    lam: float = 0.0,
    reference: Sequence[float] | None = None,
) -> np.ndarray:
    """softmax(U / (τ + λ) + λ / (τ + λ)·s); `reference` holds sums over tokens."""
    utilities = advantages(rewards) * np.array(lengths) / limit
    if tau + lam == 0:
        best = np.isclose(utilities, utilities.max(), rtol=0, atol=1e-12)
        return np.asarray(best / best.sum())
    if math.isinf(tau):
        return np.full(len(rewards), 1 / len(rewards))
    weights = np.exp(utilities / (tau + lam))
    if lam:
        assert reference is not None
        weights = weights * np.exp(np.array(reference) / np.array(lengths)) ** (lam / (tau + lam))
    return np.asarray(weights / weights.sum())


def passk(rewards: Sequence[float], k: int) -> np.ndarray:
    """The share of all subsets of k, times their highest reward, that hold each completion; centred."""
    n = len(rewards)
    found = np.zeros(n)
    for subset in combinations(range(n), k):
        found[list(subset)] += max(rewards[i] for i in subset)
    found /= math.comb(n, k)
    return np.asarray(found - found.mean())


def _clusters(modes: Sequence[int]) -> list[int]:
    """The modes, where each completion without one has its own."""
    return [mode if mode >= 0 else -1 - place for place, mode in enumerate(modes)]


def unique(rewards: Sequence[float], modes: Sequence[int], alpha: float) -> np.ndarray:
    """A·f^-α on completions with a mode."""
    right = [mode for mode in modes if mode >= 0]
    sizes = Counter(right)
    factors = [(sizes[mode] / len(right)) ** -alpha if mode >= 0 else 1.0 for mode in modes]
    return advantages(rewards) * np.array(factors)


def darling(rewards: Sequence[float], modes: Sequence[int], floor: float) -> np.ndarray:
    """The reward times the share of the others that differ, centred."""
    clusters = _clusters(modes)
    products = []
    for place, reward in enumerate(rewards):
        others = clusters[:place] + clusters[place + 1 :]
        products.append(reward * max(floor, fmean(one != clusters[place] for one in others)))
    return advantages(products)


def seed(rewards: Sequence[float], modes: Sequence[int], logps: Sequence[float], alpha: float) -> np.ndarray:
    """A / (1 + α·H / log n), with log-probs per token."""
    masses: dict[int, float] = {}
    for cluster, logp in zip(_clusters(modes), logps, strict=True):
        masses[cluster] = masses.get(cluster, 0.0) + math.exp(logp)
    shares = np.array(list(masses.values())) / sum(masses.values())
    entropy = -float((shares * np.log(shares)).sum())
    return advantages(rewards) / (1 + alpha * entropy / math.log(len(rewards)))


def quantile(rewards: Sequence[float], level: float) -> np.ndarray:
    """The reward less the smallest one that a share of at least `level` does not exceed."""
    baseline = min(q for q in rewards if sum(r <= q for r in rewards) >= level * len(rewards) - 1e-9)
    return np.array(rewards) - baseline


def unlikely(rewards: Sequence[float], logps: Sequence[float], beta: float) -> np.ndarray:
    """r·(1 - β·rank / n), centred; ranks from the least likely, all different."""
    order = sorted(range(len(logps)), key=lambda place: logps[place])
    return advantages([reward * (1 - beta * order.index(at) / len(logps)) for at, reward in enumerate(rewards)])
