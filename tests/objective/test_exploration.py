"""The exploration objectives against independent formulas, by hand, and at their limits.

Pinned here: every formula; the identities between objectives; that equal rewards have exactly no advantage; that
excluded completions enter nothing; settings, losses and runs that are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import objective_formulas as formulas
from covey.config import Config, DatasetConfig, ObjectiveConfig, TrainingConfig
from covey.config.groups.objectives import LINEAR_LOSSES, SETTINGS
from covey.errors import ConfigError
from covey.objective import (
    REGISTRY,
    SEED,
    XDR,
    Darling,
    MaxEnt,
    MaxRL,
    PassK,
    Quantile,
    Unique,
    darling_advantages,
    dr_grpo_advantages,
    make,
    maxrl_advantages,
    passk_advantages,
    quantile_advantages,
    seed_scales,
    unlikely_advantages,
    xdr_weights,
)
from covey.objective.groups import implied_weights, weight_metrics
from covey.objective.interface import check_objective
from objective_groups import LIMIT, Group, advantages, groups, rows


def each(given: Group) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """The groups as plain lists, with log-probs per token too."""
    for number in range(len(given["rewards_PG"])):
        row = {name: value[number].tolist() for name, value in given.items()}
        row["logps"] = (given["policy_logps_PG"] / given["lengths_PG"])[number].tolist()
        yield number, row


# Every objective, with the independent formula of its advantages.
CASES: dict[str, tuple[Any, Callable[[dict[str, Any]], np.ndarray]]] = {
    "dr_grpo": (make("dr_grpo"), lambda g: formulas.advantages(g["rewards_PG"])),
    "maxrl": (
        make("maxrl"),
        lambda g: formulas.advantages(g["rewards_PG"]) / (float(np.mean(g["rewards_PG"])) or math.inf),
    ),
    "xdr": (
        make("xdr", tau=0.2).for_run(loss_type="dr_grpo", num_generations=8, max_completion_length=LIMIT),
        lambda g: (
            8
            * formulas.xdr_weights(g["rewards_PG"], g["lengths_PG"], 0.2, LIMIT)
            * formulas.advantages(g["rewards_PG"])
        ),
    ),
    "xdr by its share of 1": (
        make("xdr", tau=0.2).for_run(loss_type="grpo", num_generations=8, max_completion_length=LIMIT),
        lambda g: 8 * formulas.xdr_weights(g["rewards_PG"], [1] * 8, 0.2, 1) * formulas.advantages(g["rewards_PG"]),
    ),
    "xdr with a reference": (
        make("xdr", tau=0.2, reference=0.3).for_run(
            loss_type="dr_grpo", num_generations=8, max_completion_length=LIMIT, beta=0.1
        ),
        lambda g: (
            8
            * formulas.xdr_weights(g["rewards_PG"], g["lengths_PG"], 0.2, LIMIT, 0.3, g["ref_logps_PG"])
            * formulas.advantages(g["rewards_PG"])
        ),
    ),
    "xdr adaptive": (
        make("xdr", tau=0.2, adaptive=True).for_run(
            loss_type="dr_grpo", num_generations=8, max_completion_length=LIMIT
        ),
        lambda g: (
            8
            * formulas.xdr_weights(
                g["rewards_PG"],
                g["lengths_PG"],
                0.2 / math.log(1 + max(1, len({m for m in g["modes_PG"] if m >= 0}))),
                LIMIT,
            )
            * formulas.advantages(g["rewards_PG"])
        ),
    ),
    **{
        f"passk {k}": (make("passk", k=k), lambda g, k=k: formulas.passk(g["rewards_PG"], k))  # type: ignore[misc]
        for k in (1, 2, 3, 5)
    },
    "unique": (make("unique", alpha=0.7), lambda g: formulas.unique(g["rewards_PG"], g["modes_PG"], 0.7)),
    "darling": (make("darling"), lambda g: formulas.darling(g["rewards_PG"], g["modes_PG"], 0.0)),
    "darling with a floor": (
        make("darling", floor=0.9),
        lambda g: formulas.darling(g["rewards_PG"], g["modes_PG"], 0.9),
    ),
    "seed": (make("seed", alpha=0.6), lambda g: formulas.seed(g["rewards_PG"], g["modes_PG"], g["logps"], 0.6)),
    "quantile": (make("quantile", level=0.6), lambda g: formulas.quantile(g["rewards_PG"], 0.6)),
    "unlikely": (make("unlikely", penalty=0.4), lambda g: formulas.unlikely(g["rewards_PG"], g["logps"], 0.4)),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CASES)
def test_advantages_are_those_of_the_formula(name: str, seed: int) -> None:
    objective, formula = CASES[name]
    given = groups(seed, binary=seed == 3)
    found = advantages(objective, given)
    assert found.abs().max() > 0.01
    for number, group in each(given):
        np.testing.assert_allclose(found[number].numpy(), formula(group), rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_excluded_completions_enter_nothing(name: str) -> None:
    """Without a reward, with an infinite one, or out of the mask; also a whole group, and one with a single member."""
    objective, _ = CASES[name]
    given = groups(7)
    kept = [0, 2, 3, 5, 7]
    alone = advantages(objective, {key: value[:1, kept] for key, value in given.items()})
    for excluded in (math.nan, math.inf, -math.inf):
        given["rewards_PG"][0, [1, 4]] = excluded
        given["mask_PG"][0, 6] = False
        given["mask_PG"][1] = False
        given["mask_PG"][2, 1:] = False
        found = advantages(objective, given)
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found[:1, kept], alone)
        assert found[0, [1, 4, 6]].tolist() == [0.0] * 3
        assert found[1].tolist() == [0.0] * 8
        assert found[2, 1:].tolist() == [0.0] * 7
        assert found[2, 0] == 0
    nothing = advantages(objective, {**given, "mask_PG": torch.zeros(5, 8, dtype=torch.bool)})
    assert not nothing.any()


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -2 / 3, 1e30])
@pytest.mark.parametrize("name", CASES)
def test_equal_rewards_have_exactly_no_advantage(name: str, value: float) -> None:
    """Sums of 0.1 are not exact. DARLING and unlikeliness change equal rewards by what they are about."""
    if name.startswith(("darling", "unlikely")) and value:
        pytest.skip("by modes or likelihood, they differ")
    objective, _ = CASES[name]
    found = advantages(objective, {**groups(2, size=7), "rewards_PG": torch.full((5, 7), value)})
    assert not found.any()


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_completions_and_names_of_modes_do_not_matter(name: str) -> None:
    objective, _ = CASES[name]
    given = groups(11)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    other = {key: value[:, order] for key, value in given.items()}
    other["modes_PG"] = torch.where(other["modes_PG"] >= 0, 7 - other["modes_PG"], -1)
    torch.testing.assert_close(advantages(objective, other), advantages(objective, given)[:, order])


# -- By hand


def test_dr_grpo_and_maxrl_by_hand() -> None:
    rewards = rows([1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [-1, 1, 0, 0])
    assert dr_grpo_advantages(rewards)[0].tolist() == [0.75, -0.25, -0.25, -0.25]
    assert maxrl_advantages(rewards)[0].tolist() == [3.0, -1.0, -1.0, -1.0]
    assert maxrl_advantages(rewards)[1].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1])
    assert not maxrl_advantages(rewards)[2:].any()
    # 0.1 + 0.2 - 0.3 is not exactly 0, and no mean to divide by
    assert not maxrl_advantages(rows([0.1, 0.2, -0.3])).any()


def test_passk_by_hand() -> None:
    """One of four right, k = 2: right 1/2, wrong (1/2)·ρ(3, 1, 1) = 1/6; the mean is 1/4."""
    found = passk_advantages(rows([1, 0, 0, 0]), k=2)
    assert found[0].tolist() == pytest.approx([1 / 4, -1 / 12, -1 / 12, -1 / 12])
    # All subsets of three of four with three right hold a right one: nothing to gain.
    assert passk_advantages(rows([1, 1, 1, 0]), k=3).abs().max() < 1e-15
    fewer = passk_advantages(rows([1, 0, math.nan, math.nan]), k=3)  # both in one subset
    assert fewer[0].tolist() == [0.0] * 4


def test_quantile_by_hand() -> None:
    """K = 0.4 of five: the second smallest. Two right of five (p ≤ 0.6): right ones count; four: the wrong one."""
    found = quantile_advantages(rows([1, 0, 1, 0, 0], [1, 1, 0, 1, 1]), level=0.4)
    assert found.tolist() == [[1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0, 0.0]]
    edge = quantile_advantages(rows([1, 1, 1, 0, 0]), level=0.4)  # p = 0.6 = 1 - K
    assert edge.tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0]]


def test_modes_by_hand() -> None:
    """Four of six right: modes a, a, a, b. f = 3/4 and 1/4; A = 1/3 and -2/3."""
    rewards, modes = rows([1, 1, 1, 1, 0, 0]), torch.tensor([[4, 4, 4, 2, -1, -1]])
    given = {"rewards_PG": rewards, "mask_PG": torch.ones(1, 6, dtype=torch.bool), "modes_PG": modes}
    third = 1 / 3
    expected = [third * 4 / 3] * 3 + [third * 4] + [-2 * third] * 2
    assert advantages(Unique(), given)[0].tolist() == pytest.approx(expected)
    # The share of the five others that differ: 3/5 for a, 1 for b; the mean of the products is 14/30.
    expected = [3 / 5 - 14 / 30] * 3 + [1 - 14 / 30] + [-14 / 30] * 2
    assert darling_advantages(rewards, modes)[0].tolist() == pytest.approx(expected)
    # Equal log-probs: masses 1/2, 1/6 and twice 1/6 alone.
    entropy = math.log(2) / 2 + 3 * math.log(6) / 6
    scale = seed_scales(torch.zeros(1, 6), modes, given["mask_PG"], alpha=2.0)
    assert scale.item() == pytest.approx(1 / (1 + 2 * entropy / math.log(6)))


def test_seed_is_between_its_bounds() -> None:
    one, none, kept = torch.zeros(1, 4).long(), -torch.ones(1, 4).long(), torch.ones(1, 4, dtype=torch.bool)
    logps = torch.tensor([[-1.0, -2.0, -0.5, -900.0]])
    assert seed_scales(logps, one, kept).item() == pytest.approx(1.0)
    assert seed_scales(logps * 0, none, kept).item() == pytest.approx(0.5)
    assert seed_scales(logps, none, torch.tensor([[True, False, False, False]])).item() == 1.0


def test_unlikely_completions_keep_more() -> None:
    """Ranks 2, 0, 1 from the least likely: 1 - 0.3·(2/3, 0, 1/3) is 0.8, 1, 0.9. Equal ones share their rank."""
    found = unlikely_advantages(rows([1, 1, 1]), rows([-1, -9, -4]), penalty=0.3)
    assert found[0].tolist() == pytest.approx([-0.1, 0.1, 0.0], abs=1e-12)
    assert unlikely_advantages(rows([1, 1, 1]), rows([-4, -4, -4]), penalty=0.3).abs().max() < 1e-15


# -- Identities, for rewards of 0 and 1 and equal lengths


@pytest.mark.parametrize("right", range(1, 8))
@pytest.mark.parametrize("seed", range(3))
def test_identities(right: int, seed: int) -> None:
    size = 8
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    given = groups(seed, size=size, count=1, binary=True)
    given["rewards_PG"] = (torch.arange(size)[None, order] < right).double()
    given["policy_logps_PG"] = torch.full((1, size), -7.0, dtype=torch.float64)
    p, plain = right / size, dr_grpo_advantages(given["rewards_PG"])
    likelihood = maxrl_advantages(given["rewards_PG"])
    run: dict[str, Any] = {"loss_type": "grpo", "num_generations": size, "max_completion_length": 10}

    def maxent(tau: float, fit: str) -> torch.Tensor:
        return advantages(MaxEnt(tau=tau, fit=fit, q_epsilon=0.0).for_run(**run), given)

    for tau in (0.2, 1.0, 3.0):  # listwise, under a uniform policy, is Dr. GRPO times a prompt's weight …
        e = math.exp(1 / tau)
        torch.testing.assert_close(maxent(tau, "listwise"), plain * (e - 1) / (p * e + 1 - p))
    torch.testing.assert_close(maxent(0.001, "listwise"), likelihood)  # … and tends to MaxRL
    zero = advantages(XDR(tau=0.0).for_run(**run), given)
    torch.testing.assert_close(zero, likelihood.clamp(min=0))
    torch.testing.assert_close(maxent(0.0, "mle"), zero + (given["rewards_PG"] > 0))
    for k in range(1, size + 1):
        found = passk_advantages(given["rewards_PG"], k=k)
        torch.testing.assert_close(found, plain * (found / plain).mean(), rtol=1e-9, atol=1e-15)
        assert found.sum().abs() < 1e-12
    torch.testing.assert_close(passk_advantages(given["rewards_PG"], k=1), plain / size)
    for objective in (Unique(alpha=0.0), SEED(alpha=0.0)):
        torch.testing.assert_close(advantages(objective, given), plain)


# -- Metrics


def test_metrics_of_weights_by_hand() -> None:
    """Weights (1/2, 1/2, 0, 0) and 1/4 each: 2 and 4 effective ones; lengths 4, 2, 1, 1 have the mean 2."""
    weights = rows([0.5, 0.5, 0, 0], [0.25] * 4)
    right = torch.tensor([[True, False, False, False], [False] * 4])
    lengths = torch.tensor([[4, 2, 1, 1], [3, 3, 3, 3]])
    kept = torch.ones(2, 4, dtype=torch.bool)
    assert weight_metrics(weights, kept, lengths, right) == pytest.approx(
        {
            "objective/effective_completions": (2 + 4) / 2,
            "objective/incorrect_mass": (0.5 + 1) / 2,
            "objective/length_tilt": (3 / 2 - 1 + 0) / 2,
        }
    )
    assert weight_metrics(weights, kept & False, lengths, right) == {}


def test_weights_that_follow_from_advantages() -> None:
    rewards, mask = rows([1, 0, 0, math.nan], [1, 1, 1, 1]), torch.ones(2, 4, dtype=torch.bool)
    third = [1 / 3, 1 / 3, 1 / 3, 0.0]
    for found in (None, dr_grpo_advantages(rewards), maxrl_advantages(rewards)):
        weights = implied_weights(found, rewards, mask)
        assert weights[0].tolist() == pytest.approx(third)
        assert weights[1].tolist() == pytest.approx([0.25] * 4)
    # Of hard prompts a quantile keeps the right answers alone.
    assert implied_weights(quantile_advantages(rewards, level=0.4), rewards, mask)[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    # Off xDr.GRPO its own weights.
    given = groups(3, binary=True)
    objective = XDR(tau=0.3, max_length=LIMIT)
    found = advantages(objective, given)
    w = xdr_weights(given["rewards_PG"], given["lengths_PG"], tau=0.3, max_length=LIMIT)
    torch.testing.assert_close(implied_weights(found, given["rewards_PG"], given["mask_PG"]), w)


def test_columns_and_log_odds() -> None:
    given = groups(5)
    objective = XDR(tau=0.3, max_length=LIMIT)
    _, metrics, columns = objective.advantages(given["rewards_PG"], given["mask_PG"], lengths_PG=given["lengths_PG"])
    w = xdr_weights(given["rewards_PG"], given["lengths_PG"], tau=0.3, max_length=LIMIT)
    torch.testing.assert_close(columns["xdr_weight"], w)
    assert metrics == {"objective/log_odds": pytest.approx(float(given["lengths_PG"].double().mean()) / LIMIT / 0.3)}
    _, _, columns = Unique(alpha=1.0).advantages(
        rows([1, 1, 1, 0]), torch.ones(1, 4, dtype=torch.bool), modes_PG=torch.tensor([[0, 0, 1, -1]])
    )
    # f = 2/3, 2/3 and 1/3: factors 3/2, 3/2, 3 and 1, of 7
    assert columns["unique_weight"][0].tolist() == pytest.approx([3 / 14, 3 / 14, 3 / 7, 1 / 7])


# -- Settings and runs


def config(loss_type: str, **objective: Any) -> Config:
    return Config(
        dataset=DatasetConfig(task="arithmetic"),
        objective=ObjectiveConfig(**objective),
        training=TrainingConfig({"loss_type": loss_type, "num_generations": 8}),
    )


LOSSES = ("grpo", "dapo", "dr_grpo", "luspo", "cispo", "bnpo", "sapo", "vespo")
CARRIED = {
    "grpo": LOSSES,
    "maxent": ("grpo", "luspo", "dr_grpo", "dapo"),
    "dr_grpo": ("dr_grpo",),
    "xdr": ("dr_grpo", "grpo"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_losses_that_carry_an_objective(name: str) -> None:
    for loss in LOSSES:
        run = {"loss_type": loss, "num_generations": 8, "max_completion_length": 64}
        if loss in CARRIED.get(name, LINEAR_LOSSES):
            assert config(loss, name=name).objective.name == name
            make(name).for_run(**run)  # type: ignore[arg-type]
            continue
        with pytest.raises(ConfigError, match=f"training.loss_type={loss}"):
            config(loss, name=name)
        with pytest.raises(ConfigError, match=f"training.loss_type={loss}"):
            make(name).for_run(**run)  # type: ignore[arg-type]


def test_settings_out_of_range() -> None:
    for wrong, text in (
        ({"name": "passk", "passk_k": 8}, "below training.num_generations=8"),
        ({"name": "passk", "passk_k": 0}, "at least 1"),
        ({"name": "quantile", "quantile_level": 0.0}, "above 0"),
        ({"name": "quantile", "quantile_level": 1.1}, "at most 1"),
        ({"name": "xdr", "xdr_tau": -1.0}, "at least 0"),
        ({"name": "xdr", "xdr_reference": 0.1}, "training.beta=0 there is none"),
        ({"name": "unique", "xdr_tau": 0.1}, "belongs to objective=xdr"),
    ):
        with pytest.raises(ConfigError, match=text):
            config("dr_grpo", **wrong)
    assert config("dr_grpo", name="xdr", xdr_tau=math.inf).objective.xdr_tau == math.inf


def test_needs() -> None:
    assert MaxRL().needs == frozenset()
    assert Unique().needs == Darling().needs == {"modes"}
    assert SEED().needs == {"modes", "policy"}
    assert XDR().needs == frozenset()
    assert XDR(adaptive=True, reference=0.1).needs == {"modes", "reference_logps"}
    for name in REGISTRY:
        check_objective(make(name))
    with pytest.raises(ConfigError, match="Unique needs modes"):
        advantages(Unique(), {key: value for key, value in groups(1).items() if key != "modes_PG"})
    with pytest.raises(ConfigError, match="SEED needs log-probabilities"):
        advantages(SEED(), groups(1), policy_logps_PG=None)
    for made, text in (
        (lambda: PassK(k=0), "PassK: k=0 is out of range: it must be at least 1"),
        (lambda: Quantile(level=0.0), "Quantile: level=0.0 is out of range: it must be above 0 and at most 1"),
        (lambda: XDR(tau=math.nan), "XDR: tau=.* must be at least 0"),
        (lambda: Unique(alpha=-1.0), "Unique: alpha=-1.0 is out of range: it must be at least 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            made()
