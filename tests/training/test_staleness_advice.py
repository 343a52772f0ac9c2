"""What the doctor advises for `training.staleness`, by hand: from times, and from what both sides share."""

from __future__ import annotations

import pytest

from covey.config import load
from covey.runlog.overlap import Round
from covey.training.checks.findings import Mark
from covey.training.staleness_advice import Hardware, advise

EVEN = [Round(2.0, 2.0)]
UNEVEN = [Round(1.0, 3.0), Round(5.0, 3.0)]
"""In turns 6 s a round; one round behind 4 s, two behind 3 s."""
SERVER = ("training.use_vllm=true", "training.vllm_mode=server")


@pytest.mark.parametrize(
    ("words", "gpus", "rounds", "mark", "parts"),
    [
        ((), 0, EVEN, Mark.FINE, ("50% of a round is generation", "at most 2.00 times", "the 2 cores", "staleness=0")),
        ((), 1, EVEN, Mark.FINE, ("the one GPU", "training.staleness=0")),
        ((), 8, EVEN, Mark.NOTE, ("2.00 times as fast", "Consider training.staleness=1", "--plan")),
        ((), 8, UNEVEN, Mark.NOTE, ("2.00 times as fast", "Consider training.staleness=2")),
        ((), 8, [Round(0.1, 3.0)], Mark.FINE, ("1.03 times as fast, too little", "training.staleness=0")),
        (("training.use_cpu=true",), 8, EVEN, Mark.FINE, ("the 2 cores", "training.staleness=0")),
        (("training.staleness=1",), 0, EVEN, Mark.WARNING, ("the 2 cores", "Set training.staleness=0.")),
        (("training.staleness=1",), 8, EVEN, Mark.FINE, ("2.00 times as fast", "training.staleness=1")),
        (
            (*SERVER, "training.vllm_server_base_url=http://far:1"),
            1,
            EVEN,
            Mark.NOTE,
            ("Consider training.staleness=1",),
        ),
        (SERVER, 0, EVEN, Mark.FINE, ("the 2 cores",)),  # of this machine
    ],
)
def test_the_advice(words: tuple[str, ...], gpus: int, rounds: list[Round], mark: Mark, parts: tuple[str, ...]) -> None:
    found = advise(load(words), Hardware(gpus, 2), rounds)
    assert found is not None
    assert found.mark is mark
    for part in parts:
        assert part in f"{found.result} {found.advice}"


def test_without_times_only_a_run_that_shares_its_hardware_is_warned() -> None:
    found = advise(load(["training.staleness=1"]), Hardware(0, 2))
    assert found is not None
    assert found.mark is Mark.WARNING
    assert "share the 2 cores" in found.result
    assert advise(load([]), Hardware(0, 2)) is None
    assert advise(load(["training.staleness=1"]), Hardware(2, 2)) is None
