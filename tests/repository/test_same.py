"""`scripts/same.py`: every difference of two runs is found, and times, memory and paths are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save_file

from load_scripts import load_script

script = load_script("scripts/same.py")


def write(run: Path, **changed: Any) -> Path:
    """A run directory of one step."""
    run.mkdir()
    row = {"step": 1, "train/loss": 0.5, "time/step": 1.0, "eval/environment_seconds": 2.0, "memory/process": 3.0}
    given = {"row": row, "weight": 1.0, "text": "a", "base": "/a/src/covey/weights", "line": 1, **changed}
    (run / "metrics.jsonl").write_text(json.dumps(given["row"]) + "\n")
    (run / "adapter_config.json").write_text(json.dumps({"base": given["base"]}))
    (run / "environment.json").write_text(json.dumps({"started": str(run)}))
    save_file({"w": torch.tensor([1.0, given["weight"]])}, run / "model.safetensors")
    torch.save({"state": [torch.tensor(given["weight"])], "step_time": str(run)}, run / "optimizer.pt")
    pyarrow.parquet.write_table(pyarrow.table({"completion": [given["text"]]}), run / "step-000001.parquet")
    lines = [{"prompts": 0, "digest": "a"}, {"round": 0, "groups": [[0, 1]]}]
    (run / "schedule.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:: given["line"]]))
    return run


def test_times_memory_paths_and_turns_of_processes_are_no_difference(tmp_path: Path) -> None:
    row = {"step": 1, "train/loss": 0.5, "time/step": 7.0, "eval/environment_seconds": 7.0, "memory/process": 7.0}
    other = write(tmp_path / "there", row=row, base="/b/c/src/covey/weights", line=-1)
    count, differences = script.compare(write(tmp_path / "here"), other)
    assert differences == []
    assert count > 10


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"row": {"step": 1, "train/loss": 0.5000000000000001}}, "metrics.jsonl line 1 train/loss"),
        ({"row": {"step": 1, "train/loss": 0.5, "train/more": 1}}, "metrics.jsonl line 1 train/more: nothing here"),
        ({"text": "b"}, "step-000001.parquet completion 0: a here, b there"),
        ({"base": "/a/src/covey/other"}, "adapter_config.json base"),
        ({"weight": 1.0 + 2.0**-23}, "model.safetensors w"),
        ({"weight": -1.0}, "optimizer.pt state 0"),
    ],
)
def test_a_difference_is_found(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    _, differences = script.compare(write(tmp_path / "here"), write(tmp_path / "there", **changed))
    assert any(one.startswith(told) for one in differences), differences


def test_a_missing_file_and_the_sign_of_zero_are_differences(tmp_path: Path) -> None:
    here, there = write(tmp_path / "here", weight=0.0), write(tmp_path / "there", weight=-0.0)
    (there / "metrics.jsonl").unlink()
    _, differences = script.compare(here, there)
    assert [one.split(":")[0] for one in differences if "metrics" not in one] == [
        *("model.safetensors w", "optimizer.pt state 0"),
    ]
    assert any(one.startswith("metrics.jsonl line 1 step: 1 here, nothing there") for one in differences)


def test_a_commit_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="There is no commit 0000000 here"):
        script.unpacked("0000000", tmp_path / "ref")
