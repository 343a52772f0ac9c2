"""A run that is pre-empted at random loses at most the current step, and ends like an uninterrupted one."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from covey.cli.main import main
from covey.report import live
from covey.runlog.directory import RunDirectory
from covey.runlog.metrics import read_metrics
from same_run import STEPS, assert_same_run, words

REWARD = """
import time

def slow(completions, **columns):
    time.sleep(0.2)
    return [float(len(set(c[-1]["content"]))) for c in completions]
"""


@contextmanager
def pre_empted(seconds: float) -> Iterator[None]:
    """Send SIGTERM this long after training has installed its handler; outside of that it is ignored."""
    over = threading.Event()

    def ignore(*_: object) -> None:
        pass

    def wait_and_send() -> None:
        while signal.getsignal(signal.SIGTERM) is ignore:
            if over.wait(0.005):
                return
        if not over.wait(seconds):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, ignore)
    sender = threading.Thread(target=wait_and_send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_pre_emption_at_any_point_loses_at_most_the_current_step(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in ("write_report", "draw_curves"):  # they take longer than the steps
        monkeypatch.setattr(live, page, lambda *_: None)
    (tmp_path / "slow.py").write_text(REWARD, encoding="utf-8")
    more = (f"rewards.funcs=[{tmp_path / 'slow.py'}:slow]", "rewards.workers=0")
    assert main(words(tiny_model, tmp_path, "straight", *more)) == 0

    run, reached, chance = RunDirectory(tmp_path / "stopped"), [], random.Random(0)
    code = 128 + signal.SIGTERM
    while code == 128 + signal.SIGTERM and len(reached) <= STEPS:
        with pre_empted(chance.uniform(0.0, 0.6)):  # three rewards take as long
            code = main(words(tiny_model, tmp_path, "stopped", *more))
        reached.append(read_metrics(run.metrics)[-1]["step"])
        assert (run.checkpoint(reached[-1]) / "complete.json").is_file()  # no step is lost
    assert code == 0
    assert len(reached) > 1
    assert reached == sorted(set(reached))  # and each start makes progress
    assert_same_run(run.root, tmp_path / "straight")
