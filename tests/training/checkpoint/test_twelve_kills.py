"""Twelve processes are killed, six at a chosen moment and six at a random one; each run is then resumed to its end and
equals the straight one: metrics, completions, evaluations, weights, optimiser and random state.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forked import run
from same_run import assert_same_run, words

pytestmark = pytest.mark.slow

Moment = Callable[[float], bool]
"""Polled with the seconds since the start."""

AIMED: dict[str, Callable[[Path], bool]] = {
    "weights are being written": lambda folder: (folder / "checkpoint-2" / "model.safetensors").exists(),
    "records are there and the marker is not": lambda folder: (folder / "checkpoint-3" / "records").exists(),
    "the marker has just been written": lambda folder: (folder / "checkpoint-2" / "complete.json").exists(),
    "an old checkpoint is being deleted": lambda folder: (
        (folder / "checkpoint-3").exists() and not (folder / "checkpoint-1" / "complete.json").exists()
    ),
    "a step's completions have just been written": lambda folder: (
        folder / "completions" / "step-000003.parquet"
    ).exists(),
    "the final model is being written": lambda folder: (folder / "final_model.part").exists(),
}
RANDOM = 6
MOST_TRIES = 8


@pytest.fixture(scope="module")
def straight(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that was never killed, and its duration."""
    folder = tmp_path_factory.mktemp("straight")
    log = folder / "log"
    assert run(["covey", *words(tiny_model, folder, "warm-up", "stop_after_steps=1")], log) == 0
    began = time.monotonic()
    assert run(["covey", *words(tiny_model, folder, "straight")], log) == 0, log.read_text()[-2000:]
    return folder / "straight", time.monotonic() - began


def killed_and_resumed(tiny_model: str, tmp_path: Path, moment: Callable[[Path, int], Moment]) -> Path:
    """A run that was killed at a moment, and then resumed to its end.

    A run that was fast may end unseen before its moment: it is begun anew, in a folder of its own.

    Args:
        moment: from the run directory and the number of the try to when the process is killed.
    """
    log = tmp_path / "log"
    for number in range(MOST_TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        arguments = ["covey", *words(tiny_model, folder, "killed")]
        status = run(arguments, log, moment(folder / "killed", number))
        assert status in (-9, 0), log.read_text()[-2000:]
        if status == -9:
            assert run(arguments, log) == 0, log.read_text()[-2000:]
            return folder / "killed"
    raise AssertionError(f"ended {MOST_TRIES} times before its moment: {log.read_text()[-2000:]}")


@pytest.mark.parametrize("what", AIMED)
def test_killed_at_a_chosen_moment(what: str, straight: tuple[Path, float], tiny_model: str, tmp_path: Path) -> None:
    resumed = killed_and_resumed(tiny_model, tmp_path, lambda folder, _: lambda _: AIMED[what](folder))
    assert_same_run(resumed, straight[0])


@pytest.mark.parametrize("seed", range(RANDOM))
def test_killed_at_a_random_moment(seed: int, straight: tuple[Path, float], tiny_model: str, tmp_path: Path) -> None:
    """From before the run directory exists to the end of training; in a further try, after half the time."""
    when = random.Random(seed).uniform(0.0, 0.7) * straight[1]
    resumed = killed_and_resumed(tiny_model, tmp_path, lambda _, number: lambda seconds: seconds > when / 2**number)
    assert_same_run(resumed, straight[0])
