"""xDr.GRPO: its weights maximise their objective; the limits of its temperature and of its reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from covey.errors import ConfigError
from covey.objective import (
    XDR,
    dr_grpo_advantages,
    xdr_weights,
)
from objective_groups import LIMIT, advantages, groups, rows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("tau", "lam"), [(0.3, 0.0), (0.01, 0.0), (0.2, 0.5), (0.0, 0.5), (5.0, 0.1)])
def test_xdr_weights_maximise_their_objective(tau: float, lam: float, seed: int) -> None:
    """⟨w, U⟩ + τ·H(w) - λ·KL(w ‖ softmax(s)): its gradient at w is the same for all completions."""
    given = groups(seed, count=1)
    rewards, lengths, ref = given["rewards_PG"][0], given["lengths_PG"][0], given["ref_logps_PG"][0]
    more: dict[str, Any] = {"max_length": LIMIT, "lam": lam, "ref_logps_PG": ref[None]}
    w = xdr_weights(given["rewards_PG"], given["lengths_PG"], tau=tau, **more)
    assert w.sum().item() == pytest.approx(1)
    w = w[0].clone().requires_grad_()
    utilities = (rewards - rewards.mean()) * lengths / LIMIT
    log_ref = torch.log_softmax(ref / lengths, dim=0)
    value = (w * utilities).sum() - tau * (w * w.log()).sum() - lam * (w * (w.log() - log_ref)).sum()
    value.backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad, w.grad.mean().expand_as(w.grad))


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_xdr_weights_takes_tensors_arrays_and_lists_of_one_group_or_several(kind: Any, lam: float) -> None:
    """Against the formula, in NumPy."""
    rewards, lengths = np.array([1.0, 0.0, 0.5, 0.0]), np.array([9.0, 7.0, 20.0, 4.0])
    ref = np.array([-3.0, -1.0, -9.0, -2.0])
    logits = ((rewards - rewards.mean()) * lengths / 64 + lam * ref / lengths) / (0.1 + lam)
    expected = np.exp(logits) / np.exp(logits).sum()
    for given, wanted in (
        ((rewards, lengths, ref), expected),
        (([rewards] * 3, [lengths] * 3, [ref] * 3), [expected] * 3),
    ):
        r, t, s = (kind(np.array(one).tolist()) for one in given)
        found = xdr_weights(r, t, tau=0.1, max_length=64, lam=lam, ref_logps_PG=s)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)
    with pytest.raises(ConfigError, match=r"rewards of shape \(4,\) .* of shape \(3,\): each completion"):
        xdr_weights(kind(rewards.tolist()), kind([1.0, 2.0, 3.0]), tau=0.1, max_length=64)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 49])
@pytest.mark.parametrize("keep", [False, True])
def test_an_infinite_temperature_is_exactly_dr_grpo(size: int, keep: bool) -> None:
    given = groups(size, size=size)
    given["mask_PG"][0, 0] = False
    for loss in ("dr_grpo", "grpo"):
        run = {"loss_type": loss, "num_generations": size, "max_completion_length": LIMIT, "beta": 0.1}
        for reference in (0.0, 0.3):
            objective = XDR(tau=math.inf, reference=reference, keep_prompt_weight=keep).for_run(**run)
            found = advantages(objective, given, correct_PG=given["rewards_PG"] >= 1)
            assert torch.equal(found, dr_grpo_advantages(given["rewards_PG"], given["mask_PG"]))


@pytest.mark.parametrize("tau", [0.0, 1e-320, 1e-31])
def test_the_zero_temperature_is_uniform_on_the_best(tau: float) -> None:
    """Ties are exact, also of means that are not."""
    found = xdr_weights(rows([0.1, 0.7, 0.7, 0.1]), torch.tensor([[9, 3, 3, 1]]), tau=tau, max_length=7)
    assert found.tolist() == [[0.0, 0.5, 0.5, 0.0]]
    longer = xdr_weights(rows([0.1, 0.7, 0.7, 0.1]), torch.tensor([[9, 3, 4, 1]]), tau=tau, max_length=7)
    assert longer.tolist() == [[0.0, 0.0, 1.0, 0.0]]
    equal = xdr_weights(rows([0.1] * 3), torch.tensor([[9, 3, 4]]), tau=tau, max_length=7)
    assert equal.tolist()[0] == pytest.approx([1 / 3] * 3)


def test_limits_of_the_reference() -> None:
    given = groups(3, count=1)
    rewards, lengths, ref = given["rewards_PG"], given["lengths_PG"], given["ref_logps_PG"]
    alone = torch.softmax(ref / lengths, dim=-1)
    for lam in (math.inf, 1e12):
        found = xdr_weights(rewards, lengths, tau=0.1, max_length=LIMIT, lam=lam, ref_logps_PG=ref)
        torch.testing.assert_close(found, alone)
    equal = xdr_weights(rewards * 0, lengths, tau=0.0, max_length=LIMIT, lam=0.3, ref_logps_PG=ref)
    torch.testing.assert_close(equal, alone)
    impossible = ref.clone()
    impossible[0, :2] = -math.inf
    found = xdr_weights(rewards, lengths, tau=0.1, max_length=LIMIT, lam=0.3, ref_logps_PG=impossible)
    kept = xdr_weights(rewards, lengths, tau=0.1, max_length=LIMIT, lam=0.3, ref_logps_PG=ref, mask_PG=None)
    assert found[0, :2].tolist() == [0.0, 0.0]
    torch.testing.assert_close(found[0, 2:], kept[0, 2:] / kept[0, 2:].sum())
    ignored = xdr_weights(
        rewards, lengths, tau=0.1, max_length=LIMIT, lam=0.3, ref_logps_PG=torch.full_like(ref, -math.inf)
    )
    torch.testing.assert_close(
        ignored, xdr_weights(rewards, lengths, tau=0.1, max_length=LIMIT, lam=0.3, ref_logps_PG=ref * 0)
    )


def test_an_infinite_reward_is_excluded_from_weights() -> None:
    lengths = torch.tensor([[4, 4, 4]])
    for value in (math.inf, -math.inf, math.nan):
        found = xdr_weights(rows([1.0, value, 0.0]), lengths, tau=0.5, max_length=4)
        assert found[0, 1] == 0
        assert found[0, [0, 2]].tolist() == pytest.approx(
            xdr_weights(rows([1.0, 0.0]), lengths[:, :2], tau=0.5, max_length=4)[0].tolist()
        )


def test_the_prompts_weight_can_be_kept() -> None:
    """Σ|advantage| = Σ|A| in every group, with the same proportions."""
    given = groups(4)
    run: dict[str, Any] = {"loss_type": "dr_grpo", "num_generations": 8, "max_completion_length": LIMIT}
    for tau in (0.0, 0.02, 0.5):
        plain = advantages(XDR(tau=tau).for_run(**run), given)
        kept = advantages(XDR(tau=tau, keep_prompt_weight=True).for_run(**run), given)
        total = dr_grpo_advantages(given["rewards_PG"]).abs().sum(dim=1)
        torch.testing.assert_close(kept.abs().sum(dim=1), total)
        torch.testing.assert_close(kept * plain.abs().sum(dim=1, keepdim=True), plain * total[:, None])


def test_xdr_weights_refuse_what_has_no_meaning() -> None:
    rewards, lengths = rows([1, 0]), torch.tensor([[3, 3]])
    for wrong, text in (
        ({"tau": -0.1}, "0 or more"),
        ({"tau": math.nan}, "0 or more"),
        ({"tau": 0.1, "lam": -1.0}, "0 or more"),
        ({"tau": math.inf, "lam": math.inf}, "cannot both be infinite"),
        ({"tau": 0.1, "max_length": 0}, "must be above 0"),
        ({"tau": 0.1, "lam": 0.3}, "needs log-probabilities of the reference"),
    ):
        with pytest.raises(ConfigError, match=text):
            xdr_weights(rewards, lengths, **{"max_length": 4, **wrong})  # type: ignore[arg-type]
