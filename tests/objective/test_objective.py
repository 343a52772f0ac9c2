"""MaxEnt weights and advantages against an independent implementation, by hand, and at their limits.

Pinned here: the formula and its variational meaning; limits in τ and β; completions are excluded from a group before
normalisation; advantages are minus the gradients of the losses they implement.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from covey.config.groups.objectives import MAXENT_LOSSES
from covey.errors import ConfigError
from covey.objective import GRPO, MaxEnt, maxent_weights
from covey.objective.interface import check_objective
from covey.runlog import names
from covey.training.advantages import ScoredRewards, compute_advantages
from maxent_formula import by_numpy

PLAIN: dict[str, float] = {"tau": 0.3, "beta": 0.2, "q_temperature": 0.7, "q_epsilon": 0.01}


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_group(seed: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(1, size, generator=generator, dtype=torch.float64)
    return rewards, -3 * torch.rand(1, size, generator=generator, dtype=torch.float64)


def test_weights_by_hand() -> None:
    """q = (e, 1) / (e + 1); to the power of 1, times the root of π_ref = (1/4, 3/4)."""
    found = maxent_weights(
        rows([1.0, 0.0]), rows([math.log(0.25), math.log(0.75)]), tau=0.5, beta=0.5, q_temperature=1.0, q_epsilon=0.0
    )
    best, other = math.e * 0.5, math.sqrt(0.75)
    assert found.tolist()[0] == pytest.approx([best / (best + other), other / (best + other)], rel=1e-12)
    assert found.tolist()[0] == pytest.approx([0.610804, 0.389196], abs=1e-6)


def test_the_floor_by_hand() -> None:
    """q = (0.8, 0.2) becomes 0.4·q + 0.3 = (0.62, 0.38), which τ = 1 leaves as it is."""
    found = maxent_weights(rows([math.log(4), 0.0]), None, tau=1.0, beta=0.0, q_temperature=1.0, q_epsilon=0.3)
    assert found.tolist()[0] == pytest.approx([0.62, 0.38], rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "settings", [PLAIN, {**PLAIN, "beta": 0.0}, {**PLAIN, "tau": 0.0}, {**PLAIN, "q_epsilon": 0.0}]
)
def test_weights_are_those_of_the_formula(settings: dict[str, float], seed: int) -> None:
    rewards, ref_logps = random_group(seed)
    found = maxent_weights(rewards, ref_logps, **settings)
    np.testing.assert_allclose(found[0].numpy(), by_numpy(rewards[0].numpy(), ref_logps[0].numpy(), **settings), 1e-10)
    assert found.sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_weights_maximise_their_objective(seed: int) -> None:
    """E_w[log q] + τ·H(w) - β·KL(w ‖ π_ref): its gradient at w is the same for all completions."""
    rewards, ref_logps = random_group(seed)
    w = maxent_weights(rewards, ref_logps, **{**PLAIN, "q_epsilon": 0.0})[0].requires_grad_()
    log_q = torch.log_softmax(rewards[0] / PLAIN["q_temperature"], dim=0)
    log_ref = torch.log_softmax(ref_logps[0], dim=0)
    value = (w * log_q).sum() - PLAIN["tau"] * (w * w.log()).sum() - PLAIN["beta"] * (w * (w.log() - log_ref)).sum()
    value.backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad, w.grad.mean().expand_as(w.grad))


@pytest.mark.parametrize(
    ("tau", "beta", "expected"),
    [
        (0.0, 0.0, [0.0, 0.5, 0.5, 0.0]),  # the best, shared
        (1e-9, 0.0, [0.0, 0.5, 0.5, 0.0]),
        (1e-320, 0.0, [0.0, 0.5, 0.5, 0.0]),  # 1 / τ is not finite any more
        (math.inf, 0.0, [0.25] * 4),
        (1e12, 0.3, [0.25] * 4),
        (math.inf, 0.3, [0.25] * 4),
        (0.3, math.inf, [0.1, 0.2, 0.3, 0.4]),  # π_ref, normalised in the group
        (0.3, 1e12, [0.1, 0.2, 0.3, 0.4]),
        (0.0, 1e-9, [0.0, 0.4, 0.6, 0.0]),  # the best, shared as π_ref has it
        (0.0, 1e-40, [0.0, 0.4, 0.6, 0.0]),
    ],
)
def test_limits(tau: float, beta: float, expected: list[float]) -> None:
    ref_logps = torch.log(rows([0.1, 0.2, 0.3, 0.4])) - 700  # the group is a small part of all completions
    found = maxent_weights(rows([0.0, 1.0, 1.0, -2.0]), ref_logps, tau=tau, beta=beta, q_temperature=1, q_epsilon=1e-3)
    assert found.tolist()[0] == pytest.approx(expected, abs=1e-9)


def test_with_equal_rewards_the_reference_decides() -> None:
    """However small τ + β: exponents 1 / 2 on (0.2, 0.8) give (1, 2) / 3."""
    for scale in (1.0, 1e-12):
        found = maxent_weights(
            rows([3.0, 3.0]), torch.log(rows([0.2, 0.8])), tau=scale, beta=scale, q_temperature=0.01, q_epsilon=0.1
        )
        assert found.tolist()[0] == pytest.approx([1 / 3, 2 / 3], rel=1e-9)


def test_a_group_of_one() -> None:
    assert maxent_weights(rows([-5.0], [2.0]), rows([-900.0], [-math.inf]), **PLAIN).tolist() == [[1.0], [1.0]]


def test_permutation_and_constant() -> None:
    rewards, ref_logps = random_group(11)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    base = maxent_weights(rewards, ref_logps, **PLAIN)
    torch.testing.assert_close(maxent_weights(rewards[:, order], ref_logps[:, order], **PLAIN), base[:, order])
    torch.testing.assert_close(maxent_weights(rewards + 17, ref_logps, **PLAIN), base)
    torch.testing.assert_close(maxent_weights(rewards, ref_logps - 1e4, **PLAIN), base, rtol=1e-9, atol=1e-12)


def test_more_reward_and_more_reference_mean_more_weight() -> None:
    found = maxent_weights(rows([1.0, 0.0], [0.0, 0.0]), rows([-1.0, -1.0], [-1.0, -2.0]), **PLAIN)
    assert found[0, 0] > found[0, 1]
    assert found[1, 0] > found[1, 1]


def test_very_long_completions_stay_finite() -> None:
    found = maxent_weights(
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([[-40000.0, -40001.0]]),
        tau=0.0,
        beta=1.0,
        q_temperature=1,
        q_epsilon=0,
    )
    assert found.dtype == torch.float32
    assert found.tolist()[0] == pytest.approx([0.5, 0.5], abs=1e-6)  # a nat of reward for a nat of reference


def test_impossible_completions_have_no_weight() -> None:
    rewards, ref = rows([5.0, 0.0, 1.0]), torch.log(rows([0.0, 0.5, 0.25]))
    found = maxent_weights(rewards, ref, **PLAIN)
    assert found[0, 0] == 0
    np.testing.assert_allclose(found[0].numpy(), by_numpy(rewards[0].numpy(), ref[0].numpy(), **PLAIN), 1e-10)
    assert maxent_weights(rewards, ref, **{**PLAIN, "tau": math.inf}).tolist() == [[0.0, 0.5, 0.5]]
    # A reference of -inf for all of them is ignored.
    nothing = torch.full_like(rewards, -math.inf)
    without = maxent_weights(rewards, torch.zeros_like(rewards), **PLAIN)
    torch.testing.assert_close(maxent_weights(rewards, nothing, **PLAIN), without)


def test_masked_completions_are_excluded_before_normalisation() -> None:
    rewards, ref_logps = random_group(5, size=5)
    mask = torch.tensor([[True, False, True, True, False]])
    kept = mask[0].nonzero().flatten()
    found = maxent_weights(rewards, ref_logps, mask_PG=mask, **PLAIN)
    torch.testing.assert_close(found[:, kept], maxent_weights(rewards[:, kept], ref_logps[:, kept], **PLAIN))
    assert found[~mask].tolist() == [0.0, 0.0]
    unscorable = rewards.masked_fill(~mask, torch.nan)
    assert torch.equal(maxent_weights(unscorable, ref_logps, **PLAIN), found)
    assert maxent_weights(rewards, ref_logps, mask_PG=mask & False, **PLAIN).tolist() == [[0.0] * 5]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_reward_is_excluded(value: float) -> None:
    rewards, ref_logps = random_group(5, size=5)
    expected = maxent_weights(rewards[:, 1:], ref_logps[:, 1:], **PLAIN)
    rewards[0, 0] = value
    found = maxent_weights(rewards, ref_logps, **PLAIN)
    assert found[0, 0] == 0
    torch.testing.assert_close(found[:, 1:], expected)
    given = case()
    given["rewards_PG"][0, 1] = value
    advantages, metrics = decide(MaxEnt(), given)
    assert advantages[0, 1] == 0
    assert torch.isfinite(advantages).all()
    assert all(math.isfinite(one) for one in metrics.values())


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"tau": -0.1}, "tau=-0.1 must be 0 or more"),
        ({"beta": -1.0}, "beta=-1 must be 0 or more"),
        ({"tau": math.nan}, "must be 0 or more"),
        ({"tau": math.inf, "beta": math.inf}, "cannot both be infinite"),
        ({"q_temperature": 0.0}, "q_temperature=0 must be a finite number above 0"),
        ({"q_epsilon": -1e-3}, "q_epsilon=-0.001 must be 0 or more"),
        ({"q_epsilon": 0.25}, r"must be below 1/4 = 0.25"),
    ],
)
def test_settings_out_of_range(wrong: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        maxent_weights(torch.zeros(2, 4), torch.zeros(2, 4), **{**PLAIN, **wrong})


def test_a_reference_is_needed_unless_beta_is_zero() -> None:
    with pytest.raises(ConfigError, match="set beta to 0"):
        maxent_weights(torch.zeros(1, 2), None, **PLAIN)


# -- Advantages


def case(seed: int = 2) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "rewards_PG": torch.randint(0, 3, (3, 4), generator=generator).double(),
        "mask_PG": torch.ones(3, 4, dtype=torch.bool),
        "ref_logps_PG": -20 * torch.rand(3, 4, generator=generator, dtype=torch.float64),
        "policy_logps_PG": -20 * torch.rand(3, 4, generator=generator, dtype=torch.float64),
        "lengths_PG": torch.randint(1, 9, (3, 4), generator=generator),
    }


def decide(objective: MaxEnt, given: dict[str, Any], **more: Any) -> tuple[torch.Tensor, dict[str, float]]:
    taken = {**given, "beta": 0.2, **more}
    advantages, metrics, _ = objective.advantages(taken.pop("rewards_PG"), taken.pop("mask_PG"), **taken)
    return advantages, dict(metrics)


@pytest.mark.parametrize("loss_type", MAXENT_LOSSES)
@pytest.mark.parametrize("normalized", [True, False])
def test_advantages_are_minus_the_gradients(loss_type: str, normalized: bool) -> None:
    """Of the loss, summed over groups, with respect to each completion's log-probability, reduced as in the loss."""
    given = case()
    mle, listwise = (
        MaxEnt(tau=0.4, fit=fit, length_normalize_ref=normalized).for_run(
            loss_type=loss_type, num_generations=4, max_completion_length=8
        )
        for fit in ("mle", "listwise")
    )
    ref = given["ref_logps_PG"] / given["lengths_PG"] if normalized else given["ref_logps_PG"]
    groups = zip(given["rewards_PG"].numpy(), ref.numpy(), strict=True)
    w = torch.tensor(np.stack([by_numpy(rewards, logps, 0.4, 0.2, 1.0, 1e-6) for rewards, logps in groups]))
    averages = loss_type == "grpo"
    scores = (given["policy_logps_PG"] / (given["lengths_PG"] if averages else 1)).requires_grad_()

    (likelihood,) = torch.autograd.grad(-(w * scores).sum(), scores)
    torch.testing.assert_close(decide(mle, given)[0], -4 * likelihood)
    (cross_entropy,) = torch.autograd.grad(-(w * scores.log_softmax(dim=1)).sum(), scores)
    torch.testing.assert_close(decide(listwise, given)[0], -4 * cross_entropy)


