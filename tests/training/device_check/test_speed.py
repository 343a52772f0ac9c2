"""`covey doctor --device`: seconds of a step and its parts."""

from __future__ import annotations

from covey.training.device_check.speed import medians


def test_the_medians_by_hand() -> None:
    steps = [
        {"time/generation": 5.0, "time/scoring": 1.0, "time/forward": 2.0, "time/backward": 4.0},
        {"time/generation": 1.0, "time/scoring": 2.0, "time/forward": 3.0, "time/backward": 9.0, "time/rewards": 2.0},
        {"time/generation": 2.0, "time/scoring": 1.0, "time/forward": 1.0, "time/backward": 1.0},
    ]
    assert medians(steps) == {"seconds": 12.0, "parts": {"generation": 2.0, "scoring": 3.0, "backward": 4.0}}
