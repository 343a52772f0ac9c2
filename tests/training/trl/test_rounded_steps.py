"""Weights that are trained in half precision: how many of them a step of the learning rate moves is logged."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from covey import GRPOTrainer
from trainers import build_trainer


def noted(model: str, folder: Path, caplog: pytest.LogCaptureFixture, rate: float, **more: Any) -> list[str]:
    settings = {"learning_rate": rate, "max_steps": 1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, **more}
    with caplog.at_level(logging.INFO, logger="covey"):
        trainer = build_trainer(GRPOTrainer, model, folder, prompts=2, save_strategy="no", **settings)
        before = [one.detach().clone() for one in trainer.model.parameters()]
        trainer.train()
    pairs = list(zip(before, trainer.model.parameters(), strict=True))
    moved = sum(int((old != new).sum()) for old, new in pairs) / sum(old.numel() for old, _ in pairs)
    found = [one.getMessage() for one in caplog.records if "rounded away" in one.getMessage()]
    caplog.clear()
    return [*found, str(moved)]


@pytest.mark.parametrize("rate", [1e-6, 3e-5])
def test_the_share_is_what_a_step_moves(
    tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, rate: float
) -> None:
    """Of the weights that have a gradient at all; those of unused tokens have none."""
    text, moved = noted(tiny_model, tmp_path, caplog, rate, model_init_kwargs={"dtype": "bfloat16"})
    share = float(re.search(r"moves ([\d.]+)% of them", text)[1]) / 100  # type: ignore[index]
    assert f"trained in bfloat16: a step of the learning rate {rate:g} moves" in text
    assert "model.dtype=float32" in text
    assert 0 < float(moved) <= share + 0.001
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype="bfloat16")
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    spacing = 2.0 ** (weights.float().abs().log2().floor() - 7)  # 8 significant bits
    assert share == pytest.approx(float((spacing < 2 * rate).float().mean()), abs=0.002)


@pytest.mark.parametrize(
    "settings",
    [
        {"model_init_kwargs": {"dtype": "float32"}},
        {"model_init_kwargs": {"dtype": "bfloat16"}, "more": {"peft_config": LoraConfig(target_modules="all-linear")}},
    ],
    ids=["float32", "adapters"],
)
def test_nothing_is_said_of_float32(
    tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    assert len(noted(tiny_model, tmp_path, caplog, 1e-6, **settings)) == 1
