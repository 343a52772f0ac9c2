"""The decoding step that works from packed weights: against the model's own forward, and when it is not taken."""

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

from covey.rollout import Ends, Sampling, decode, sample
from covey.rollout import local as local_rollout
from covey.rollout.decode import TOGETHER, PlainDecoder, Product, plain_decoder

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
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
GREEDY = Sampling(temperature=0.0)


def build(name: str) -> Any:
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    for parameter in model.parameters():  # biases and norms are made as zeros and ones, and would hide a mistake
        if parameter.ndim == 1:
            parameter.data += torch.randn_like(parameter) * 0.3
    return model


def written(model: Any, length: int = 24) -> list[list[int]]:
    return [one.ids for one in sample(model, ROWS, sampling=GREEDY, ends=Ends(length, [], 0))]


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
    assert written(model) == generated(model)
    assert steps == ["modules"] + ["weights"] * 22


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probabilities_are_those_of_a_scoring_pass(name: str) -> None:
    model = build(name)
    ends = Ends(40, [3, 8, 20], 0)
    found = sample(model, ROWS, sampling=Sampling(), ends=ends, return_logps=True, max_tokens_in_flight=120)
    for row, one in zip(ROWS, found, strict=True):
        with torch.no_grad():
            logits_SV = model(input_ids=torch.tensor([row + one.ids])).logits[0, len(row) - 1 : -1]
        expected = logits_SV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None]).squeeze(1)
        assert torch.allclose(torch.tensor(one.logps), expected, atol=1e-5)


@pytest.mark.parametrize("rows", [1, TOGETHER, 2 * TOGETHER + 1])
def test_products_meet_few_numbers_of_rows_and_the_numbers_stay_those_of_a_scoring_pass(
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
    drawn = sample(model, prompts, sampling=Sampling(), ends=Ends(30, [3, 8], 0), return_logps=True)
    assert len({len(one.ids) for one in drawn}) > rows // 4, "completions must end one by one for this to say anything"
    for prompt, one in zip(prompts, drawn, strict=True):
        with torch.no_grad():
            logits_SV = model(input_ids=torch.tensor([prompt + one.ids])).logits[0, len(prompt) - 1 : -1]
        expected = logits_SV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None]).squeeze(1)
        assert torch.allclose(torch.tensor(one.logps), expected, atol=1e-5)
    assert met
    assert met <= set(range(TOGETHER, rows + TOGETHER, TOGETHER))


def test_a_training_step_between_two_calls_is_seen() -> None:
    model = build("qwen3 tied")
    before = written(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(input_ids=torch.tensor([PROMPTS[1]]), labels=torch.tensor([PROMPTS[1]])).loss.backward()
    optimizer.step()
    after = written(model)
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
def test_what_is_not_plain_goes_through_its_modules(change: str) -> None:
    model = build("qwen3 tied")
    assert plain_decoder(model) is not None
    CHANGES[change](model)
    assert plain_decoder(model) is None


def test_gradient_checkpointing_is_no_hindrance_but_another_hook_on_the_embeddings_is() -> None:
    model = build("qwen3 tied")
    plain = written(model)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    assert model.model.embed_tokens._forward_hooks
    assert plain_decoder(model) is not None
    assert written(model) == plain
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

    def columns_first(model: Any) -> AbstractContextManager[None]:
        reordered.append(model)
        return nullcontext()

    monkeypatch.setattr(local_rollout, "columns_first", columns_first)
    model = build("qwen3 tied")
    own = model.forward
    model.forward = lambda *args, **kwargs: own(*args, **kwargs)
    written(model)
    assert reordered == [model]

    def mixed(*args: Any, **kwargs: Any) -> Any:  # as accelerate does it, inside of the forward
        with torch.autocast("cpu", torch.bfloat16):
            return own(*args, **kwargs)

    model.forward = mixed
    written(model)
    assert reordered == [model]


def test_why_weights_are_not_packed_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    decode._say_once.cache_clear()
    model = build("qwen3 tied")
    written(model)
    assert not caplog.messages
    model.model.layers[1].mlp.up_proj.register_forward_hook(lambda *_: None)
    assert written(model) == written(model)
    (said,) = caplog.messages
    assert "through the model's modules, not from packed weights: model.layers.1.mlp.up_proj is not as" in said


def test_a_class_that_computes_something_else_is_found_out_at_the_first_step(
    monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    model = build("qwen3 tied")
    plain = written(model)
    steps.clear()
    forward = type(model.model.layers[0].mlp).forward
    monkeypatch.setattr(type(model.model.layers[0].mlp), "forward", lambda self, x: -2 * forward(self, x))
    assert written(model) == generated(model) != plain
    assert set(steps) == {"modules"}


def test_nothing_is_left_behind_not_even_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[PlainDecoder]] = []

    class Known(PlainDecoder):
        def __init__(self, model: Any) -> None:
            super().__init__(model)
            made.append(weakref.ref(self))

    monkeypatch.setattr("covey.rollout.decode.PlainDecoder", Known)
    model = build("llama biased")
    places = [parameter.data_ptr() for parameter in model.parameters()]
    written(model)
    calls = iter(range(5))

    def breaks(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if next(calls, None) is None:
            raise ArithmeticError("in the middle of it")
        return scores

    with pytest.raises(ArithmeticError, match="in the middle"):
        sample(model, ROWS, sampling=GREEDY, ends=Ends(9, [], 0), logits_processors=[breaks])
    gc.collect()
    assert len(made) == 2
    assert [one() for one in made] == [None, None]
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert model.config._attn_implementation == "sdpa"


def test_a_modules_own_forward_hung_onto_it_changes_nothing() -> None:
    """As accelerate leaves a model that it has unwrapped."""
    model = build("qwen3 tied")
    model.forward = model.forward
    assert plain_decoder(model) is not None
