"""The trainer's own sampling: with top_k=1, the same completions as stock TRL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer as TRLGRPOTrainer

from covey import GRPOTrainer
from covey.config import SpeedConfig
from trainers import build_trainer

GREEDY: dict[str, Any] = {"top_k": 1, "max_steps": 1, "save_strategy": "no", "gradient_accumulation_steps": 4}


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("transformers' generate was called")


def completions_of(kind: type[TRLGRPOTrainer], model: str, folder: Path, *, stock: bool, **more: Any) -> list[str]:
    trainer = build_trainer(kind, model, folder, prompts=4, more=more.pop("more", None), **{**GREEDY, **more})
    torch.manual_seed(1)
    for name, parameter in trainer.model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            torch.nn.init.normal_(
                parameter, std=1.0
            )  # with weights as small as they are, the model would only repeat itself
    if not stock:
        trainer.model.generate = refuse
    trainer.train()
    return [completion[0]["content"] for completion in trainer._logs["completion"]]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_greedy_completions_are_stock_trls(tiny_model: str, tmp_path: Path, checkpointing: bool) -> None:
    settings = {"gradient_checkpointing": checkpointing, "repetition_penalty": 1.1}
    ours = completions_of(GRPOTrainer, tiny_model, tmp_path / "ours", stock=False, **settings)
    stock = completions_of(TRLGRPOTrainer, tiny_model, tmp_path / "stock", stock=True, **settings)
    assert ours == stock
    assert len(set(ours)) > 1


def test_shared_prefill_off_uses_generate(tiny_model: str, tmp_path: Path) -> None:
    more = {"speed": SpeedConfig(shared_prefill=False)}
    with pytest.raises(AssertionError, match="generate was called"):
        completions_of(GRPOTrainer, tiny_model, tmp_path, stock=False, more=more)


def test_options_that_only_generate_knows_are_kept(tiny_model: str, tmp_path: Path) -> None:
    settings = {"generation_kwargs": {"no_repeat_ngram_size": 2}}
    ours = completions_of(GRPOTrainer, tiny_model, tmp_path / "ours", stock=True, **settings)
    assert ours == completions_of(TRLGRPOTrainer, tiny_model, tmp_path / "stock", stock=True, **settings)


def test_the_models_mode_and_attention_are_as_before(tiny_model: str, tmp_path: Path) -> None:
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, **GREEDY)
    before = trainer.model.config._attn_implementation
    torch.manual_seed(0)
    trainer.train()
    assert trainer.model.config._attn_implementation == before
    assert trainer.model.training
