"""Sampling with shared prompts: against transformers' `generate`, plain forward passes, and distributions by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    GenerationConfig,
    Lfm2Config,
    LogitsProcessor,
    MambaConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from covey.errors import TrainingError
from covey.rollout import LocalEngine, SamplingSettings, generate, sample
from covey.rollout.local.compatibility import unsupported_reason
from covey.rollout.local.tokens import sample_tokens
from covey.rollout.local.turns import Match, Turn
from forked import run_two
from small_models import ARCHITECTURES, SMALL, VOCABULARY, build

PROMPTS = [[5, 9, 11], list(range(3, 17)), [7, 7, 21, 30, 2, 6]]
ROWS = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2 + [PROMPTS[2]] * 4


def greedy(length: int) -> SamplingSettings:
    return SamplingSettings(length, temperature=0.0)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@pytest.fixture(scope="module")
def qwen3() -> Any:
    return build("qwen3")


def generated(model: Any, prompt: Sequence[int], length: int, **options: Any) -> list[int]:
    """The greedy completion of `generate` for one prompt."""
    config = GenerationConfig(max_new_tokens=length, do_sample=False, pad_token_id=0, **options)
    ids = torch.tensor([list(prompt)])
    with torch.no_grad():
        found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return list(found[0, len(prompt) :].tolist())


@pytest.mark.parametrize("budget", [None, 1, 120])
@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_equals_generate_token_for_token(model: Any, budget: int | None, penalty: float) -> None:
    assert unsupported_reason(model) is None
    unended = [generated(model, prompt, 30, repetition_penalty=penalty) for prompt in PROMPTS]
    eos_token_ids = [unended[0][4], unended[1][11], unended[2][29]]
    expected = {
        tuple(prompt): generated(model, prompt, 30, repetition_penalty=penalty, eos_token_id=eos_token_ids)
        for prompt in PROMPTS
    }
    assert len({len(ids) for ids in expected.values()}) > 1, "some end early, at different places"
    found = sample(
        model,
        ROWS,
        SamplingSettings(30, temperature=0.0, repetition_penalty=penalty),
        eos_token_ids=eos_token_ids,
        max_tokens_in_flight=budget,
    )
    assert [one.ids for one in found] == [expected[tuple(prompt)] for prompt in ROWS]


@pytest.mark.parametrize(
    "truncation", [{}, {"repetition_penalty": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.01}], ids=["all", "truncated"]
)
@pytest.mark.parametrize("budget", [None, 1, 200])
def test_log_probabilities_are_those_of_the_distribution_that_was_sampled_from(
    model: Any, budget: int | None, truncation: dict[str, Any]
) -> None:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.7)])
    if truncation:
        warpers.insert(0, RepetitionPenaltyLogitsProcessor(1.3))
        warpers += [TopKLogitsWarper(12), TopPLogitsWarper(0.9), MinPLogitsWarper(0.01)]
    torch.manual_seed(0)
    found = sample(
        model,
        ROWS,
        SamplingSettings(80, temperature=0.7, logprobs=True, **truncation),
        eos_token_ids=[3, 8],
        max_tokens_in_flight=budget,
    )
    assert len({len(one.ids) for one in found}) > 2
    for prompt, one in zip(ROWS, found, strict=True):
        with torch.no_grad():
            logits_TV = model(input_ids=torch.tensor([prompt + one.ids])).logits[0, len(prompt) - 1 : -1]
        warped = [
            warpers(torch.tensor([[*prompt, *one.ids[:place]]]), logits_TV[place : place + 1])
            for place in range(len(one.ids))
        ]
        expected = torch.cat(warped).log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None]).squeeze(1)
        assert torch.allclose(torch.tensor(one.logps), expected, atol=1e-5)


def test_a_completion_does_not_depend_on_when_others_end(model: Any) -> None:
    def drawn(eos: list[int]) -> list[list[int]]:
        generator = torch.Generator().manual_seed(4)
        found = sample(model, ROWS, SamplingSettings(60), eos_token_ids=eos, generator=generator)
        return [one.ids for one in found]

    cut, whole = drawn([1, 2, 3]), drawn([])
    assert {len(ids) for ids in whole} == {60}
    assert len({len(ids) for ids in cut}) > 3
    for short, long in zip(cut, whole, strict=True):
        assert short == long[: len(short)]
        assert len(short) == 60 or short[-1] in (1, 2, 3)
        assert not {1, 2, 3} & set(short[:-1])


WARPERS = {
    "plain": (SamplingSettings(1, logprobs=True), []),
    "temperature": (SamplingSettings(1, temperature=0.6, logprobs=True), [TemperatureLogitsWarper(0.6)]),
    "top-k": (SamplingSettings(1, top_k=7, logprobs=True), [TopKLogitsWarper(7)]),
    "top-p": (SamplingSettings(1, top_p=0.8, logprobs=True), [TopPLogitsWarper(0.8)]),
    "min-p": (SamplingSettings(1, min_p=0.05, logprobs=True), [MinPLogitsWarper(0.05)]),
    "all": (
        SamplingSettings(1, temperature=1.3, top_k=30, top_p=0.9, min_p=0.02, logprobs=True),
        [TemperatureLogitsWarper(1.3), TopKLogitsWarper(30), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02)],
    ),
}


@pytest.mark.parametrize("vocabulary", [1, 2, 97, 2048])
@pytest.mark.parametrize("name", WARPERS)
def test_sampled_tokens_have_the_distribution_of_transformers_warpers(name: str, vocabulary: int) -> None:
    """Evenly spaced numbers in place of random ones give every token its share, to one in their number."""
    sampling, warpers = WARPERS[name]
    numbers = 20_000
    logits_V = torch.randn(vocabulary, generator=torch.Generator().manual_seed(5)) * 2
    if vocabulary > 2:
        logits_V[vocabulary // 3] = -torch.inf
    expected_1V = logits_V[None].clone()
    for warper in warpers:
        expected_1V = warper(torch.zeros(1, 1, dtype=torch.long), expected_1V)
    uniform_b = (torch.arange(numbers, dtype=torch.float64) + 0.5) / numbers
    found = sample_tokens(logits_V.expand(numbers, -1).clone(), uniform_b, sampling)
    shares_V = torch.bincount(found.tokens_b, minlength=vocabulary) / numbers
    assert torch.allclose(shares_V, expected_1V[0].softmax(-1), atol=2.5 / numbers)
    assert not (shares_V > 0)[expected_1V[0].isinf()].any()
    logps_V = expected_1V[0].log_softmax(-1)
    assert found.logps_b is not None
    assert torch.allclose(found.logps_b, logps_V[found.tokens_b], atol=1e-5)


def test_extreme_random_numbers_give_possible_tokens() -> None:
    logits_bV = torch.full((3, 1000), -torch.inf)
    logits_bV[:, [4, 700]] = 0.0
    found = sample_tokens(logits_bV, torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64), SamplingSettings(1))
    assert found.tokens_b.tolist() == [4, 700, 700]


def test_two_sampled_tokens_follow_the_models_own_distribution(qwen3: Any) -> None:
    """Pearson's chi-square over all pairs of tokens, against their exact probabilities."""
    prompt, count, temperature = [5, 9, 11], 20_000, 0.8
    torch.manual_seed(11)
    found = sample(qwen3, [prompt] * count, SamplingSettings(2, temperature=temperature))
    with torch.no_grad():
        first_V = (qwen3(input_ids=torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1)
        both = torch.tensor([[*prompt, token] for token in range(VOCABULARY)])
        second_VV = (qwen3(input_ids=both).logits[:, -1] / temperature).softmax(-1)
    expected = (first_V[:, None] * second_VV).flatten() * count
    pairs = torch.tensor([one.ids for one in found])
    observed = torch.bincount(pairs[:, 0] * VOCABULARY + pairs[:, 1], minlength=VOCABULARY**2)
    often = expected >= 5
    observed = torch.cat([observed[often], observed[~often].sum()[None]])
    expected = torch.cat([expected[often], expected[~often].sum()[None]])
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    assert freedom > 100
    assert abs(statistic - freedom) < 4.5 * (2 * freedom) ** 0.5


class Recorder(LogitsProcessor):
    """Records the sequences that it gets, by completion, and forbids repeating the last token."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.shown: dict[int, list[list[int]]] = {}

    def select_rows(self, rows_b: torch.Tensor) -> None:
        self.rows = rows_b.tolist()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row, ids in zip(self.rows, input_ids.tolist(), strict=True):
            self.shown.setdefault(row, []).append(ids)
        return scores.scatter(1, input_ids[:, -1:], -torch.inf)


@pytest.mark.parametrize("budget", [None, 1, 150])
def test_processors_get_every_completion_so_far(qwen3: Any, budget: int | None) -> None:
    recorder, generator = Recorder(), torch.Generator().manual_seed(0)
    found = sample(
        qwen3,
        ROWS,
        SamplingSettings(25),
        eos_token_ids=[1, 2],
        pad_token_id=39,
        logits_processors=[recorder],
        max_tokens_in_flight=budget,
        generator=generator,
    )
    for row, (prompt, one) in enumerate(zip(ROWS, found, strict=True)):
        whole = prompt + one.ids
        assert len(recorder.shown[row]) == len(one.ids)
        for place, shown in enumerate(recorder.shown[row]):
            known = whole[: len(prompt) + place]
            assert shown == [39] * (len(shown) - len(known)) + known
        assert all(a != b for a, b in zip(whole[len(prompt) - 1 :], one.ids, strict=False))


def test_a_low_rank_adapter_is_part_of_the_model(qwen3: Any) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    adapted = get_peft_model(build("qwen3"), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    adapted.train()
    assert unsupported_reason(adapted) is None
    assert adapted.training
    found = sample(adapted, ROWS, greedy(20))
    expected = [generated(adapted, prompt, 20) for prompt in PROMPTS]
    assert [one.ids for one in found] == [expected[PROMPTS.index(prompt)] for prompt in ROWS]
    assert expected[0] != generated(qwen3, PROMPTS[0], 20)
    assert adapted.config._attn_implementation == "sdpa"


def test_half_precision_is_close(qwen3: Any) -> None:
    half = build("qwen3").to(torch.bfloat16)
    assert unsupported_reason(half) is None
    found = sample(half, ROWS, SamplingSettings(20, logprobs=True))
    for prompt, one in zip(ROWS, found, strict=True):
        with torch.no_grad():
            logits_TV = qwen3(input_ids=torch.tensor([prompt + one.ids])).logits[0, len(prompt) - 1 : -1]
        expected = logits_TV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None]).squeeze(1)
        assert float((torch.tensor(one.logps) - expected).abs().mean()) < 0.15


def test_sharded_processes_take_part_while_others_have_work(qwen3: Any) -> None:
    asked: list[bool] = []
    forwards: list[int] = []

    def any_has_work(works: bool) -> bool:
        asked.append(works)
        return works or len(asked) < 12

    handle = qwen3.register_forward_hook(lambda *_: forwards.append(1))
    sample(qwen3, [PROMPTS[0]], greedy(5), any_has_work=any_has_work)
    handle.remove()
    assert asked == [True] * 5 + [False] * 7
    assert len(forwards) == 11, "one forward per question but the last"


def test_logits_that_are_not_finite_end_the_run() -> None:
    broken = build("qwen3")
    broken.lm_head.weight.data[3] = torch.nan
    with pytest.raises(TrainingError, match="not finite"):
        sample(broken, ROWS, SamplingSettings(5))
    with pytest.raises(TrainingError, match="not finite"):
        sample(broken, ROWS, greedy(5))


def test_unsupported_models_have_a_reason() -> None:
    softcapped = AutoModelForCausalLM.from_config(Gemma2Config(**SMALL, query_pre_attn_scalar=8))
    assert "softcap" in str(unsupported_reason(softcapped))
    states = {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "vocab_size": VOCABULARY}
    assert unsupported_reason(AutoModelForCausalLM.from_config(MambaConfig(**states))) is not None
    noisy = AutoModelForCausalLM.from_config(Qwen3Config(**SMALL, attention_dropout=0.1))
    assert "dropout" in str(unsupported_reason(noisy.train()))
    assert unsupported_reason(noisy.eval()) is None


def _changed(change: Callable[[Any], None]) -> Any:
    model = build("qwen3")
    change(model)
    return model


def _calling_attention_with(**more: Any) -> Any:
    """A model whose second layer calls its attention with other arguments."""
    model = build("qwen3")
    attention = model.model.layers[1].self_attn
    own = attention.forward
    attention.forward = lambda *args, **kwargs: own(*args, **{**kwargs, **more})
    return model


def _with_prompt_tuning() -> Any:
    from peft import PromptTuningConfig, get_peft_model

    return get_peft_model(build("qwen3"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


class _Narrow(Qwen3ForCausalLM):
    def forward(self, input_ids: Any = None, past_key_values: Any = None) -> Any:
        raise AssertionError("is not called")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: _calling_attention_with(s_aux=torch.zeros(4)), "the model's attention takes s_aux"),
        (lambda: _calling_attention_with(covey_cache=None), "does not pass further arguments on to its attention"),
        (lambda: _calling_attention_with(attention_mask=torch.zeros(1, 1, 1, 1)), "an attention mask of its own"),
        (
            lambda: _changed(lambda model: setattr(model.model.layers[0].self_attn, "sliding_window", 5)),
            "a layer attends over 5 tokens and caches None",
        ),
        (
            lambda: AutoModelForCausalLM.from_config(Qwen3Config(**SMALL, is_encoder_decoder=True)).eval(),
            "is not a plain language model",
        ),
        (
            lambda: _changed(lambda model: setattr(model, "hf_device_map", {"model.layers.0": 0, "model.layers.1": 1})),
            "the model's layers are on several devices",
        ),
        (_with_prompt_tuning, "the adapter puts virtual tokens before the prompt"),
        (lambda: _Narrow(Qwen3Config(**SMALL)).eval(), "_Narrow does not take logits_to_keep, position_ids"),
        (
            lambda: AutoModelForCausalLM.from_config(Lfm2Config(**SMALL, layer_types=["conv", "full_attention"])),
            "the model caches more than keys and values (LinearAttentionLayer)",
        ),
    ],
)
def test_why_prompts_cannot_be_shared(make: Callable[[], Any], reason: str) -> None:
    assert reason in str(unsupported_reason(make()))


def test_what_cannot_be_sampled(qwen3: Any) -> None:
    for prompts, options, message in (
        ([[5], []], {}, "a prompt has no tokens"),
        ([[5], [6]], {"max_lengths": [1, 0]}, "a completion may have no tokens"),
        ([[5], [6]], {"row_seeds": [1]}, "1 seeds for 2 prompts"),
        ([[5], [6]], {"turn": Turn([Match(), Match()]), "max_tokens_in_flight": 9}, "rows of a turn enter all at once"),
    ):
        with pytest.raises(ValueError, match=message):
            sample(qwen3, prompts, greedy(3), **options)


def test_a_model_with_a_generate_of_its_own_is_left_to_it() -> None:
    from peft import LoraConfig, get_peft_model

    class Other(Qwen3ForCausalLM):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    reason = "has a generate of its own"
    assert reason in str(unsupported_reason(Other(Qwen3Config(**SMALL)).eval()))
    model = build("qwen3")
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    assert unsupported_reason(adapted) is None
    for patched in (adapted, model):
        patched.generate = lambda *_, **__: torch.zeros(1, 1)
        assert reason in str(unsupported_reason(adapted))
        del patched.generate
    assert unsupported_reason(adapted) is None


def test_an_attention_that_computes_something_else_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen3 import modeling_qwen3

    odd = AutoModelForCausalLM.from_config(Qwen3Config(**SMALL))
    rotate = modeling_qwen3.apply_rotary_pos_emb
    monkeypatch.setattr(
        modeling_qwen3, "apply_rotary_pos_emb", lambda q, k, *a, **kw: rotate(q * (1 + (q.shape[2] > 1)), k, *a, **kw)
    )
    assert "differ by" in str(unsupported_reason(odd))


def test_mixed_precision_inside_of_the_forward_is_supported() -> None:
    model = build("qwen3")
    model.forward = convert_outputs_to_fp32(torch.autocast("cpu", torch.bfloat16)(model.forward))  # as accelerate does
    assert unsupported_reason(model) is None
    found = sample(model, ROWS, greedy(6))
    assert [len(one.ids) for one in found] == [6] * len(ROWS)


def test_unsupported_settings_use_generate_with_one_warning(tiny_model: str, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    engine = LocalEngine(model, tokenizer)
    prompts = ["What is 3 + 4?", "hello"]
    with caplog.at_level(logging.WARNING, logger="covey"):
        shared = generate(engine, tokenizer, prompts, greedy(12), seed=0)
        assert not caplog.records
        model.generation_config.renormalize_logits = True
        for _ in range(2):
            assert generate(engine, tokenizer, prompts, greedy(12), seed=0) == shared
    (record,) = caplog.records
    assert "speed.shared_prefill does not apply" in record.getMessage()
    assert "renormalize_logits=True" in record.getMessage()


@pytest.mark.slow
def test_two_processes_with_a_sharded_model_wait_for_one_another(tmp_path: Path) -> None:
    assert run_two("sharded_processes.py", folder=tmp_path).split() == ["same", "same"]
