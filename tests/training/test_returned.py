"""What an objective returns is checked before it is used: one paragraph that names the class and what is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from covey.errors import TrainingError
from covey.training.advantages import ScoredRewards, checked, compute_advantages

MASK = torch.tensor([[True, True, False], [True, True, True]])
FINE = torch.tensor([[1.0, 2.0, math.nan], [0.0, -1.0, 3.0]])


def test_numbers_and_columns_become_plain() -> None:
    columns = {
        "a": FINE,
        "b": [["x", None, "y"], ["", "z", "w"]],
        "c": np.arange(6).reshape(2, 3),
        "maxent_weight": FINE.half(),
    }
    found = checked((FINE, {"objective/x": torch.tensor(2.0), "y": 1}, columns), "Mine", MASK, ())
    assert found[0] is FINE
    assert found[1] == {"objective/x": 2.0, "y": 1.0}
    assert found[2] == {
        "a": [1.0, 2.0, None, 0.0, -1.0, 3.0],
        "b": ["x", None, "y", "", "z", "w"],
        "c": [0, 1, 2, 3, 4, 5],
        "maxent_weight": [1.0, 2.0, None, 0.0, -1.0, 3.0],
    }
    assert checked((None, {}), "Mine", MASK, ()) == (None, {}, {})


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (
            None,
            r"a value of the type NoneType; it must return \(advantages, metrics\) or ",
        ),
        (FINE, "a value of the type Tensor; it must return"),
        ((FINE,), "1 values; it must return"),
        (([[1.0]], {}), "a value of the type list as advantages; they must be a tensor"),
        ((FINE[:1], {}), r"advantages of shape \(1, 3\) for rewards of shape \(2, 3\)"),
        ((FINE.bool(), {}), "advantages of the dtype torch.bool; they must be real numbers"),
        ((torch.full((2, 3), math.nan), {}), "5 advantages that are not finite .* completion 0 of group 0"),
        ((FINE.masked_fill(FINE == 3, math.inf), {}), "1 advantages .* completion 2 of group 1"),
        ((FINE, [1.0]), "metrics that are no mapping from names to values, but a value of the type list"),
        ((FINE, {}, {3: FINE}), "columns that are no mapping from names"),
        ((FINE, {"x": FINE}), r"the metric 'x' with a value of the type Tensor and the shape \(2, 3\)"),
        ((FINE, {"x": "high"}), "the metric 'x' with a value of the type str; a metric is one number"),
        ((FINE, {"reward": 1.0}), "the metric 'reward', a name that Covey or TRL uses: call it objective/"),
        ((FINE, {"objective/beta": 1.0}), "the metric 'objective/beta', a name that Covey"),
        ((FINE, {}, {"x": FINE[:, :2]}), r"the column 'x' with .* \(2, 2\); it must be \[2, 3\], a value a completion"),
        ((FINE, {}, {"x": [[1, 2, 3], [4, 5]]}), r"the column 'x' .*must be \[2, 3\]"),
        ((FINE, {}, {"x": 1.0}), r"the column 'x' .*must be \[2, 3\]"),
        ((FINE, {}, {"x": [[object()] * 3] * 2}), "the column 'x' with a value of the type object; .* plain data"),
        ((FINE, {}, {"length": FINE}), "the column 'length', a name that Covey has"),
        ((FINE, {}, {"advantage": FINE}), "the column 'advantage', a name that Covey has"),
        ((FINE, {}, {"format": FINE}), "the column 'format', a name that a reward has"),
    ],
)
def test_what_cannot_be_used_is_refused(returned: Any, text: str) -> None:
    with pytest.raises(TrainingError, match=f"The objective Mine returned {text}"):
        checked(returned, "Mine", MASK, ("format",))


def test_an_error_of_its_own_code_names_the_line() -> None:
    class Mine:
        def advantages(self, **_: Any) -> Any:
            raise IndexError("too far")

    scored = ScoredRewards(torch.ones(4, 1), torch.ones(1), "sum_then_normalize", 4)
    given: dict[str, Any] = {"ref_logps_BT": None, "policy_logps_BT": None, "beta": 0.0, "gather": lambda t: t}
    with pytest.raises(TrainingError, match=r"Mine failed in advantages: IndexError: too far \(.*test_returned\.py,"):
        compute_advantages(Mine(), scored, mask_BT=torch.ones(4, 2), **given)  # type: ignore[arg-type]


def test_the_order_is_that_of_the_completions() -> None:
    """And a gradient or a wider dtype of the objective's own does not reach the loss."""

    class Mine:
        def advantages(self, rewards_PG: torch.Tensor, mask_PG: torch.Tensor, **_: Any) -> Any:
            return 2 * rewards_PG.double().requires_grad_(), {}, {"twice": 2 * rewards_PG}

    scored = ScoredRewards(torch.tensor([[1.0], [2.0], [math.nan], [4.0]]), torch.ones(1), "sum_then_normalize", 2)
    given: dict[str, Any] = {"ref_logps_BT": None, "policy_logps_BT": None, "beta": 0.0, "gather": lambda t: t}
    found, _, columns = compute_advantages(Mine(), scored, mask_BT=torch.ones(4, 2), **given)  # type: ignore[arg-type]
    assert found is not None
    assert (found.dtype, found.requires_grad, found.tolist()) == (torch.float32, False, [2.0, 4.0, 0.0, 8.0])
    assert columns == {"twice": [2.0, 4.0, None, 8.0]}