def test_listwise_advantages_add_up_to_zero_and_vanish_at_the_target() -> None:
    given = case()
    objective = MaxEnt(tau=0.4, length_normalize_ref=False).for_run(
        loss_type="dr_grpo", num_generations=4, max_completion_length=8
    )
    advantages, _ = decide(objective, given)
    torch.testing.assert_close(advantages.sum(dim=1), torch.zeros(3, dtype=torch.float64))
    w = maxent_weights(given["rewards_PG"], given["ref_logps_PG"], tau=0.4, beta=0.2, q_epsilon=1e-6)
    at_target, metrics = decide(objective, {**given, "policy_logps_PG": w.log() - 30})
    torch.testing.assert_close(at_target, torch.zeros_like(w), atol=1e-9, rtol=0)
    assert metrics["objective/target_policy_kl"] == pytest.approx(0, abs=1e-9)


def test_masked_completions_are_excluded_from_target_and_policy() -> None:
    given = case()
    given["mask_PG"][0, 1] = False
    given["mask_PG"][2] = False  # a whole group
    advantages, metrics = decide(MaxEnt(), given)
    kept = [0, 2, 3]
    alone, _ = decide(MaxEnt(), {name: value[:1, kept] for name, value in given.items()})
    torch.testing.assert_close(advantages[:1, kept] / 4, alone / 3)
    assert advantages[0, 1] == 0
    assert advantages[2].tolist() == [0.0] * 4
    assert all(math.isfinite(value) for value in metrics.values())
    assert decide(MaxEnt(), {**given, "mask_PG": torch.zeros(3, 4, dtype=torch.bool)})[1] == {}


