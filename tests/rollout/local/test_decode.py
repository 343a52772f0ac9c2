"""The decoding step from packed weights: against the model's own forward, and when it is not used."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from covey.rollout import SamplingSettings, sample
from covey.rollout.local import sampling as local_rollout
from covey.rollout.local.decode import ROW_MULTIPLE, PlainDecoder, Product, plain_decoder
from small_models import SMALL

SCALED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
CONFIGS: dict[str, PretrainedConfig] = {
    "qwen2": Qwen2Config(**SMALL),
    "qwen3 tied": Qwen3Config(**SMALL, tie_word_embeddings=True),
    "qwen3 biased": Qwen3Config(**SMALL, attention_bias=True),
    "llama": LlamaConfig(**SMALL),
    "llama biased": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True, rope_parameters=SCALED),
    "mistral": MistralConfig(**SMALL, sliding_window=6),
}
PROMPTS = [[5, 9, 11], list(range(3, 17))]
ROWS = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2


def greedy(length: int) -> SamplingSettings:
    return SamplingSettings(length, temperature=0.0)


def build(name: str) -> Any:
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    for parameter in model.parameters():  # biases and norms are initialised as zeros and ones
        if parameter.ndim == 1:
            parameter.data += torch.randn_like(parameter) * 0.3
    return model


def sampled(model: Any, length: int = 24) -> list[list[int]]:
    return [one.ids for one in sample(model, ROWS, greedy(length))]


def generated(model: Any, length: int = 24) -> list[list[int]]:
    config = GenerationConfig(max_new_tokens=length, do_sample=False, pad_token_id=0)
    found = []
    for row in ROWS:
        ids = torch.tensor([row])
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
        found.append(out[0, len(row) :].tolist())
    return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which steps went through the model's modules."""
    taken: list[str] = []
    own, plain = local_rollout.step, PlainDecoder.step

    def through(which: str, step: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def noted(*args: Any) -> torch.Tensor:
            taken.append(which)
            return step(*args)

        return noted

    monkeypatch.setattr(local_rollout, "step", through("modules", own))
    monkeypatch.setattr(PlainDecoder, "step", through("weights", plain))
    return taken


@pytest.mark.parametrize("name", CONFIGS)
def test_only_the_first_step_goes_through_the_modules_and_all_tokens_are_those_of_generate(
    name: str, steps: list[str]
) -> None:
    model = build(name)
    assert sampled(model) == generated(model)
    assert steps == ["modules"] + ["weights"] * 22


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probabilities_are_those_of_a_scoring_pass(name: str) -> None:
    model = build(name)
    drawn = SamplingSettings(40, logprobs=True)
    found = sample(model, ROWS, drawn, eos_token_ids=[3, 8, 20], max_tokens_in_flight=120)
    for row, one in zip(ROWS, found, strict=True):
        with torch.no_grad():
            logits_TV = model(input_ids=torch.tensor([row + one.ids])).logits[0, len(row) - 1 : -1]
        expected = logits_TV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None]).squeeze(1)
        assert torch.allclose(torch.tensor(one.logps), expected, atol=1e-5)


@pytest.mark.parametrize("rows", [1, ROW_MULTIPLE, 2 * ROW_MULTIPLE + 1])
def test_rows_are_padded_to_few_sizes_and_log_probabilities_stay_those_of_a_scoring_pass(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: set[int] = set()
    product = Product.__call__

    def noted(self: Product, x_bI: torch.Tensor, then: str = "none") -> torch.Tensor:
        met.add(len(x_bI))
        return product(self, x_bI, then)

    monkeypatch.setattr(Product, "__call__", noted)
    model = build("qwen3 biased")
    prompts = [PROMPTS[0]] * (rows // 2) + [PROMPTS[1]] * (rows - rows // 2)
    drawn = sample(model, prompts, SamplingSettings(30, logprobs=True), eos_token_ids=[3, 8])
    assert len({len(one.ids) for one in drawn}) > rows // 4, "completions must end one by one for this to say anything"
    for prompt, one in zip(prompts, drawn, strict=True):
        with torch.no_grad():
            logits_TV = model(input_ids=torch.tensor([prompt + one.ids])).logits[0, len(prompt) - 1 : -1]
        expected = logits_TV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None]).squeeze(1)
        assert torch.allclose(torch.tensor(one.logps), expected, atol=1e-5)
    assert met
    assert met <= set(range(ROW_MULTIPLE, rows + ROW_MULTIPLE, ROW_MULTIPLE))


def test_weights_are_packed_again_after_a_training_step() -> None:
    model = build("qwen3 tied")
    before = sampled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(input_ids=torch.tensor([PROMPTS[1]]), labels=torch.tensor([PROMPTS[1]])).loss.backward()
    optimizer.step()
    after = sampled(model)
    assert after == generated(model)
    assert after != before


def replaced_forward(model: Any) -> None:
    forward = model.model.layers[1].mlp.forward
    model.model.layers[1].mlp.forward = lambda x: forward(x) * 2


def other_linear(model: Any) -> None:
    class Noted(torch.nn.Linear):
        pass

    model.model.layers[0].self_attn.q_proj.__class__ = Noted


