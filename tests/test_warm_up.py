"""What the home learns, when, and who has it afterwards."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from covey.answers import Outcome
from covey.rewards import judging, warm_up
from covey.rewards.pool import WorkerPool
from covey.rewards.registry import find
from covey.rewards.settings import RewardSettings

DILIGENT = '''
"""A grader that notes down what it is asked to learn, and tells how much of it its process knows."""
import os
from pathlib import Path
from covey.rewards.reward import Graded, Reward

NOTES = Path(__file__).with_name("notes")
known = 0

def sample(text, row):
    global known
    if text == "exit":
        os._exit(3)
    if text.startswith("<answer>"):
        known += 1
        with NOTES.open("a") as notes:
            notes.write(f"{os.getpid()} {row['answer']}\\n")
    return Graded(float(known))

def find(name, settings):
    return Reward(name, None, sample)
'''


def test_the_home_learns_more_once_a_worker_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "diligent.py").write_text(DILIGENT, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    first, everything = len(warm_up.FIRST), len(warm_up.FIRST + warm_up.MORE)

    def notes() -> list[str]:
        return (tmp_path / "notes").read_text(encoding="utf-8").splitlines()

    with WorkerPool(1, RewardSettings(), 30.0, finder="diligent:find", preload=["any"], cache_size=0) as pool:
        assert [graded.value for graded in pool.grade("any", ["a", "b"], [{}, {}])] == [first, first]
        assert len(notes()) == first
        assert [graded.outcome for graded in pool.grade("any", ["exit"], [{}])] == [Outcome.CRASHED]
        give_up = time.monotonic() + 30
        while len(notes()) < everything and time.monotonic() < give_up:
            time.sleep(0.01)
        home = pool.pids[0]
        assert notes() == [f"{home} {gold}" for gold, _ in warm_up.FIRST + warm_up.MORE]
        pool.grade("any", ["exit"], [{}])  # if the worker before it was made at once, without the lessons
        assert [graded.value for graded in pool.grade("any", ["c"], [{}])] == [everything]
        assert len(notes()) == everything  # it learns once


@pytest.mark.slow
def test_every_lesson_can_be_graded() -> None:
    grader = find("accuracy", RewardSettings()).sample
    assert grader is not None
    lessons = warm_up.lessons([grader], warm_up.FIRST + warm_up.MORE)
    outcomes = [judging.grade(*lesson).outcome for lesson in lessons]
    assert Outcome.CRASHED not in outcomes
    assert outcomes.count(Outcome.RIGHT) >= 60
    assert outcomes.count(Outcome.WRONG) >= 15