def test_weights_are_a_column() -> None:
    given = case()
    _, _, columns = MaxEnt(length_normalize_ref=False).advantages(**given, beta=0.2)  # type: ignore[arg-type]
    w = maxent_weights(given["rewards_PG"], given["ref_logps_PG"], tau=0.3, beta=0.2, q_epsilon=1e-6)
    assert list(columns) == [names.COLUMN_WEIGHT] == ["maxent_weight"]
    assert torch.equal(columns[names.COLUMN_WEIGHT], w)


def test_metrics_by_hand() -> None:
    """Two groups: weights (1/2, 1/2, 0, 0) and, with equal rewards, 1/4 each."""
    given = {
        "rewards_PG": rows([1, 1, 0, 0], [0, 0, 0, 0]),
        "mask_PG": torch.ones(2, 4, dtype=torch.bool),
        "ref_logps_PG": None,
        "policy_logps_PG": torch.log(rows([0.5, 0.25, 0.125, 0.125], [0.25] * 4)),
        "lengths_PG": torch.ones(2, 4),
    }
    correct = torch.tensor([[True, False, True, False], [False] * 4])
    _, found = decide(MaxEnt(tau=0.0), given, beta=0.0, correct_PG=correct)
    # τ = β = 0 shares the weight among the best, which in the second group are all.
    log2 = math.log(2)
    expected = {
        "objective/log_odds": math.inf,
        "objective/target_entropy": (log2 + 2 * log2) / 2,
        "objective/effective_completions": (2 + 4) / 2,
        "objective/weight_on_correct": (0.5 + 0) / 2,
        "objective/policy_entropy_group": (1.75 * log2 + 2 * log2) / 2,
        "objective/target_policy_kl": ((0.5 * log2 * 0 + 0.5 * log2) + 0) / 2,
    }
    assert found == pytest.approx(expected)


