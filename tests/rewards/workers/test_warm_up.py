"""What the fork server grades before the first worker is forked is shared by all workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from covey.answers import Outcome
from covey.rewards.registry import find
from covey.rewards.reward import RewardSettings
from covey.rewards.workers import run_reward, worker
from covey.rewards.workers.pool import WorkerPool

GRADER = '''
"""A grader that records what it warms up on, and returns how often its process has done so."""
import os
from pathlib import Path
from covey.rewards.reward import Graded, Reward

RECORD = Path(__file__).with_name("record")
warmed_up = 0

def sample(text, row):
    global warmed_up
    if text == "exit":
        os._exit(3)
    if text.startswith("<answer>"):
        warmed_up += 1
        with RECORD.open("a") as record:
            record.write(f"{os.getpid()} {row['answer']}\\n")
    return Graded(float(warmed_up))

def find(name, settings):
    return Reward(name, None, sample)
'''


def test_workers_share_what_the_fork_server_has_graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warm_up_grader.py").write_text(GRADER, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with WorkerPool(1, RewardSettings(), 30.0, finder="warm_up_grader:find", preload=["any"], cache_size=0) as pool:
        assert [graded.value for graded in pool.grade("any", ["a", "b"], [{}, {}])] == [1.0, 1.0]
        assert [graded.outcome for graded in pool.grade("any", ["exit"], [{}])] == [Outcome.CRASHED]
        assert [graded.value for graded in pool.grade("any", ["c"], [{}])] == [1.0]
        fork_server = pool.pids[0]
    assert (tmp_path / "record").read_text(encoding="utf-8") == f"{fork_server} {worker.FIRST[1]['answer']}\n"


def test_the_warm_up_sample_needs_mathematics() -> None:
    grader = find("accuracy", RewardSettings()).sample
    assert grader is not None
    assert run_reward.grade(grader, *worker.FIRST).outcome is Outcome.RIGHT
