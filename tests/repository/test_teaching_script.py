"""`examples/grpo_from_scratch.py`: its gradient is the trainer's, and it learns.

The trainer takes one step of plain gradient descent with learning rate 1, so that the weights move by minus the
gradient: whatever it shares, packs or leaves out on the way, the sum must be that of the page of plain PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey import GRPOTrainer
from load_scripts import load_script
from trainers import build_trainer


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("examples/grpo_from_scratch.py")


def test_advantages_by_hand(script: ModuleType) -> None:
    found = script.advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0], [2.0, 2.0, 2.0, 2.0]]))
    deviation = (4 * 0.25 / 3) ** 0.5
    expected = 0.5 / (deviation + 1e-4)
    torch.testing.assert_close(found, torch.tensor([[1, -1, -1, 1], [0, 0, 0, 0]]) * expected)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_its_gradient_is_the_trainers(script: ModuleType, tiny_model: str, tmp_path: Path, temperature: float) -> None:
    seen: dict[str, list[Any]] = {}

    def uneven(prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        seen.update(prompts=prompts, ids=completion_ids)
        return [float(sum(ids) % 7) for ids in completion_ids]

    trainer = build_trainer(
        GRPOTrainer, tiny_model, tmp_path, prompts=2, reward=uneven, loss_type="grpo", per_device_train_batch_size=8,
        max_steps=1, optim="sgd", learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0, beta=0.0,
        temperature=temperature,
    )  # fmt: skip
    before = {name: weights.detach().clone() for name, weights in trainer.model.named_parameters()}
    trainer.train()
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    prompts = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
        for prompt in seen["prompts"]
    ]
    rewards = torch.tensor([float(sum(ids) % 7) for ids in seen["ids"]])
    advantages = script.advantages(rewards.view(2, 4)).view(-1)
    assert advantages.abs().min() > 0.01
    script.loss(model, prompts, seen["ids"], advantages, temperature=temperature).backward()
    difference = norm = torch.zeros(())
    for name, weights in model.named_parameters():
        moved = before[name] - dict(trainer.model.named_parameters())[name].detach()
        difference = difference + (moved - weights.grad).square().sum()
        norm = norm + weights.grad.square().sum()
    assert norm > 0
    assert (difference / norm).sqrt() < 1e-4


@pytest.mark.slow
def test_it_learns(script: ModuleType) -> None:
    rewards = script.train(steps=12, prompts_per_step=8, group=8, learning_rate=1e-3, seed=0)
    assert sum(rewards[-4:]) / 4 > sum(rewards[:3]) / 3 + 0.15
