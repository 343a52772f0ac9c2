"""Every loss of TRL's on Covey's trainer, at ratios other than 1, against the formulas written down a second time.

Pinned here: clipping, sequence-level ratios (GSPO), soft gates, the KL term, the three scales of the rewards, and the
normalisation; also over accumulation steps and two processes, with a group that lies on both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from second_pass import CASES, HIGH, LOW, Case, TwoSteps, expected_gradient, two_steps
from test_maxent_training import assert_same_gradient

FAST = ("grpo-sequence-group", "cispo-token-group")


def cut(case: Case) -> dict[str, int]:
    """Three micro-batches, unless the loss depends on them."""
    steps = 1 if case.loss == "bnpo" else 3
    return {"per_device_train_batch_size": 24 // steps, "gradient_accumulation_steps": steps}


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=[] if c.name in FAST else pytest.mark.slow) for c in CASES]
)
def test_the_second_pass_over_a_batch_has_the_gradient_of_the_formula(
    tiny_model: str, tmp_path: Path, case: Case
) -> None:
    steps = two_steps(tiny_model, tmp_path, case, **cut(case))
    expected, ratios = expected_gradient(tiny_model, steps, case, steps.written)
    assert ratios.max() > 1 + HIGH  # otherwise nothing would be clipped
    assert ratios.min() < 1 - LOW
    assert_same_gradient(steps.gradients[1], expected)


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_the_formula(tiny_model: str, tmp_path: Path) -> None:
    """Three micro-batches on each; the second of the three groups lies on both. `bnpo` depends on the cut."""
    script = Path(__file__).with_name("loss_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, tiny_model, str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for case in CASES:
        if case.loss == "bnpo":
            continue
        halves = [torch.load(tmp_path / f"{case.name}-{rank}.pt", weights_only=True) for rank in (0, 1)]
        written = [row for half in halves for row in half["written"]]
        steps = TwoSteps(written, halves[0]["weights"], halves[0]["gradients"])
        expected, _ = expected_gradient(tiny_model, steps, case, written)
        assert_same_gradient(steps.gradients[1], expected)
