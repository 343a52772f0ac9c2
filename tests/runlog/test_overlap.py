"""What side by side promises, computed by hand: seconds of a round, and how busy both sides are."""

from __future__ import annotations

import pytest

from covey.runlog.overlap import Round, expected, measured_rounds


@pytest.mark.parametrize(
    ("rounds", "staleness", "seconds", "sampling", "learning"),
    [
        ([Round(2.0, 3.0)], 0, 5.0, 0.4, 0.6),  # in turns: the sum
        ([Round(2.0, 3.0)], 1, 3.0, 2 / 3, 1.0),  # side by side: the slower one
        ([Round(2.0, 3.0)], 4, 3.0, 2 / 3, 1.0),
        ([Round(3.0, 2.0)], 1, 3.0, 1.0, 2 / 3),
        ([Round(2.0, 3.0, 0.5)], 0, 5.5, 2.5 / 5.5, 3 / 5.5),
        ([Round(2.0, 3.0, 0.5)], 1, 3.5, 2.5 / 3.5, 1.0),  # a sync stops both sides
        # Generations of 1 and 5 s in turn. N=1, learned at 4, 9, 12, 17, 20, 25: eight seconds for two rounds, since a
        # long one cannot begin before the round two before it is learned. N=2: 12, 15, 18, 21 from the third on.
        ([Round(1.0, 3.0), Round(5.0, 3.0)], 0, 6.0, 0.5, 0.5),
        ([Round(1.0, 3.0), Round(5.0, 3.0)], 1, 4.0, 0.75, 0.75),
        ([Round(1.0, 3.0), Round(5.0, 3.0)], 2, 3.0, 1.0, 1.0),
    ],
)
def test_the_recursion(rounds: list[Round], staleness: int, seconds: float, sampling: float, learning: float) -> None:
    found = expected(rounds, staleness)
    assert (found.seconds, found.sampling, found.learning) == pytest.approx((seconds, sampling, learning), rel=1e-9)


def test_a_round_is_the_steps_from_one_generation_to_the_next() -> None:
    """The first one warms up; an evaluation has a row of its own at step 0; rewards, scoring, forward and backward
    passes are learning."""
    rows = [
        {"step": 0, "time/evaluation": 9.0},
        {"step": 1, "time/generation": 50.0, "time/forward": 50.0},
        {"step": 2, "time/generation": 4.0, "time/forward": 1.0, "time/backward": 2.0, "time/sync": 0.5},
        {"step": 3, "time/generation": 0.0, "time/forward": 1.0, "time/backward": 2.5, "time/evaluation": 9.0},
        {"step": 4, "time/generation": 3.0, "time/environment": 1.0, "time/rewards": 0.25, "time/scoring": 0.75},
    ]
    assert measured_rounds(rows) == [Round(4.0, 6.5, 0.5), Round(4.0, 1.0)]
    assert measured_rounds(rows[:2]) == [Round(50.0, 50.0)]  # better than none
    assert measured_rounds(rows[:1]) == []


def test_an_asynchronous_run_generates_while_it_does_not_wait() -> None:
    """Rows of two steps: the engine's seconds are per step, all others are sums. Its syncs are in them."""
    row = {"time/generation": 0.1, "time/rollouts": 3.0, "time/sync": 0.5, "time/forward": 2.0, "time/scoring": 1.0}
    assert measured_rounds([{"step": step, **row} for step in (2, 4, 6)]) == [Round(5.5, 3.0, 0.5)] * 2
