"""Positions count from the first token, under adapters with virtual tokens too; other scores are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM, RwkvConfig, RwkvForCausalLM

from covey.model.positions import count_from_first_token, score_gaps
from covey.training.trl.trainer import with_fused_head
from tiny_architectures import SIZES, make


def logits_without_and_with_padding(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.arange(5, 12)[None]
    padded, mask = torch.nn.functional.pad(ids, (4, 0)), torch.nn.functional.pad(torch.ones_like(ids), (4, 0))
    with torch.no_grad():
        alone = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -7:]
        return alone, model(input_ids=padded, attention_mask=mask).logits[:, -7:]


@pytest.mark.parametrize("kind", [None, PromptTuningConfig, PrefixTuningConfig])
@pytest.mark.parametrize("name", ["GPT2", "Qwen3"])
def test_padding_on_the_left_changes_nothing(name: str, kind: Any) -> None:
    base = make(name).eval()
    model = base if kind is None else get_peft_model(base, kind(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    alone, padded = logits_without_and_with_padding(model)
    assert kind is None or not torch.allclose(alone, base(torch.arange(5, 12)[None]).logits, atol=1e-2)
    if name == "GPT2":
        assert not torch.allclose(padded, alone, atol=1e-2)
    count_from_first_token(model)
    alone, padded = logits_without_and_with_padding(model)
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)


def test_models_that_are_not_scored_as_they_sample() -> None:
    sizes = {**SIZES, "vocab_size": 64}
    torch.manual_seed(0)
    rwkv = RwkvConfig(vocab_size=64, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, context_length=64)
    griffin = RecurrentGemmaConfig(**sizes, lru_width=32, block_types=["recurrent", "attention"], logits_soft_cap=2.0)
    gaps = []
    for model in (RwkvForCausalLM(rwkv), RecurrentGemmaForCausalLM(griffin)):
        with torch.no_grad():
            for weights in (one for one in model.parameters() if one.ndim > 1):
                weights.normal_(std=0.3)
        count_from_first_token(model)
        gaps.append(score_gaps(with_fused_head(model), 1.0))
    assert gaps[0][0] == 0  # its state goes through padding
    assert gaps[0][1] > 0.1
    assert gaps[1][0] > 0.1  # its cap has a name of its own
    for name in ("Bloom", "FalconH1", "GPT2", "Gemma2", "Granite"):
        model = make(name)
        count_from_first_token(model)
        assert score_gaps(with_fused_head(model), 1.0) == (0, 0)
        assert model.training
