"""`make gpu-report`: its parts ask for what they are named for, stop in time, and resume."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest


@pytest.fixture(scope="module")
def report(root: Path) -> Any:
    sys.path.insert(0, str(root / "benchmarks"))
    import gpu_report

    return gpu_report


@pytest.fixture
def step(root: Path, report: Any) -> Any:
    import step

    return step


def part(report: Any, code: str, result: Path | None = None, needs: str | None = None) -> Any:
    return report.Part("one", (sys.executable, "-c", code), result, needs)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_step_is_measured_with_the_setting_of_its_cell(
    report: Any, step: Any, has_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = report.cells_of(has_gpu)
    assert {cell.setting.size for cell in cells} == ({"0.5b", "1.5b"} if has_gpu else {"1m"})
    assert all(cell.setting.bf16 for cell in cells)
    assert {cell.setting.attention for cell in cells} == {None, "flash_attention_2"}
    asked: list[Any] = []
    monkeypatch.setattr(step, "measure", lambda setting, *_, **__: asked.append(setting) or {"rows": []})
    monkeypatch.setattr(step, "table", lambda _: "")
    parts = {one.name: one for one in report.parts_of(cells, tmp_path, has_gpu)}
    for cell in cells:
        monkeypatch.setattr(sys, "argv", ["step.py", *parts[cell.name].command[2:]])
        step.main()
        assert parts[cell.name].result == tmp_path / f"{cell.name}.json"
    assert asked == [cell.setting for cell in cells]
    assert ("claimed" in parts) is not has_gpu


def test_a_part_that_takes_too_long_is_stopped_with_what_it_started(report: Any, tmp_path: Path) -> None:
    pid, child = tmp_path / "pid", "import time; time.sleep(600)"
    code = (
        "import subprocess, sys, time, pathlib\n"
        f"one = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(one.pid))\n"
        "one.wait()"
    )
    found = report.run(part(report, code), tmp_path / "log", 5.0)
    assert (found["ok"], found["said"]) == (False, "stopped after 5 s")
    for _ in range(100):
        if not psutil.pid_exists(started := int(pid.read_text())) or psutil.Process(started).status() == "zombie":
            break
        time.sleep(0.1)
    else:
        pytest.fail("what it started goes on")


def test_a_part_is_done_if_it_ends_well_and_writes_its_result(report: Any, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("{}")  # of an earlier try
    wrong = report.run(part(report, "print('no memory'); raise SystemExit(1)", file), tmp_path / "log", 60)
    assert (wrong["ok"], wrong["said"], file.exists()) == (False, "no memory", False)
    silent = report.run(part(report, "", file), tmp_path / "log", 60)
    assert not silent["ok"]
    for content, told in (
        ({"checks": [{"ok": True}, {"ok": False}]}, "1 of 2 checks are right"),
        ({"rows": [{"ratio": 2.5}]}, "2.50 times as fast as TRL"),
    ):
        code = f"open({str(file)!r}, 'w').write({json.dumps(content)!r})\nprint('at length')"
        right = report.run(part(report, code, file), tmp_path / "log", 60)
        assert (right["ok"], right["said"]) == (True, told)
    absent = report.run(part(report, "raise SystemExit(1)", needs="no_such_module"), tmp_path / "log", 60)
    assert (absent["left_out"], absent["said"]) == (True, "left out: no_such_module is not installed")


def test_parts_that_are_done_are_not_run_again_and_the_page_says_what_is_missing(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def run(one: Any, log: Path, limit: float) -> dict[str, Any]:
        ran.append(one.name)
        return {"ok": one.name != "device", "seconds": 1.0, "said": f"all | of {one.name}"}

    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "on_gpu", lambda: False)
    monkeypatch.setattr(report, "run", run)
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--only", "device", "tests"])
    for expected in (["device", "tests"], ["device"]):
        ran.clear()
        with pytest.raises(SystemExit, match="Failed: device"):
            report.main()
        assert ran == expected
    assert "a rehearsal" in capsys.readouterr().out
    page = (tmp_path / "out" / "gpu_rehearsal" / "gpu.md").read_text()
    assert page.startswith("# A rehearsal without a GPU")
    assert "| device | ✗ all \\| of device | 1 |" in page
    assert "| claimed | not run | 0 |" in page
    assert json.loads((tmp_path / "out" / "gpu_rehearsal" / "tests.part.json").read_text())["ok"]
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--minutes", "-1"])
    ran.clear()
    report.main()
    assert ran == []
    assert "Not begun, as the time is up: device, claimed" in capsys.readouterr().out
