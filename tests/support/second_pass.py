"""Two optimiser steps on one generation batch, and an independent gradient of the second one.

The trainer's completions and rewards are those of `scripted.py`. By the second step the policy differs from the
old policy, so that ratios, clipping and sequence-level weights all matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from scripted import MAX_LENGTH, TOTAL, ScriptedTrainer, scripted_reward, scripted_trainer

LOW, HIGH = 0.05, 0.1
CISPO_MAX = 1.05
SAPO_POS, SAPO_NEG = 2.0, 3.0
VESPO_POS, VESPO_NEG = (1.5, 2.0), (2.5, 1.0)  # power and rate
BETA = 0.2


@dataclass(frozen=True)
class Case:
    """A loss of TRL's, and its settings."""

    loss: str
    level: str = "token"
    scale: str = "group"
    beta: float = BETA
    settings: dict[str, Any] = field(default_factory=dict)
    """More of GRPOConfig."""

    @property
    def name(self) -> str:
        return f"{self.loss}-{self.level}-{self.scale}"

    def training(self) -> dict[str, Any]:
        """The fields of GRPOConfig."""
        return {
            "loss_type": self.loss,
            "importance_sampling_level": self.level,
            "scale_rewards": self.scale,
            "beta": self.beta,
            "epsilon": LOW,
            "epsilon_high": CISPO_MAX if self.loss == "cispo" else HIGH,
            "sapo_temperature_pos": SAPO_POS,
            "sapo_temperature_neg": SAPO_NEG,
            "vespo_k_pos": VESPO_POS[0],
            "vespo_lambda_pos": VESPO_POS[1],
            "vespo_k_neg": VESPO_NEG[0],
            "vespo_lambda_neg": VESPO_NEG[1],
            **self.settings,
        }


CASES = (
    Case("grpo"),
    Case("grpo", level="sequence"),  # GSPO
    Case("grpo", scale="batch", settings={"use_bias_correction_kl": False}),
    Case("bnpo"),
    Case("dr_grpo", scale="none"),  # Dr. GRPO
    Case("dapo", beta=0.0),
    Case("cispo"),
    Case("sapo"),
    Case("vespo"),
    Case("luspo", level="sequence"),
)


