"""Two processes with all that has state, restarted in the middle of a generation batch, resume exactly.

Stops of whole runs, with all weights trained: test_several_processes.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forked import run_two
from stopped_runs import STEPS

STOP = 3  # a generation batch is used for four steps


def state(folder: Path) -> dict[str, Any]:
    checkpoint = folder / f"checkpoint-{STEPS}"
    optimizer = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    found = {f"weight {name}": value for name, value in load_file(checkpoint / "adapter_model.safetensors").items()}
    for index, moments in optimizer["state"].items():
        found |= {f"moment {index} {name}": value for name, value in moments.items()}
    for rank in (0, 1):
        random = torch.load(checkpoint / f"rng_state_{rank}.pth", weights_only=False)
        found[f"random state of process {rank}"] = random["cpu"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["maxent", "own"])
def test_an_objective_with_an_adapter_and_an_adaptive_beta(tiny_model: str, tmp_path: Path, objective: str) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for folder, checkpoint in ((straight, "-"), (resumed, str(straight / f"checkpoint-{STOP}"))):
        run_two("objective_processes.py", tiny_model, folder, checkpoint, objective, folder=folder)
    expected, found = state(straight), state(resumed)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    seen = json.loads((straight / "seen.json").read_text())
    assert json.loads((resumed / "seen.json").read_text()) == seen
    assert len({row["objective/beta"] for row in seen["rows"]}) == STEPS  # β moved in every step
    assert all(row["sampling/logp_gap"] < 1e-5 < row["sampling/logp_gap/truncation"] for row in seen["rows"])
    assert len(seen["completions"]["prompt"]) == 16
    assert len(seen["completions"]["maxent_weight" if objective == "maxent" else "over_baseline"]) == 16
    random = [expected[f"random state of process {rank}"] for rank in (0, 1)]
    assert not torch.equal(*random)
