"""An independent implementation of MaxEnt's weights."""

from __future__ import annotations

import numpy as np


def by_numpy(
    rewards: np.ndarray, ref_logps: np.ndarray, tau: float, beta: float, q_temperature: float, q_epsilon: float
) -> np.ndarray:
    """The formula without logarithms, for one group."""
    q = np.exp(rewards / q_temperature)
    q = q / q.sum()
    q = (1 - len(q) * q_epsilon) * q + q_epsilon
    w = q ** (1 / (tau + beta)) * np.exp(ref_logps) ** (beta / (tau + beta))
    return np.asarray(w / w.sum())