def test_only_listwise_needs_the_policy() -> None:
    assert MaxEnt(fit="listwise").needs == {"reference", "policy", "correct"}
    assert MaxEnt(fit="mle").needs == {"reference", "correct"}
    given = {**case(), "policy_logps_PG": None}
    with pytest.raises(ConfigError, match="policy's log-probabilities"):
        decide(MaxEnt(fit="listwise"), given)
    _, metrics = decide(MaxEnt(fit="mle"), given)
    assert "objective/target_policy_kl" not in metrics


# -- From TRL's batch to an objective


def test_rewards_are_summed_by_trls_rules() -> None:
    nan = math.nan
    per_function = torch.tensor([[1.0, 0.5], [nan, 1.0], [nan, nan], [0.0, nan]])
    scored = ScoredRewards(per_function, torch.tensor([1.0, 2.0]), "sum_then_normalize", 2)
    torch.testing.assert_close(scored.grouped(), torch.tensor([[2.0, 2.0], [nan, 0.0]]), equal_nan=True)
    assert scored.correct().tolist() == [[True, False], [False, False]]


def test_rewards_scaled_function_by_function() -> None:
    """(0, 2) has mean 1 and standard deviation √2; (5, 5) has none."""
    scored = ScoredRewards(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), torch.tensor([1.0, 3.0]), "normalize_then_sum", 2)
    scaled = 1 / (math.sqrt(2) + 1e-4)
    torch.testing.assert_close(scored.grouped(), torch.tensor([[-scaled, scaled]]))


def test_masked_tokens_and_truncated_completions_do_not_reach_the_objective() -> None:
    seen: dict[str, Any] = {}

    class Recorder(GRPO):
        needs = frozenset({"reference"})

        def advantages(self, rewards_PG: torch.Tensor, mask_PG: torch.Tensor, **more: Any) -> Any:
            seen.update(more, rewards_PG=rewards_PG, mask_PG=mask_PG)
            return torch.ones_like(rewards_PG), {}

    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
    logps = torch.tensor([[-1.0, -2.0, math.nan], [-4.0, -math.inf, 0.0], [-1.0, -1.0, -1.0], [-1.0, -1.0, -0.5]])
    scored = ScoredRewards(torch.tensor([[1.0], [0.0], [1.0], [0.0]]), torch.ones(1), "sum_then_normalize", 4)
    advantages, _, columns = compute_advantages(
        Recorder(), scored, mask_BT=mask, ref_logps_BT=logps, policy_logps_BT=None, beta=0.1, gather=lambda t: t
    )
    assert seen["ref_logps_PG"].tolist() == [[-3.0, -4.0, 0.0, -2.5]]
    assert seen["lengths_PG"].tolist() == [[2, 1, 0, 3]]
    assert seen["mask_PG"].tolist() == [[True, True, False, True]]
    assert seen["policy_logps_PG"] is None
    assert "correct_PG" not in seen
    assert advantages is not None
    assert advantages.tolist() == [1.0, 1.0, 0.0, 1.0]
    assert columns == {}


def test_invalid_objectives_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no method advantages"):
        check_objective("maxent")
    broken = type("Broken", (GRPO,), {"needs": frozenset({"rewards"})})
    with pytest.raises(ConfigError, match="frozenset of correct, modes, policy, reference, reference_logps"):
        check_objective(broken())
