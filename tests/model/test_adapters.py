"""Adapters that are merged for a while leave the frozen weights below them as they were, to the last bit."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from covey.model.adapters import unmerged_exactly


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
