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

Moment = Callable[[Path], bool]

AIMED: dict[str, Moment] = {
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


@pytest.fixture(scope="module")
def straight(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that was never killed, and its duration."""
    folder = tmp_path_factory.mktemp("straight")
    log = folder / "log"
    assert run(["covey", *words(tiny_model, folder, "warm-up", "stop_after_steps=1")], log) == 0
    began = time.monotonic()
    assert run(["covey", *words(tiny_model, folder, "straight")], log) == 0, log.read_text()[-2000:]
    return folder / "straight", time.monotonic() - began


def killed(arguments: list[str], log: Path, kill_when: Callable[[float], bool]) -> bool:
    """Whether the run was killed at that moment; False where it had ended before."""
    status = run(arguments, log, kill_when)
    assert status in (-9, 0), log.read_text()[-2000:]
    return status == -9


def killed_and_resumed(tiny_model: str, tmp_path: Path, kill_when: Callable[[float], bool]) -> Path:
    """A run that was killed at that moment, and then resumed to its end."""
    log = tmp_path / "log"
    arguments = ["covey", *words(tiny_model, tmp_path, "killed")]
    assert killed(arguments, log, kill_when), log.read_text()[-2000:]
    assert run(arguments, log) == 0, log.read_text()[-2000:]
    return tmp_path / "killed"


@pytest.mark.parametrize("what", AIMED)
def test_killed_at_a_chosen_moment(what: str, straight: tuple[Path, float], tiny_model: str, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    assert_same_run(killed_and_resumed(tiny_model, tmp_path, lambda _: AIMED[what](folder)), straight[0])


@pytest.mark.parametrize("seed", range(RANDOM))
def test_killed_at_a_random_moment(seed: int, straight: tuple[Path, float], tiny_model: str, tmp_path: Path) -> None:
    """From before the run directory exists to the end of training.

    A machine that was slow at the straight run and is fast now ends the run before its moment: it is begun anew, in
    a folder of its own, with half the time.
    """
    when = random.Random(seed).uniform(0.0, 0.7) * straight[1]
    folder, log = tmp_path / "0", tmp_path / "log"
    while not killed(["covey", *words(tiny_model, folder, "killed")], log, lambda seconds: seconds > when):
        when, folder = when / 2, tmp_path / str(int(folder.name) + 1)
    assert run(["covey", *words(tiny_model, folder, "killed")], log) == 0, log.read_text()[-2000:]
    assert_same_run(folder / "killed", straight[0])
