"""Without dropout, two forwards in training mode are equal, and equal to one in evaluation mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM, PhimoeConfig, PhimoeForCausalLM

from covey.model.device import disable_dropout
from covey.training.replaced import all_replaced
from tiny_architectures import RATE, SIZES, make

EXPERTS = {**SIZES, "vocab_size": 64, "num_local_experts": 4}
MODELS: dict[str, Any] = {
    "rates that the config holds": lambda: make("Falcon"),
    "numbers of modules": lambda: make("SeedOss"),
    "layers that are left out": lambda: make("OPT"),
    "jitter": lambda: MixtralForCausalLM(MixtralConfig(**EXPERTS, router_jitter_noise=0.3)),
    "experts that are drawn": lambda: PhimoeForCausalLM(PhimoeConfig(**EXPERTS)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_forwards_in_training_mode_are_equal(kind: str) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]().train()
    ids = torch.randint(3, 60, (4, 20))
    with torch.no_grad():
        assert not torch.equal(model(ids).logits, model(ids).logits)
        evaluated = model.eval()(ids).logits
        disable_dropout(model)
        model.train()
        assert torch.equal(model(ids).logits, model(ids).logits)
        assert torch.equal(model(ids).logits, evaluated)
    assert model.training
    assert model.base_model.training  # as gradient checkpointing needs


def test_other_modules_than_those_of_trl() -> None:
    model = nn.Sequential(nn.Dropout1d(0.5), nn.AlphaDropout(0.5), nn.Dropout(0.5))
    disable_dropout(model)
    assert torch.equal(model(torch.ones(2, 3, 4)), torch.ones(2, 3, 4))


def test_the_config_is_saved_with_its_own_rates() -> None:
    model = make("Falcon")
    changed = disable_dropout(model)
    assert model.config.hidden_dropout == 0
    with all_replaced(changed):
        assert model.config.hidden_dropout == model.config.attention_dropout == RATE
    assert model.config.hidden_dropout == 0
