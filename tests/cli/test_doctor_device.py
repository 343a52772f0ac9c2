"""`covey doctor --device`: results as a table and as JSON, and the exit code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from covey.cli.device_check import run_checks
from covey.cli.main import main
from covey.launch.machine import Machine
from covey.training.device_check import run as device_check


@pytest.mark.slow
def test_the_checks_hold_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "device.json"
    assert main(["doctor", "--device", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["device"]["packages"]["torch"]
    names = [check["name"] for check in found["checks"]]
    for group in (1, 8, 16):
        assert sum(f"groups of {group}, checkpointing, float32" in name for name in names) == 2
    assert sum(name.startswith("sampling") for name in names) == 3  # greedy, seeds of rows, gap to the scorer
    assert all(check["ok"] and check["error"] <= check["allowed"] for check in found["checks"])
    assert [one["name"] for one in found["speed"]] == ["covey", "trl, sdpa"]
    for one in found["speed"]:
        assert set(one["parts"]) == {"generation", "scoring", "backward"}
        assert all(one["parts"].values())
    assert "scoring, groups of 16" in capsys.readouterr().out


@pytest.mark.parametrize("error", [None, math.nan])
def test_a_failed_check_names_its_switch(
    error: float | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(**_: Any) -> dict[str, Any]:
        check = {"name": "scoring, groups of 8", "ok": False, "error": error, "allowed": 0.1, "what": "log-probs"}
        more = {"switch": "speed.shared_scoring=false", "note": "no kernel"}
        step = {"name": "covey", "prompt": 1, "completion": 2, "error": "out of memory"}
        return {"device": {"kind": "cuda", "packages": {}}, "checks": [{**check, **more}], "speed": [step]}

    monkeypatch.setattr(device_check, "check_device", failing)
    file = tmp_path / "device.json"
    assert run_checks(quick=True, file=str(file)) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "scoring, groups of 8 is wrong on this device (no kernel): train with speed.shared_scoring=false" in out
    assert "out of memory" in out
    assert main(["doctor", "--device", "--quick", "--json"]) == 1
    for text in (file.read_text(), capsys.readouterr().out):
        assert json.loads(text, parse_constant=pytest.fail)["checks"][0]["error"] is None


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (
            0,
            "training.staleness=0: 50% of a round is generation, 50% learning; side by side they would be at most 2.00",
        ),
        (1, "both need the one GPU of this machine"),
        (4, "training.staleness=1: 50% of a round is generation, 50% learning; side by side, each on hardware of its"),
    ],
)
def test_staleness_is_advised_by_the_times_of_a_step(
    gpus: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of four seconds generate."""
    parts = {"generation": 2.0, "scoring": 1.5, "backward": 0.5}
    steps = [{"name": name, "prompt": 9, "completion": 7, "seconds": 4.0, "parts": parts} for name in ("covey", "trl")]
    found = {"device": {"kind": "cpu", "packages": {}}, "checks": [], "speed": steps}
    monkeypatch.setattr(device_check, "check_device", lambda **_: found)
    monkeypatch.setattr("covey.cli.device_check.this_machine", lambda: Machine.of(gpus, 2))
    assert run_checks(quick=True, file=None) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert said in out
    assert out.count("9 + 7 tokens: training.staleness=") == 1  # of Covey's own steps


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--quick"], "go with --device"), (["--device", "--json", "no/such/folder/x.json"], "there is no folder")],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.slow
def test_the_checks_hold_on_this_gpu() -> None:
    found = device_check.check_device(quick=False, say=lambda _: None)
    assert [check for check in found["checks"] if not check["ok"]] == []
    assert [one for one in found["speed"] if one["name"] == "covey" and "error" in one] == []
