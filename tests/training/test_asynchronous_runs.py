"""Asynchronous runs of `covey train` with the local engine in its process: they resume and replay bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.cli.main import main
from covey.runlog.metrics import read_metrics
from covey.training.asynchronous.schedule import Schedule
from same_run import assert_same_run, without_times, words

pytestmark = pytest.mark.slow

STALE = ("training.staleness=2", "training.num_iterations=1", "training.steps_per_generation=2")
"""Rounds of two steps, so that a run may stop within one."""
WAYS = {
    "finish": (),
    "continue": ("training.async_partial=continue",),
    "arrival": ("training.async_order=arrival", "training.async_partial=continue"),
}


def train(model: str, folder: Path, name: str, *more: str) -> Path:
    assert main(words(model, folder, name, *STALE, *more)) == 0
    return folder / name


@pytest.fixture(scope="module")
def straight(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_model, tmp_path_factory.mktemp("asynchronous"), "straight")


def test_every_row_says_how_old_the_weights_were(straight: Path) -> None:
    rows = [row for row in read_metrics(straight / "metrics.jsonl") if row["step"]]
    assert [row["staleness/mean"] for row in rows] == [0, 0, 1, 1, 2]
    assert [row["staleness/max"] for row in rows] == [0, 0, 1, 1, 2]
    assert not (straight / "rollouts").exists()


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_stopped_run_equals_one_that_never_stopped(
    straight: Path, tiny_model: str, tmp_path: Path, stop: int
) -> None:
    train(tiny_model, tmp_path, "run", f"stop_after_steps={stop}")
    assert_same_run(train(tiny_model, tmp_path, "run"), straight)
    found, expected = (Schedule.read(run / "schedule.jsonl") for run in (tmp_path / "run", straight))
    assert (found.rounds, found.digests) == (expected.rounds, expected.digests)
    assert found.calls[:3] == expected.calls[:3]


def test_a_stopped_run_with_adapters_equals_one_that_never_stopped(tiny_model: str, tmp_path: Path) -> None:
    """Each sync merges the adapters, which must not change the weights below them."""
    whole = train(tiny_model, tmp_path, "whole", "model.lora.rank=4")
    train(tiny_model, tmp_path, "run", "model.lora.rank=4", "stop_after_steps=4")
    resumed = train(tiny_model, tmp_path, "run", "model.lora.rank=4")
    assert without_times(resumed) == without_times(whole)
    adapters = [run / "final_model" / "adapter_model.safetensors" for run in (resumed, whole)]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


def test_a_run_that_took_turns_goes_on_ahead_and_back(tiny_model: str, tmp_path: Path) -> None:
    """From within a round, and in a folder in which a killed process has left its weights."""
    for stop, staleness, resume in ((1, 0, "auto"), (2, 2, "true")):
        more = (f"stop_after_steps={stop}", f"training.staleness={staleness}", f"resume={resume}")
        train(tiny_model, tmp_path, "run", *more)
        (tmp_path / "run" / "rollouts").mkdir()
    folder = train(tiny_model, tmp_path, "run", "training.staleness=0", "resume=true")
    assert not (folder / "rollouts").exists()
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["step"]]
    assert [row.get("staleness/max") for row in rows] == [None, 0, 0, None, None]


@pytest.mark.parametrize(
    "way", ["finish", *(pytest.param(way, marks=pytest.mark.long) for way in WAYS if way != "finish")]
)
def test_a_schedule_is_replayed_bit_for_bit(tiny_model: str, tmp_path: Path, way: str) -> None:
    recorded = train(tiny_model, tmp_path, "recorded", *WAYS[way])
    replayed = train(tiny_model, tmp_path, "replayed", *WAYS[way], f"training.schedule={recorded}/schedule.jsonl")
    assert_same_run(replayed, recorded)


@pytest.mark.long
def test_a_schedule_of_another_run_is_refused(
    straight: Path, tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = f"training.schedule={straight}/schedule.jsonl"
    cases = (
        (("training.staleness=1",), "training.staleness was 2 and is 1 here"),
        (("training.learning_rate=0.02",), "training.learning_rate was 0.01 and is 0.02 here"),
        (("dataset.train_size=13",), "rows of data was 12 and is 13 here"),
    )
    for number, (more, named) in enumerate(cases):
        assert main(words(tiny_model, tmp_path, f"other-{number}", *STALE, schedule, *more)) == 2
        assert named in " ".join(capsys.readouterr().err.split())
