"""A copy of a model's architecture, pickled as to another process: with the same weights it computes the same."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import EngineError
from covey.model.reasoning_vocab.vocabulary import vocabulary_of
from covey.rollout.process.model_copy import ModelCopy
from small_models import ARCHITECTURES, build

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]])


def copied(model: Any, tokenizer: Any = None) -> Any:
    """A copy with random weights, as another process would build it."""
    made = pickle.loads(pickle.dumps(ModelCopy.of(model, tokenizer)))
    found = made.build(torch.device("cpu"))
    with torch.no_grad():
        for weight in found.parameters():
            weight.fill_(3.0)
    return found


def give(model: Any, weights: Any) -> None:
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in weights:
            own.pop(name).copy_(tensor)
    assert not own


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_same_logits(name: str, tied: bool) -> None:
    config = ARCHITECTURES[name].__class__(**{**ARCHITECTURES[name].to_dict(), "tie_word_embeddings": tied})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    found = copied(model)
    give(found, model.named_parameters())
    assert torch.equal(found(IDS).logits, model(IDS).logits)
    shared = found.get_output_embeddings().weight is found.get_input_embeddings().weight
    assert shared == tied
    assert not found.training


def test_what_the_config_does_not_say() -> None:
    """Weights of other dtypes, buffers that were changed, attention, and how it generates."""
    model = build("qwen3")
    model.to(torch.bfloat16).model.norm.to(torch.float32)
    model.register_buffer("bias_of_experts", torch.arange(3.0))
    model.model.rotary_emb.inv_freq.mul_(0.5)
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = [4, 9]
    found = copied(model)
    assert found.model.norm.weight.dtype == torch.float32
    assert found.get_input_embeddings().weight.dtype == torch.bfloat16
    assert torch.equal(found.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    assert found.config._attn_implementation == "eager"
    assert found.generation_config.eos_token_id == [4, 9]
    assert model.config is not found.config


def test_a_head_that_is_not_tied_any_more() -> None:
    """The config still says so; with an adapter that trains the whole head, for one."""
    torch.manual_seed(0)
    config = ARCHITECTURES["qwen3"].__class__(**{**ARCHITECTURES["qwen3"].to_dict(), "tie_word_embeddings": True})
    model = AutoModelForCausalLM.from_config(config).eval()
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    found = copied(model)
    give(found, model.named_parameters())
    assert torch.equal(found(IDS).logits, model(IDS).logits)
    options = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "task_type": "CAUSAL_LM"}
    with pytest.warns(UserWarning, match="tied layer"):
        with_adapter = peft.get_peft_model(AutoModelForCausalLM.from_config(config), peft.LoraConfig(**options))
    head = with_adapter.base_model.model.lm_head.modules_to_save.default.weight
    assert head is not with_adapter.get_input_embeddings().weight
    assert "lm_head.weight" in dict(copied(with_adapter).named_parameters())


def test_adapters_are_left_out() -> None:
    """Their merged weights have the names of a checkpoint."""
    plain = build("llama")
    expected = dict(plain.named_parameters())
    model = peft.get_peft_model(plain, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    found = copied(model)
    assert {name for name, _ in found.named_parameters()} == {name.replace(".base_layer", "") for name in expected}


def test_a_class_that_sharding_made() -> None:
    """FSDP gives a module a class of its own, which derives from the module's and which nothing can import."""
    model = build("llama")
    kind = type(model)
    model.__class__ = type(f"FSDP{kind.__name__}", (kind,), {})
    assert type(copied(model)) is kind


def test_a_reasoning_vocabulary(wide_starter: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(wide_starter)
    expected = vocabulary_of(model)
    found = vocabulary_of(copied(model, AutoTokenizer.from_pretrained(wide_starter)))
    assert expected is not None
    assert found is not None
    assert found is not expected
    assert torch.equal(found.bias_table(0.7), expected.bias_table(0.7))
    assert (found.transitions == expected.transitions).all()


def test_what_cannot_be_copied() -> None:
    with pytest.raises(EngineError, match="transformers models, not a Linear"):
        ModelCopy.of(torch.nn.Linear(2, 2), None)  # type: ignore[arg-type]
    model = build("llama")
    model.is_quantized = True
    with pytest.raises(EngineError, match="quantised"):
        ModelCopy.of(model, None)  # type: ignore[arg-type]
