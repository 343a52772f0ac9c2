"""Mixed precision by the GPU's ability, and casting each weight once."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from covey.model.device import casting_once, half_precision, on_meta
from covey.model.group_attention import unsupported_reason
from small_models import SMALL


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A GPU with this compute capability."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: request.param)


A100, T4 = (8, 0), (7, 5)


@pytest.mark.parametrize(
    ("gpu", "bf16", "fp16", "dtype", "expected"),
    [
        (A100, None, False, None, "bf16"),
        (A100, None, True, None, "fp16"),
        (A100, False, False, None, None),
        (T4, None, False, None, "fp16"),
        (T4, None, False, "float32", "fp16"),
        (T4, None, False, "bfloat16", None),  # loss scaling needs float32 weights
        (T4, True, False, None, "bf16"),  # the user's wish
        (T4, False, False, None, None),
    ],
    indirect=["gpu"],
)
def test_the_16_bit_numbers_of_mixed_precision(
    gpu: None, bf16: bool | None, fp16: bool, dtype: str | None, expected: str | None
) -> None:
    assert half_precision(bf16, fp16, dtype) == expected


def test_weights_are_cast_once_for_many_forwards_frozen_ones_too(tiny_model: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)
    weight = model.model.layers[0].mlp.up_proj.weight
    products: list[torch.Tensor] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.ops.aten._to_copy.default and args[0] is weight:
                products.append(args[0])
            return func(*args, **(kwargs or {}))

    ids = torch.tensor([[5, 6, 7]])
    with Watch(), casting_once(model, torch.bfloat16):
        first = model(input_ids=ids).logits
        again = model(input_ids=ids).logits
    assert len(products) == 1
    assert torch.equal(first, again)
    assert not weight.requires_grad
    assert model.lm_head.weight.requires_grad
    with casting_once(model, None):
        assert not torch.is_autocast_enabled("cpu")


def test_a_model_on_several_devices_is_not_scored_packed(tiny_model: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert unsupported_reason(model) is None
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1}
    assert unsupported_reason(model) == "the model's layers are on several devices"
    model.hf_device_map = {"": 0}
    assert unsupported_reason(model) is None


class Zero3:
    """The config that transformers reads in a process that trains with ZeRO-3."""

    config: Mapping[str, object] = MappingProxyType({})

    def is_zero3(self) -> bool:
        return True


def test_a_model_on_the_meta_device_is_not_partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO-3 transformers hands every new model to DeepSpeed, which copies weights that are not there."""
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # asked for, it cannot be imported, whether installed or not
    zero3 = Zero3()
    set_hf_deepspeed_config(zero3)  # which keeps a weak reference
    try:
        with pytest.raises(ImportError, match="deepspeed"), torch.device("meta"):
            AutoModelForCausalLM.from_config(Qwen3Config(**SMALL))
        with on_meta():
            empty = AutoModelForCausalLM.from_config(Qwen3Config(**SMALL))
    finally:
        unset_hf_deepspeed_config()
    assert {weight.device.type for weight in empty.parameters()} == {"meta"}
    assert empty.get_input_embeddings().weight.shape == (SMALL["vocab_size"], SMALL["hidden_size"])


def test_models_are_made_on_the_meta_device_in_one_place(root: Path) -> None:
    """By a `torch.device("meta")` elsewhere a process that trains with ZeRO-3 would fail."""
    found = [path for path in (root / "src").rglob("*.py") if re.search(r"""["']meta["']""", path.read_text("utf-8"))]
    assert [path.name for path in found] == ["device.py"]
