"""The adaptive KL weight by hand; the KL of a step over any micro-batches; the limit that ends a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from covey.config import Config, DatasetConfig, ObjectiveConfig, TrainingConfig
from covey.config.groups.objectives import KLConfig
from covey.errors import ConfigError
from covey.objective import AdaptiveKL, kl_per_token
from covey.runlog.checkpoint import mark_complete
from covey.training.advantages import KLMonitor, objective_arguments


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.1, 0.04),  # at the target
        (0.11, 0.04 * (1 + 0.1 * 64 / 1000)),  # a tenth above it
        (0.09, 0.04 * (1 - 0.1 * 64 / 1000)),
        (5.0, 0.04 * (1 + 0.2 * 64 / 1000)),  # far above: bounded
        (0.0, 0.04 * (1 - 0.2 * 64 / 1000)),
    ],
)
def test_adaptive_by_hand(kl: float, expected: float) -> None:
    controller = AdaptiveKL(target=0.1, horizon=1000, step_size=0.2)
    assert controller.next_beta(0.04, kl, 64) == pytest.approx(expected, rel=1e-9)


def test_a_kl_that_is_not_a_number_leaves_beta() -> None:
    """Also where a step's tokens have one NaN, and for a controller of the user's own."""
    controller = AdaptiveKL(target=0.1, horizon=1000, step_size=0.2)
    assert controller.next_beta(0.04, math.nan, 64) == 0.04
    assert controller.next_beta(0.04, math.inf, 64) == pytest.approx(0.04 * (1 + 0.2 * 64 / 1000))
    monitor = KLMonitor(controller, None, 0.04)
    logps, mask = torch.tensor([[-1.0, math.nan]]), torch.ones(1, 2)
    monitor.add(logps, torch.tensor([[-1.5, -1.0]]), mask)
    kl, beta = monitor.end_step(0.04, lambda totals: totals)
    assert kl is not None
    assert math.isnan(kl)
    assert beta == 0.04
    monitor.add(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -2.0]]), mask)
    assert monitor.end_step(beta, lambda totals: totals) == (0.0, pytest.approx(0.04 * (1 - 0.2 / 1000)))


def test_beta_stays_above_zero_and_recovers() -> None:
    controller = AdaptiveKL(target=0.1, horizon=10, step_size=0.5)
    assert controller.next_beta(0.04, 0.0, 64) == 1e-8  # a factor of 1 - 0.5·6.4 would be negative
    assert controller.next_beta(1e-8, 1.0, 10) == pytest.approx(1.5e-8)


@pytest.mark.parametrize("wrong", [{"target": 0.0}, {"horizon": -1.0}, {"step_size": math.nan}])
def test_adaptive_settings_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}=.* must be a finite number above 0"):
        AdaptiveKL(**{"target": 0.1, **wrong})


def test_the_estimate_is_the_divergence_from_the_reference() -> None:
    """Its expectation under the policy is KL(policy ‖ reference), not the other way round; it is never negative."""
    policy, reference = Categorical(torch.tensor([0.7, 0.2, 0.1])), Categorical(torch.tensor([0.2, 0.3, 0.5]))
    estimates = kl_per_token(policy.logits, reference.logits)
    assert (estimates >= 0).all()
    found = (policy.probs * estimates).sum()
    torch.testing.assert_close(found, kl_divergence(policy, reference))
    assert not torch.isclose(found, kl_divergence(reference, policy))


def watched(batches: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], **settings: Any) -> tuple[Any, KLMonitor]:
    watch = KLMonitor(settings.pop("controller", None), settings.pop("stop_above", None), beta=0.1)
    for batch in batches:
        watch.add(*batch)
    return watch.end_step(0.1, lambda totals: totals), watch


def test_the_kl_of_a_step_does_not_depend_on_micro_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    logps, ref = -torch.rand(2, 6, 5, generator=generator)
    mask = (torch.arange(5) < torch.tensor([[5], [1], [2], [0], [4], [3]])).int()
    ref[1, 3] = math.nan  # padding
    controller = AdaptiveKL(target=1e-3, horizon=100, step_size=0.2)
    whole, _ = watched([(logps, ref, mask)], controller=controller)
    cut, watch = watched([(logps[:1], ref[:1], mask[:1]), (logps[1:], ref[1:], mask[1:])], controller=controller)
    difference = (ref - logps)[mask.bool()]
    assert whole[0] == pytest.approx((difference.exp() - difference - 1).mean().item(), rel=1e-6)
    assert cut == pytest.approx(whole, rel=1e-12)
    assert whole[1] == pytest.approx(0.1 * (1 + 0.2 * 6 / 100))
    assert watch.end_step(0.1, lambda totals: totals) == (None, 0.1)  # nothing is carried over


def test_a_step_without_tokens_changes_nothing() -> None:
    empty = torch.zeros(2, 3)
    found, watch = watched([(empty, empty, empty)], controller=AdaptiveKL(target=0.1), stop_above=1.0)
    assert found == (None, 0.1)
    assert not watch.exceeded


@pytest.mark.parametrize(("kl", "stops"), [(0.9, False), (1.1, True), (math.inf, True), (math.nan, True)])
def test_the_limit(kl: float, stops: bool) -> None:
    watch = KLMonitor(None, 1.0, beta=0.1)
    watch.add(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1))
    watch.end_step(0.1, lambda totals: torch.tensor([kl, 1.0, 1.0]))
    assert watch.exceeded is stops


def test_the_last_good_checkpoint_is_the_one_before_the_weights_that_exploded(tmp_path: Path) -> None:
    """Step 12 measures the weights after step 11, so checkpoint-11 is bad; checkpoint-9 is incomplete."""
    for step in (6, 8, 9, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if step != 9:
            mark_complete(tmp_path / f"checkpoint-{step}", step)
    _, watch = watched([(torch.zeros(1, 1), torch.full((1, 1), 3.0), torch.ones(1, 1))], stop_above=2.0)
    text = str(watch.error(12, tmp_path))
    assert "was 16.09 nats per token in step 12, above the limit of 2" in text  # e³ - 3 - 1
    assert f"{tmp_path / 'checkpoint-8'}:" in text
    assert "no checkpoint from before" in str(watch.error(7, tmp_path))


def config(beta: float, **kl: Any) -> Config:
    return Config(
        dataset=DatasetConfig(task="arithmetic"),
        objective=ObjectiveConfig(kl=KLConfig(**kl)),
        training=TrainingConfig({"beta": beta}),
    )


def test_the_config_becomes_what_the_trainer_takes() -> None:
    built = objective_arguments(
        config(0.05, controller="adaptive", kl_target=0.2, kl_horizon=500, kl_ctl_step_size=0.3)
    )
    assert built["kl_controller"] == AdaptiveKL(target=0.2, horizon=500, step_size=0.3)
    assert built["stop_above_kl"] is None
    assert objective_arguments(config(0.05, stop_above=3))["stop_above_kl"] == 3.0


@pytest.mark.parametrize("kl", [{"controller": "adaptive"}, {"stop_above": 2.0}])
def test_without_a_reference_there_is_no_kl(kl: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"training.beta=0 there is no reference model.*set training.beta above 0"):
        config(0.0, **kl)
    controller = AdaptiveKL(target=0.1) if "controller" in kl else None
    with pytest.raises(ConfigError, match="with beta=0 there is none: set beta above 0"):
        KLMonitor(controller, kl.get("stop_above"), beta=0.0)
