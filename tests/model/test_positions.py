"""Positions count from the first token, under adapters with virtual tokens too; models that read padding are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM, RwkvConfig, RwkvForCausalLM

from covey.model.positions import count_from_first_token, reads_padding
from covey.training.trl.loading import with_fused_head
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


def test_models_that_read_padding_are_found() -> None:
    sizes = {**SIZES, "vocab_size": 64}
    torch.manual_seed(0)
    griffin = RecurrentGemmaConfig(**sizes, lru_width=32, block_types=["recurrent", "attention"], initializer_range=0.3)
    rwkv = RwkvConfig(vocab_size=64, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, context_length=64)
    for model in (RecurrentGemmaForCausalLM(griffin), RwkvForCausalLM(rwkv)):
        with torch.no_grad():
            for weights in model.parameters():
                if weights.ndim > 1:
                    weights.normal_(std=0.3)
        count_from_first_token(model)
        assert "reads the padding on the left" in str(reads_padding(with_fused_head(model)))
    for name in ("Bloom", "FalconH1", "GPT2"):
        model = make(name)
        count_from_first_token(model)
        assert reads_padding(with_fused_head(model)) is None
        assert model.training
