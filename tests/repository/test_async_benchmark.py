"""`benchmarks/async.py`: its ideal overlap by hand, and its simulated engine keeps its own timetable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from covey.rollout.engine import Completion, SamplingSettings


@pytest.fixture(scope="module", autouse=True)
def overlap(root: Path) -> None:
    """The benchmark's own package, which is not installed."""
    sys.path.insert(0, str(root / "benchmarks"))


def test_work_is_taken_by_the_slots_as_they_get_free() -> None:
    from overlap.ideal import makespan

    assert makespan([3.0, 1.0, 1.0, 2.0], 2) == 4.0  # 3; 1 + 1 + 2
    assert makespan([1.0, 1.0, 2.0, 3.0], 2) == 4.0  # 1 + 2; 1 + 3
    assert makespan([1.0, 2.0], 5) == 2.0


def test_the_ideal_of_finished_rounds() -> None:
    """Rounds of 2 s (two slots, completions of 1 and 2 s), learned in 3 s, a sync of 0.5 s."""
    from overlap.ideal import finished

    rounds, learning = [[1.0, 2.0]] * 4, [3.0] * 4
    assert finished(rounds, learning, 2, 0, 0.5) == [5.5, 11.0, 16.5, 22.0]
    # N=1: generated at 2.5, 4.5 (the first weights), 5.5 + 2.5 = 8, 8.5 + 2.5 = 11; learned as the last one ends.
    assert finished(rounds, learning, 2, 1, 0.5) == [5.5, 8.5, 11.5, 14.5]
    # Slow generation: at 4.5 and 8.5; round 2 needs the weights of 5.5, which are there, and ends at 8.5 + 0.5 + 4.
    assert finished([[4.0]] * 3, [1.0] * 3, 1, 1, 0.5) == [5.5, 9.5, 14.0]


def test_the_ideal_of_continued_rounds() -> None:
    """Two slots, a straggler of 5 s beside completions of 1 s, learned in 1 s, no sync, N=1."""
    from overlap.ideal import continued, finished

    rounds, learning = [[5.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [1.0] * 3
    # The free slot writes round 1 in seconds 1 to 3, and then waits: round 2 needs the weights of second 6.
    assert continued(rounds, learning, 2, 1, 0.0) == [6.0, 7.0, 8.0]
    assert finished(rounds, learning, 2, 1, 0.0) == [6.0, 7.0, 8.0]
    # The straggler in round 1: its slot's neighbour writes round 2 (from second 2, the weights of round 0) beside it.
    rounds = [[1.0, 1.0], [5.0, 1.0], [1.0, 1.0]]
    assert continued(rounds, learning, 2, 1, 0.0) == [2.0, 7.0, 8.0]
    assert finished(rounds, learning, 2, 1, 0.0) == [2.0, 7.0, 8.0]
    # A fourth round waits for its weights at second 7 in both; with N=2 it need not, and is written beside the rest.
    rounds, learning = [*rounds, [4.0, 4.0]], [1.0] * 4
    assert continued(rounds, learning, 2, 2, 0.0)[-1] == 11.0  # its completions from 4 to 8, and from 6 to 10
    assert finished(rounds, learning, 2, 2, 0.0)[-1] == 12.0  # from 7 to 11
    # A sync stops both slots: half a second at the start, and again after the first round was learned.
    assert continued([[2.0], [4.0]], [1.0, 1.0], 1, 1, 0.5) == [3.5, 8.0]


def test_the_engine_writes_in_slots_and_goes_on_where_it_was_interrupted() -> None:
    from overlap.simulated import Lengths, SimulatedEngine

    lengths = Lengths(median=20.0, sigma=0.5, most=60)
    engine = SimulatedEngine(lengths, prompt=3, slots=2, token_seconds=1e-4, sync_seconds=0.0)
    seeds, prompts = [5, 6, 7, 8], [[1, 2, 3]] * 4
    wanted = [lengths.of(seed) for seed in seeds]
    assert len(set(wanted)) > 1
    ended = list[int]()

    def note(index: int, one: Completion) -> None:
        assert one.length == wanted[index]
        ended.append(index)

    whole = engine.generate(prompts, SamplingSettings(100), seed=seeds, on_ended=note)
    assert [one.length for one in whole] == wanted
    assert sorted(ended) == [0, 1, 2, 3]
    parts = engine.generate(
        prompts, SamplingSettings(100), seed=seeds, interrupted=lambda: bool(ended.append(9)) or True
    )
    assert all(one.unfinished and one.length < most for one, most in zip(parts, wanted, strict=True))
    rest = [[*ids, *one.ids] for ids, one in zip(prompts, parts, strict=True)]
    again = engine.generate(rest, SamplingSettings(100), seed=seeds)
    assert [one.length + two.length for one, two in zip(parts, again, strict=True)] == wanted


def test_the_interval_of_three_seeds() -> None:
    """1, 2 and 3: standard deviation 1, t of two degrees of freedom 4.303."""
    from overlap.real import interval

    mean, half = interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.303 / 3**0.5))


def test_the_scheduler_keeps_a_small_timetable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `Rollouts`, with every completion learned in the round that is due for it, and none older than N."""
    from overlap.simulation import Case, Lengths, simulate

    case = Case("small", 1.0, Lengths(median=20.0, most=60), prompts=2, slots=8, rounds=5, token_seconds=1e-4)
    for staleness, partial in ((0, "finish"), (1, "finish"), (2, "finish"), (2, "continue")):
        found = simulate(case, staleness, partial)
        assert found.seconds >= found.ideal  # nothing is faster than the ideal
        assert found.oldest <= staleness
        assert 0 <= found.mean_staleness <= staleness
