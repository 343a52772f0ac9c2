"""What `training.staleness` gains, from the measured times of a run: generation and learning side by side.

Round k is generated with the weights after k - N rounds (N = `training.staleness`), and learned in order. With g_k, l_k
and s_k the seconds of its generation, its learning and its weight sync, it is

    generated at  E_k = max(E_{k-1}, L_{k-N-1}) + s_k + g_k
    learned at    L_k = max(L_{k-1}, E_k) + l_k           (+ s_k for N > 0: a sync stops both sides)

with E and L 0 before the first round. For N = 0 this is the sum of all; for N > 0 and equal rounds a round takes
s + max(g, l). The measured rounds are repeated until the start no longer counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.runlog import names

_LEARNING = (names.SCORING_TIME, names.REWARDS_TIME, names.FORWARD_TIME, names.BACKWARD_TIME)
_GENERATION = (names.GENERATION_TIME, names.ENVIRONMENT_TIME)
_ROUNDS = 2000
"""How many are computed; the first half is the start."""


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of one generation round."""

    generation: float
    learning: float
    """Everything else of its steps: rewards, scoring, forward and backward passes."""
    sync: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """What to expect of a value of `training.staleness`."""

    seconds: float
    """Of a round, on average."""
    sampling: float
    """Share of the time in which the side that samples has work, weight syncs included."""
    learning: float
    """The same for the side that learns."""


def measured_rounds(rows: Iterable[Mapping[str, Any]]) -> list[Round]:
    """The rounds of a run's metrics, without the first one, which also warms up.

    A row with generation begins a round; rows without belong to it (`steps_per_generation` or `num_iterations` spread a
    round over several steps). Rows of several rounds (`logging_steps`) count as one. Evaluations and checkpoints do not
    count; of a run that was asynchronous itself, the time in its engine does, and waiting for it does not.
    """
    found: list[Round] = []
    last = 0
    for row in rows:
        generation, learning, sync = (_sum(row, one) for one in (_GENERATION, _LEARNING, [names.SYNC_TIME]))
        begins, steps = generation > 0, int(row.get(names.STEP) or 0) - last
        last += steps
        if names.ROLLOUT_TIME in row:  # with its weight syncs
            generation = max(0.0, _sum(row, (names.ROLLOUT_TIME,)) * steps - sync)
        one = found.pop() if found and not begins else Round(0.0, 0.0)
        if begins or one.generation:
            found.append(Round(one.generation + generation, one.learning + learning, one.sync + sync))
    return found[1:] or found


def _sum(row: Mapping[str, Any], stages: Iterable[str]) -> float:
    found = [row.get(stage) for stage in stages]
    return sum(float(value) for value in found if isinstance(value, int | float))


def expected(rounds: Sequence[Round], staleness: int) -> Expected:
    """What these rounds take with this staleness, by the recursion of this module.

    Args:
        rounds: the measured ones, at least one.
        staleness: `training.staleness`.
    """
    count = max(_ROUNDS, 2 * len(rounds)) // len(rounds) * len(rounds)
    generated, learned = 0.0, list[float]()
    for number in range(count):
        one = rounds[number % len(rounds)]
        weights = learned[number - staleness - 1] if number > staleness else 0.0
        generated = max(generated, weights) + one.sync + one.generation
        before = learned[-1] if learned else 0.0
        learned.append(max(before, generated) + one.learning + (one.sync if staleness else 0.0))
    start = count // len(rounds) // 2 * len(rounds)
    seconds = (learned[-1] - learned[start - 1]) / (count - start)
    sampling = sum(one.generation + one.sync for one in rounds) / len(rounds)
    learning = sum(one.learning + (one.sync if staleness else 0.0) for one in rounds) / len(rounds)
    return Expected(seconds, min(1.0, sampling / seconds), min(1.0, learning / seconds)) if seconds else _NOTHING


_NOTHING = Expected(0.0, 0.0, 0.0)
