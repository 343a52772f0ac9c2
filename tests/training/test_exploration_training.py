"""The exploration objectives within the trainer.

Pinned here: under every loss that carries an objective, the gradient of a step is that of its independent formula, with
completions excluded; the reference of xDr.GRPO leaves the KL term in the loss; metrics and weights are logged; an
infinite reward excludes its completion alone; modes come from the rewards, and a run without any is refused.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import objective_formulas as formulas
import scripted
from covey.config import compose
from covey.config.groups.objectives import LINEAR_LOSSES
from covey.errors import ConfigError, TrainingError
from covey.objective import make
from covey.training.advantages import objective_arguments
from covey.training.examination import near_argmax
from scripted import (
    MAX_LENGTH,
    TOTAL,
    ScriptedTrainer,
    assert_same_gradient,
    mode_of,
    reward_with_modes,
    scripted_reward,
)
from second_pass import logps_of


def trained(
    model: str, folder: Path, objective: Any, reward: Any = reward_with_modes, **settings: Any
) -> ScriptedTrainer:
    return scripted.trained(model, folder, more={"objective": objective, "reward_funcs": reward}, **settings)


FORMULAS: dict[str, Any] = {
    "dr_grpo": lambda g: formulas.advantages(g["rewards"]),
    "maxrl": lambda g: formulas.advantages(g["rewards"]) / np.mean(g["rewards"]),
    "xdr": lambda g: (
        len(g["rewards"])
        * formulas.xdr_weights(g["rewards"], g["shares"], 0.05, g["limit"])
        * formulas.advantages(g["rewards"])
    ),
    "passk": lambda g: formulas.passk(g["rewards"], 2),
    "unique": lambda g: formulas.unique(g["rewards"], g["modes"], 1.0),
    "darling": lambda g: formulas.darling(g["rewards"], g["modes"], 0.0),
    "seed": lambda g: formulas.seed(g["rewards"], g["modes"], g["logps"], 1.0),
    "quantile": lambda g: formulas.quantile(g["rewards"], 0.4),
    "unlikely": lambda g: formulas.unlikely(g["rewards"], g["logps"], 0.25),
}
LOSSES = {"dr_grpo": ("dr_grpo",), "xdr": ("dr_grpo", "grpo")}


def expected_gradient(trainer: ScriptedTrainer, source: str, name: str, loss_type: str, masked: bool) -> Any:
    """Of -Σ advantage · s over all completions, with s and the factor in front as the loss has them."""
    policy = AutoModelForCausalLM.from_pretrained(source)
    policy.load_state_dict(trainer.started_from)
    total, tokens = torch.zeros(()), 0
    for start in range(0, TOTAL, 8):
        group = trainer.generated[start : start + 8]
        tokens += sum(len(ids) for _, ids in group if not (masked and len(ids) == MAX_LENGTH))
        kept = [
            (prompt, ids)
            for prompt, ids in group
            if scripted_reward(ids) is not None and not (masked and len(ids) == MAX_LENGTH)
        ]
        logps = [logps_of(policy, prompt, ids) for prompt, ids in kept]
        modes = [mode_of(ids) for _, ids in kept]
        given = {
            "rewards": [scripted_reward(ids) for _, ids in kept],
            "shares": [len(ids) if loss_type == "dr_grpo" else 1 for _, ids in kept],
            "limit": MAX_LENGTH if loss_type == "dr_grpo" else 1,
            "modes": [-1 if mode is None else int(mode) for mode in modes],
            "logps": [float(one.detach().double().mean()) for one in logps],
        }
        advantages = torch.tensor(FORMULAS[name](given)).float()
        scores = torch.stack([one.mean() if loss_type == "grpo" else one.sum() for one in logps])
        total = total - (advantages * scores).sum()
    factor = {"dr_grpo": 1 / (TOTAL * MAX_LENGTH), "dapo": 1 / tokens, "cispo": 1 / tokens}.get(loss_type, 1 / TOTAL)
    (total * factor).backward()
    return {key: p.grad for key, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_gradient_under_every_loss_that_carries_it(tiny_model: str, tmp_path: Path, name: str) -> None:
    for loss_type in LOSSES.get(name, LINEAR_LOSSES):
        masked = loss_type in ("dr_grpo", "dapo")  # half of the cases without truncated completions
        trainer = trained(
            tiny_model,
            tmp_path / loss_type,
            make(name),
            loss_type=loss_type,
            mask_truncated_completions=masked,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=3,
            epsilon_high=5.0,  # cispo clips from there on
        )
        assert_same_gradient(trainer.gradient, expected_gradient(trainer, tiny_model, name, loss_type, masked))


def test_an_infinite_temperature_trains_as_dr_grpo(tiny_model: str, tmp_path: Path) -> None:
    settings = {"loss_type": "dr_grpo", "mask_truncated_completions": True}
    infinite = trained(tiny_model, tmp_path / "a", make("xdr", tau=math.inf), **settings)
    plain = trained(tiny_model, tmp_path / "b", make("dr_grpo"), **settings)
    assert all(torch.equal(plain.gradient[name], gradient) for name, gradient in infinite.gradient.items())


def test_the_reference_of_the_weights_leaves_the_kl_term(tiny_model: str, tmp_path: Path) -> None:
    """What β adds to the gradient is the same with and without λ, and λ changes the gradient."""
    found = {}
    for reference in (0.0, 0.5):
        for beta in (0.3, 1e-8):
            objective = make("xdr", tau=0.1, reference=reference)
            folder = tmp_path / f"{reference}-{beta}"
            found[reference, beta] = trained(tiny_model, folder, objective, loss_type="dr_grpo", beta=beta)
    for name in found[0.0, 0.3].gradient:
        added = [found[reference, 0.3].gradient[name] - found[reference, 1e-8].gradient[name] for reference in (0, 0.5)]
        torch.testing.assert_close(*added, atol=2e-5, rtol=1e-3)
    changed = found[0.5, 0.3].gradient["model.embed_tokens.weight"] - gradient_of(found[0.0, 0.3])
    assert changed.abs().max() > 1e-4
    assert found[0.5, 0.3].state.log_history[0]["kl"] > 0.01  # TRL's own
    with pytest.raises(ConfigError, match=r"xdr_reference=0.5 needs the reference model.*training.beta above 0"):
        trained(tiny_model, tmp_path / "none", make("xdr", reference=0.5), loss_type="dr_grpo", beta=0.0)


def gradient_of(trainer: ScriptedTrainer) -> torch.Tensor:
    return trainer.gradient["model.embed_tokens.weight"]


def test_what_a_step_logs(tiny_model: str, tmp_path: Path) -> None:
    trainer = trained(tiny_model, tmp_path / "a", make("xdr", tau=0.2, adaptive=True), loss_type="dr_grpo")
    row, columns = trainer.state.log_history[0], trainer.latest_completions
    weights = torch.tensor(columns["xdr_weight"]).view(3, 8)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(3))
    rewards = torch.tensor([math.nan if one is None else one for one in columns["reward_with_modes"]]).view(3, 8)
    assert (weights[rewards.isnan()] == 0).all()
    entropies = torch.special.entr(weights).sum(dim=1)
    assert row["objective/effective_completions"] == pytest.approx(float(entropies.exp().mean()), rel=1e-5)
    wrong = (weights * (rewards < 1)).sum(dim=1).mean()
    assert row["objective/incorrect_mass"] == pytest.approx(float(wrong), rel=1e-5)
    assert row["objective/excluded_completions"] == float(rewards.isnan().sum()) > 0
    assert row["objective/length_tilt"] != 0
    assert 0 < row["objective/log_odds"] < 1 / 0.2 * math.log(4)
    assert set(columns["mode"]) == {None, "0", "1"}
    advantages = torch.tensor(columns["advantage"])
    assert (advantages[rewards.isnan().flatten()] == 0).all()
    unique = trained(tiny_model, tmp_path / "b", make("unique"), loss_type="dr_grpo")
    assert len(unique.latest_completions["unique_weight"]) == TOTAL
    assert unique.state.log_history[0]["objective/log_odds"] == 0


@pytest.mark.parametrize("name", ["grpo", "maxent", "xdr", "dr_grpo", "quantile"])
def test_an_infinite_reward_excludes_its_completion(tiny_model: str, tmp_path: Path, name: str) -> None:
    """The gradient is as if that completion had no reward."""
    gradients = []
    for value in (math.inf, -math.inf, None):

        def reward(completion_ids: list[list[int]], value: Any = value, **_: Any) -> list[float | None]:
            return [value if at == 3 else scripted_reward(ids) for at, ids in enumerate(completion_ids)]

        loss = "grpo" if name == "maxent" else "dr_grpo"
        trainer = trained(tiny_model, tmp_path / str(value), make(name), reward, loss_type=loss)
        gradients.append(trainer.gradient)
        advantages = trainer.latest_completions["advantage"]
        assert all(math.isfinite(one) for one in advantages)
        assert advantages[3] == 0
        without = sum(one is None for one in map(scripted_reward, (ids for _, ids in trainer.generated)))
        extra = scripted_reward(trainer.generated[3][1]) is not None
        assert trainer.state.log_history[0]["objective/excluded_completions"] == without + extra
    for other in gradients[:2]:
        assert all(torch.equal(other[key], gradient) for key, gradient in gradients[2].items())


def test_without_modes_there_is_an_error_in_one_paragraph(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"The objective Unique needs the answer mode .* log_extra\(.mode."
    ) as caught:
        trained(tiny_model, tmp_path, make("unique"), scripted.reward, loss_type="dr_grpo")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("asked", ["objective=unique", "objective=seed", "objective=darling", "xdr_adaptive=true"])
def test_a_run_without_modes_is_refused_before_it_starts(asked: str) -> None:
    choice = [asked] if asked.startswith("objective") else ["objective=xdr", f"objective.{asked}"]
    config = compose([*choice, "dataset=arithmetic"]).config
    with pytest.raises(ConfigError, match=r"compares right answers by their modes, and no reward of this run names"):
        objective_arguments(config)
    for funcs in ("[countdown]", "[format, mine.py:graded]"):
        config = compose([*choice, "dataset=arithmetic", f"rewards.funcs={funcs}"]).config
        assert objective_arguments(config)["objective"] is not None


def test_the_warning_near_the_argmax() -> None:
    """τ = 0.05 with half of the limit has the exponent 10; 0.4 has 1.25; the loss grpo has the share 1."""
    warning = near_argmax(make("xdr", tau=0.05), "dr_grpo", 64)
    assert warning is not None
    assert "e^10 times" in warning
    assert "32 of 64 tokens (a guess" in warning
    assert "xdr_tau=0.25 would make it 2" in warning
    assert near_argmax(make("xdr", tau=0.05), "dr_grpo", 64, mean_length=12.0) is None  # 3.75
    assert "e^4.06" in str(near_argmax(make("xdr", tau=0.05), "dr_grpo", 64, mean_length=13.0))
    assert near_argmax(make("xdr", tau=0.4), "dr_grpo", 64) is None
    assert "e^5 times" in str(near_argmax(make("xdr", tau=0.2), "grpo", 64))
    assert near_argmax(make("xdr", tau=0.05, reference=0.2), "dr_grpo", 64) is None
    assert near_argmax(make("xdr", tau=0.0), "dr_grpo", 64) is None  # asked for
    assert near_argmax(make("maxent"), "grpo", 64) is None
