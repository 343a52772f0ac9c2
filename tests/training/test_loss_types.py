"""Every loss of TRL's on Covey's trainer, at ratios other than 1, against independent formulas.

Pinned here: clipping, sequence-level ratios (GSPO), soft gates, the KL term, the three scales of the rewards, and the
normalisation; also over accumulation steps and two processes, with a group that is on both.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forked import run_two
from scripted import assert_same_gradient
from second_pass import CASES, HIGH, LOW, Case, TwoSteps, expected_gradient, two_steps


def micro_batches(case: Case) -> dict[str, int]:
    """Three micro-batches, unless the loss depends on them."""
    steps = 1 if case.loss == "bnpo" else 3
    return {"per_device_train_batch_size": 24 // steps, "gradient_accumulation_steps": steps}


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES])
def test_the_second_pass_over_a_batch_has_the_gradient_of_the_formula(
    tiny_model: str, tmp_path: Path, case: Case
) -> None:
    steps = two_steps(tiny_model, tmp_path, case, **micro_batches(case))
    expected, ratios = expected_gradient(tiny_model, steps, case, steps.generated)
    assert ratios.max() > 1 + HIGH  # otherwise nothing would be clipped
    assert ratios.min() < 1 - LOW
    assert_same_gradient(steps.gradients[1], expected)


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_the_formula(tiny_model: str, tmp_path: Path) -> None:
    """Three micro-batches on each; the second of the three groups is on both. `bnpo` depends on the split."""
    run_two("loss_processes.py", tiny_model, tmp_path, folder=tmp_path)
    for case in CASES:
        if case.loss == "bnpo":
            continue
        halves = [torch.load(tmp_path / f"{case.name}-{rank}.pt", weights_only=True) for rank in (0, 1)]
        generated = [row for half in halves for row in half["generated"]]
        steps = TwoSteps(generated, halves[0]["weights"], halves[0]["gradients"])
        expected, _ = expected_gradient(tiny_model, steps, case, generated)
        assert_same_gradient(steps.gradients[1], expected)
