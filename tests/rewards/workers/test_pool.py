"""Grading in worker processes: a hang or crash costs one sample only, and no process is left behind.

The processes are real. Graders here do what the completion says (sleep, spin, exit, …). No test measures time: only the
pool's deadline ends a hang, and samples that wait for each other show what runs in parallel.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.answers import Outcome
from covey.errors import RewardError
from covey.rewards.reward import Graded, RewardSettings
from covey.rewards.workers.pool import WorkerPool
from covey.workers.clock import ProcessStats


@pytest.fixture
def pool_of(graders: Path) -> Iterator[Callable[..., WorkerPool]]:
    """Makes pools of the well-behaved graders; afterwards none of their processes is left, not even as a zombie."""
    pools, pids = [], []

    def make(workers: int = 2, timeout: float = 30.0, **kwargs: Any) -> WorkerPool:
        pool = WorkerPool(workers, RewardSettings(), timeout, finder="well_behaved:find", **kwargs)
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pids += pool.pids
        pool.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def grade(pool: WorkerPool, texts: list[str], name: str = "obey") -> list[Any]:
    """Grade texts whose row has the text itself as the answer, but for those that begin with `wrong`."""
    rows = [{"answer": "right" if text.startswith("wrong") else text} for text in texts]
    return [graded.outcome for graded in pool.grade(name, texts, rows)]


def test_a_hanging_sample_is_ended_and_the_others_are_graded(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(timeout=0.3)
    texts = ["a", "sleep", *"bcdefgh", "spin", "wrong", *"ijk"]
    expected = [Outcome.RIGHT] * len(texts)
    expected[1] = expected[9] = Outcome.TIMED_OUT
    expected[10] = Outcome.WRONG
    assert grade(pool, texts) == expected
    assert pool.counts["timed_out"] == 2
    assert pool.grade("obey", ["sleep"], [{}]) == [Graded(0.0, Outcome.TIMED_OUT)]
    assert grade(pool, ["a"]) == [Outcome.RIGHT]


def test_each_hanging_sample_costs_one_deadline(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(workers=1, timeout=0.4)
    texts = [str(i) for i in range(300)]
    for i in (60, 61, 150, 299):  # in the midst of what one worker is sent at a time
        texts[i] = "sleep"
    outcomes = grade(pool, texts)
    assert [i for i, outcome in enumerate(outcomes) if outcome is not Outcome.RIGHT] == [60, 61, 150, 299]
    assert (pool.counts["timed_out"], pool.counts["graded"]) == (4, 300)


def test_a_dying_worker_takes_only_its_sample(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of()
    texts = [*"abc", "exit", *"de", "abort", "raise", "memory", "print", *"fgh"]
    outcomes = grade(pool, texts)
    crashed = [text for text, outcome in zip(texts, outcomes, strict=True) if outcome is Outcome.CRASHED]
    assert crashed == ["exit", "abort", "raise", "memory"]
    assert set(outcomes) == {Outcome.CRASHED, Outcome.RIGHT}
    assert pool.counts["crashed"] == 2  # workers
    causes = [r.cause for r in pool.submit_grading("obey", ["exit", "abort", "raise"], [{}] * 3).result()]
    assert "exit code 3" in causes[0]
    assert "SIGABRT" in causes[1]
    assert causes[2].startswith("ValueError: no way (well_behaved.py, line")


def test_sleeping_samples_free_their_slot(pool_of: Callable[..., WorkerPool], tmp_path: Path) -> None:
    waits = [f"wait {tmp_path / name}" for name in "abc"]
    touches = [f"touch {tmp_path / name}" for name in "abc"]
    assert grade(pool_of(workers=1), waits + touches) == [Outcome.RIGHT] * 6


@pytest.mark.skipif(ProcessStats(os.getpid()).read() is None, reason="needs scheduler statistics")
def test_a_spare_worker_is_kept_ready_once_a_sample_hangs(pool_of: Callable[..., WorkerPool], tmp_path: Path) -> None:
    pool = pool_of(workers=1)
    texts = [f"wait {tmp_path / 'go'}", f"busy {tmp_path / 'go'}", "a"]
    graded = pool.submit_grading("obey", texts, [{}] * 3)
    give_up = time.monotonic() + 120
    while len(pool.pids) < 4 and time.monotonic() < give_up:  # fork server, one that sleeps, one that spins, spare
        time.sleep(0.01)
    assert len(pool.pids) == 4
    assert not graded.done()
    (tmp_path / "go").touch()
    assert [result.outcome for result in graded.result(30)] == [Outcome.RIGHT] * 3
    while len(pool.pids) > 2 and time.monotonic() < give_up:  # spare workers are ended
        time.sleep(0.01)
    assert len(pool.pids) == 2


@pytest.mark.slow
@pytest.mark.skipif(ProcessStats(os.getpid()).read() is None, reason="needs scheduler statistics")
def test_waiting_for_a_core_does_not_count(pool_of: Callable[..., WorkerPool]) -> None:
    cores = len(os.sched_getaffinity(0))
    pool = pool_of(workers=5 * cores, timeout=0.5)  # five on a core, of 0.25 s each
    assert set(grade(pool, ["burn 0.25"] * (5 * cores))) == {Outcome.RIGHT}


def test_equal_samples_are_graded_once(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of(timeout=0.3)
    assert grade(pool, ["a", "a", "wrong", "a", "sleep"], "cached")[-1] is Outcome.TIMED_OUT
    assert (pool.counts["graded"], pool.counts["from_cache"]) == (3, 2)
    right, wrong, timed_out = Outcome.RIGHT, Outcome.WRONG, Outcome.TIMED_OUT
    assert grade(pool, ["sleep", "wrong", "b", "a"], "cached") == [timed_out, wrong, right, right]
    assert (pool.counts["graded"], pool.counts["from_cache"]) == (4, 5)
    small = pool_of(cache_size=1)
    for _ in range(2):  # each evicts the other
        assert grade(small, ["a"], "cached") + grade(small, ["b"], "cached") == [right, right]
    assert small.counts["from_cache"] == 0
    without = pool_of(cache_size=0)
    assert grade(without, ["a", "a"], "cached") == [right, right]
    assert without.counts["graded"] == 2


def test_grading_is_thread_safe(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of()
    found: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        texts = [f"wrong {number}" if i % 3 == number else str(i) for i in range(60)]
        found[number] = [outcome is Outcome.WRONG for outcome in grade(pool, texts)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {number: [i % 3 == number for i in range(60)] for number in range(3)}


def test_a_killed_fork_server_is_replaced(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of()
    assert grade(pool, ["a"]) == [Outcome.RIGHT]
    os.kill(pool.pids[0], signal.SIGKILL)
    assert grade(pool, ["a", "b"]) == [Outcome.RIGHT] * 2


def test_mistakes_are_errors(pool_of: Callable[..., WorkerPool]) -> None:
    pool = pool_of()
    with pytest.raises(RewardError, match="the row has no answer"):
        pool.grade("obey", ["a", "refuse"], [{}, {}])
    with pytest.raises(RewardError, match="Row 0 for obey cannot be sent to a worker"):
        pool.grade("obey", ["a"], [{"image": threading.Lock()}])
    waiting = pool.submit_grading("obey", ["sleep"], [{}])
    pool.close()
    with pytest.raises(RewardError, match="were closed"):
        waiting.result()
    with pytest.raises(RewardError, match="were closed"):
        pool.grade("obey", ["a"], [{}])
