"""Adapters that are continued, and adapters that are merged for a while: the frozen weights stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from covey.config import compose
from covey.errors import ModelError
from covey.model.adapters import unmerged_exactly, with_adapters
from small_models import SMALL


def test_adapters_of_a_folder_are_continued_and_those_of_another_model_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**SMALL))
    ids = torch.tensor([[3, 4, 5]])
    made = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    expected = made(ids).logits
    made.save_pretrained(tmp_path)
    lora = compose([f"model.lora.path={tmp_path}"]).config.model.lora
    continued = with_adapters(made.unload(), lora)
    torch.testing.assert_close(continued(ids).logits, expected)
    assert {name.split(".")[-3] for name, one in continued.named_parameters() if one.requires_grad} == {
        "lora_A",
        "lora_B",
    }
    wider = LlamaForCausalLM(LlamaConfig(**{**SMALL, "hidden_size": 2 * SMALL["hidden_size"]}))
    with pytest.raises(ModelError, match=r"do not fit this model: .*size mismatch"):
        with_adapters(wider, lora)


def test_frozen_weights_are_as_before_after_merging_and_unmerging() -> None:
    torch.manual_seed(0)
    model = get_peft_model(nn.Sequential(nn.Linear(32, 32)), LoraConfig(target_modules=["0"], init_lora_weights=False))
    layer = model.base_model.model[0]
    before = layer.get_base_layer().weight.detach().clone()
    model.merge_adapter()
    model.unmerge_adapter()
    assert not torch.equal(layer.get_base_layer().weight, before)  # peft alone
    layer.get_base_layer().weight.data.copy_(before)
    weights = layer.get_base_layer().weight
    with unmerged_exactly(model):
        model.merge_adapter()
        assert not torch.allclose(weights, before)
        model.unmerge_adapter()
    assert layer.get_base_layer().weight is weights
    assert torch.equal(weights, before)


def test_a_model_without_adapters_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    with unmerged_exactly(model):
        model.weight.data.zero_()
    assert not model.weight.any()