CHANGES: dict[str, Callable[[Any], object]] = {
    "a forward hook": lambda model: model.model.layers[0].mlp.register_forward_hook(lambda *_: None),
    "a hook before forward": lambda model: model.lm_head.register_forward_pre_hook(lambda *_: None),
    "a replaced forward": replaced_forward,
    "another linear layer": other_linear,
    "compiled": lambda model: model.model.layers[0].compile(backend="eager"),
    "half precision": lambda model: model.to(torch.bfloat16),
    "another activation": lambda model: setattr(model.model.layers[0].mlp, "act_fn", torch.nn.GELU()),
    "fewer layers than configured": lambda model: model.model.layers.pop(1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_goes_through_its_modules(change: str) -> None:
    model = build("qwen3 tied")
    assert plain_decoder(model) is not None
    CHANGES[change](model)
    assert plain_decoder(model) is None


def test_gradient_checkpointing_is_supported_but_not_another_hook_on_the_embeddings() -> None:
    model = build("qwen3 tied")
    plain = sampled(model)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    assert model.model.embed_tokens._forward_hooks
    assert plain_decoder(model) is not None
    assert sampled(model) == plain
    model.model.embed_tokens.register_forward_hook(lambda *_: None)
    assert plain_decoder(model) is None


def test_autocast_and_adapters_go_through_their_modules() -> None:
    from peft import LoraConfig, get_peft_model

    model = build("qwen3 tied")
    with torch.autocast("cpu", torch.bfloat16):
        assert plain_decoder(model) is None
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    assert plain_decoder(adapted) is None
    assert plain_decoder(adapted.get_base_model()) is None


def test_weights_are_reordered_for_modules_in_float32_and_not_in_mixed_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reordered: list[Any] = []

    def column_major(model: Any) -> AbstractContextManager[None]:
        reordered.append(model)
        return nullcontext()

    monkeypatch.setattr(local_rollout, "column_major", column_major)
    model = build("qwen3 tied")
    own = model.forward
    model.forward = lambda *args, **kwargs: own(*args, **kwargs)
    sampled(model)
    assert reordered == [model]

    def mixed(*args: Any, **kwargs: Any) -> Any:  # as accelerate does it, inside of the forward
        with torch.autocast("cpu", torch.bfloat16):
            return own(*args, **kwargs)

    model.forward = mixed
    sampled(model)
    assert reordered == [model]


def test_other_reasons_why_weights_are_not_packed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("qwen3 tied")
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    sampled(model, 3)
    handle.remove()
    model.model.embed_tokens.max_norm = 9.0
    sampled(model, 3)
    model.model.embed_tokens.max_norm = None
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        sampled(model, 3)
    sampled(model, 3)
    reasons = (
        "there are global module hooks",
        "model.embed_tokens is not as Qwen3",
        "this PyTorch comes without oneDNN",
    )
    assert len(caplog.messages) == 3
    assert all(reason in message for reason, message in zip(reasons, caplog.messages, strict=True))


def test_why_weights_are_not_packed_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    model = build("qwen3 tied")
    sampled(model)
    assert not caplog.messages
    model.model.layers[1].mlp.up_proj.register_forward_hook(lambda *_: None)
    assert sampled(model) == sampled(model)
    (message,) = caplog.messages
    assert "through the model's modules, not from packed weights: model.layers.1.mlp.up_proj is not as" in message


def test_a_class_that_computes_something_else_is_detected_at_the_first_step(
    monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    model = build("qwen3 tied")
    plain = sampled(model)
    steps.clear()
    forward = type(model.model.layers[0].mlp).forward
    monkeypatch.setattr(type(model.model.layers[0].mlp), "forward", lambda self, x: -2 * forward(self, x))
    assert sampled(model) == generated(model) != plain
    assert set(steps) == {"modules"}


def test_packed_weights_are_freed_also_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[PlainDecoder]] = []

    class Known(PlainDecoder):
        def __init__(self, model: Any) -> None:
            super().__init__(model)
            made.append(weakref.ref(self))

    monkeypatch.setattr("covey.rollout.local.decode.PlainDecoder", Known)
    model = build("llama biased")
    places = [parameter.data_ptr() for parameter in model.parameters()]
    sampled(model)
    calls = iter(range(5))

    def breaks(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if next(calls, None) is None:
            raise ArithmeticError("in the middle of it")
        return scores

    with pytest.raises(ArithmeticError, match="in the middle"):
        sample(model, ROWS, greedy(9), logits_processors=[breaks])
    gc.collect()
    assert len(made) == 2
    assert [one() for one in made] == [None, None]
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert model.config._attn_implementation == "sdpa"


def test_a_forward_assigned_to_its_own_module_is_supported() -> None:
    """As accelerate leaves a model that it has unwrapped."""
    model = build("qwen3 tied")
    model.forward = model.forward
    assert plain_decoder(model) is not None


def test_weights_packed_for_an_earlier_call_give_the_same_numbers(steps: list[str]) -> None:
    """Also the first step goes the same way: a resumed evaluation has no earlier call."""
    model, packed = build("llama"), dict[Any, Any]()
    drawn = SamplingSettings(24, logprobs=True)
    found = [
        sample(model, ROWS, drawn, generator=torch.Generator().manual_seed(1), packed=packed, eos_token_ids=[])
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert steps == (["modules"] + ["weights"] * 22) * 2
    assert list(packed) == [model]