class _EachStep(TrainerCallback):
    def __init__(self, trainer: ScriptedTrainer) -> None:
        self.trainer = trainer
        self.weights: list[dict[str, torch.Tensor]] = []
        self.gradients: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        self.weights.append({name: value.detach().clone() for name, value in model.state_dict().items()})
        self.gradients.append(
            {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
        )


@dataclass(frozen=True)
class TwoSteps:
    """The record of two steps over one generation batch."""

    generated: list[tuple[list[int], list[int]]]
    """Prompt and completion ids, of this process."""
    weights: list[dict[str, torch.Tensor]]
    """Before each step."""
    gradients: list[dict[str, torch.Tensor]]


def two_steps(model: str, folder: Path, case: Case, **settings: Any) -> TwoSteps:
    """Train two steps of SGD on one generation batch."""
    defaults = {
        "num_iterations": 2,
        "max_steps": 2,
        "optim": "sgd",
        "learning_rate": 0.3,
        "lr_scheduler_type": "constant",
    }
    trainer = scripted_trainer(model, folder, **{**defaults, **case.training(), **settings})
    steps = _EachStep(trainer)
    trainer.add_callback(steps)
    trainer.train()
    return TwoSteps(trainer.generated, steps.weights, steps.gradients)


def expected_gradient(
    source: str, steps: TwoSteps, case: Case, generated: Sequence[tuple[list[int], list[int]]]
) -> Any:
    """The gradient of the second step: plain autograd, row by row, from the formulas of the papers.

    Returns:
        The gradient by parameter, and the ratios of all tokens, `[N]`.
    """
    then, now, reference = (AutoModelForCausalLM.from_pretrained(source) for _ in range(3))
    then.load_state_dict(steps.weights[0])
    now.load_state_dict(steps.weights[1])
    advantages = advantages_by_hand([scripted_reward(ids) for _, ids in generated], case.scale)
    rows, ratios = [], []
    for (prompt, ids), advantage in zip(generated, advantages, strict=True):
        with torch.no_grad():
            old, ref = logps_of(then, prompt, ids), logps_of(reference, prompt, ids)
        new = logps_of(now, prompt, ids)
        ratios.append(torch.exp(new - old).detach())
        rows.append(policy_term(case, new, old, advantage) + case.beta * kl_term(case, new, old, ref))
    reduce(case.loss, rows).backward()
    return {name: p.grad for name, p in now.named_parameters() if p.grad is not None}, torch.cat(ratios)


def logps_of(model: torch.nn.Module, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Log-probabilities of the completion's tokens: one row, no padding, the plain forward pass."""
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float(), dim=-1)[torch.arange(len(completion)), completion]


def advantages_by_hand(rewards: Sequence[float | None], scale: str) -> list[float]:
    """Rewards minus their group's mean, over the standard deviation (n - 1) of the group, the batch, or nothing."""
    grid = np.array([math.nan if r is None else r for r in rewards]).reshape(-1, 8)
    centred = grid - np.nanmean(grid, axis=1, keepdims=True)
    if scale == "group":
        centred = centred / (np.nanstd(grid, axis=1, ddof=1, keepdims=True) + 1e-4)
    elif scale == "batch":
        centred = centred / (np.nanstd(grid, ddof=1) + 1e-4)
    return [float(a) for a in np.nan_to_num(centred).flatten()]


def ratio_of(case: Case, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Of each token, or of the whole completion: the geometric mean over its tokens (GSPO, arXiv:2507.18071)."""
    return torch.exp((new - old).mean() if case.level == "sequence" else new - old)


def kl_term(case: Case, new: torch.Tensor, old: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """k3 of each token, weighted by the ratio unless that is switched off (DeepSeek-V3.2, arXiv:2512.02556)."""
    k3 = torch.exp(ref - new) - (ref - new) - 1
    return k3 * ratio_of(case, new, old) if case.settings.get("use_bias_correction_kl", True) else k3


def policy_term(case: Case, new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """The loss of each token of a completion (one value for all where the ratio is the sequence's), without the KL."""
    ratio = ratio_of(case, new, old)
    if case.loss == "cispo":  # MiniMax-M1, arXiv:2506.13585: a REINFORCE term under a weight that is cut off above
        return -ratio.clamp(max=CISPO_MAX).detach() * advantage * new
    if case.loss == "sapo":  # arXiv:2511.20347: a soft gate of slope 1 at a ratio of 1
        temperature = SAPO_POS if advantage > 0 else SAPO_NEG
        return -4 / temperature * torch.sigmoid(temperature * (ratio - 1)) * advantage
    if case.loss == "vespo":  # arXiv:2602.10693: a weight w^k · exp(λ (1 - w)) of the whole sequence's ratio w
        power, rate = VESPO_POS if advantage >= 0 else VESPO_NEG
        whole = torch.exp((new - old).sum()).detach()
        return -(whole**power) * torch.exp(rate * (1 - whole)) * advantage * new
    clipped = ratio.clamp(1 - LOW, 1 + HIGH)  # arXiv:2402.03300
    return -torch.minimum(ratio * advantage, clipped * advantage)


def reduce(loss: str, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """One number from the tokens of all completions. `rows` hold one value per token."""
    if loss in ("grpo", "sapo"):
        return torch.stack([row.mean() for row in rows]).mean()
    if loss == "luspo":  # arXiv:2602.05261
        return torch.stack([row.sum() for row in rows]).mean()
    if loss == "dr_grpo":  # arXiv:2503.20783: a constant length
        return torch.cat(list(rows)).sum() / (TOTAL * MAX_LENGTH)
    return torch.cat(list(rows)).mean()  # arXiv:2503.14476: every token of the batch alike
