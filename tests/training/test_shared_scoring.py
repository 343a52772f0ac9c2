"""Log-probabilities with shared prompts against stock TRL's: the same values, entropies and gradients."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from covey import GRPOTrainer
from covey.config import SpeedConfig
from covey.model import group_attention
from covey.model.group_attention import GroupLayout, PackedGroup
from covey.training import scoring
from covey.training.scoring import SharedScoring, pack
from forked import run_two
from scored import ARCHITECTURES, SIZES, gradients, make, make_rows, plain, shared
from trainers import build_trainer


def assert_same(model: torch.nn.Module, rows: Any, tolerance: float = 1e-5) -> None:
    expected = plain(model, *rows)
    expected_grads = gradients(model, expected)
    found = shared(model, *rows)
    found_grads = gradients(model, found)
    for one, other in zip(expected[:2], found[:2], strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=tolerance)
    assert expected_grads.keys() == found_grads.keys()
    scale = max(float(gradient.norm()) for gradient in expected_grads.values())
    for name, gradient in expected_grads.items():
        assert float((found_grads[name] - gradient).norm()) <= tolerance * max(float(gradient.norm()), 1e-2 * scale), (
            name
        )


@pytest.mark.parametrize("checkpointing", [None, False, True], ids=["keeps", "recomputes", "recomputes-reentrant"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_same_numbers_as_the_plain_path(name: str, lora: bool, checkpointing: bool | None) -> None:
    model: Any = make(name)
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    if checkpointing is not None:
        if lora:
            model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
    assert_same(model, make_rows())


@pytest.mark.parametrize("tied", [False, True])
def test_an_untied_head_and_tied_embeddings(tied: bool) -> None:
    model = make("qwen3", tie_word_embeddings=tied)
    assert_same(model, make_rows())
    assert ("lm_head.weight" in dict(model.named_parameters())) is not tied


def test_temperature_scale_and_softcap_of_the_head_are_the_plain_paths() -> None:
    torch.manual_seed(0)
    granite = GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0, attention_multiplier=0.2))
    add_fused_lm_head(granite, temperature=0.6, outputs=("log_probs", "entropy"))
    assert_same(granite, make_rows())
    assert_same(make("gemma3", temperature=0.7, final_logit_softcapping=2.0), make_rows())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_blocks_of_attention_do_not_change_the_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the blocks for CPU caches nor those for GPU kernels."""
    monkeypatch.setattr(group_attention, "CPU_BLOCK", 4)
    for how in ("sequential", "padded"):
        monkeypatch.setattr(scoring, "GroupLayout", partial(GroupLayout, how=how))
        assert_same(make(name), make_rows())


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_split_attention_is_masked_attention(kv_heads: int, scaling: float | None) -> None:
    """Against a full mask over the packed row, by hand, in double precision."""
    groups = (PackedGroup(5, (3, 70, 1)), PackedGroup(40, ()), PackedGroup(1, (2,)))
    layout = GroupLayout(groups)
    owner: list[tuple[int, int | None]] = []  # of each token: its group, and its completion unless it is the prompt's
    for number, group in enumerate(groups):
        owner += [(number, None)] * group.prompt
        for row, size in enumerate(group.completions):
            owner += [(number, row)] * size
    seen = torch.tensor(
        [[key <= asks and owner[key] in (owner[asks], (owner[asks][0], None)) for key in range(len(owner))]
         for asks in range(len(owner))]
    )  # fmt: skip
    torch.manual_seed(0)
    shapes = [(1, len(owner), heads, 8) for heads in (4, kv_heads, kv_heads)]
    states = [torch.randn(shape, dtype=torch.float64).transpose(1, 2).requires_grad_() for shape in shapes]
    wide = [states[0], *(one.repeat_interleave(4 // kv_heads, 1) for one in states[1:])]
    right = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=seen, scale=scaling)
    weights = torch.randn_like(right)
    found = group_attention.group_attention(*states, layout, scaling=scaling)
    assert type(found.grad_fn).__name__ == "_SplitAttentionBackward"
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(found, states, weights), torch.autograd.grad(right, states, weights), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 4, 7])
def test_rows_per_forward(rows: int) -> None:
    model = make("qwen2")
    batch = make_rows()
    with torch.no_grad():
        expected = plain(model, *batch)
        found = shared(model, *batch, rows_per_forward=rows)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)
    assert found[2] is None


def test_bfloat16_is_within_its_own_rounding() -> None:
    model, rows = make("qwen3"), make_rows()
    with torch.no_grad():
        exact, _, _ = plain(model, *rows)
        with torch.autocast("cpu", torch.bfloat16):
            rounded, _, _ = plain(model, *rows)
            found, _, _ = shared(model, *rows)
    assert found.dtype == torch.float32
    assert 0 < float((found - exact).abs().mean()) < 1.5 * float((rounded - exact).abs().mean())
    cast = model.to(torch.bfloat16)
    with torch.no_grad():
        found, _, _ = shared(cast, *rows)
        rounded, _, _ = plain(cast, *rows)
    assert float((found - exact).abs().mean()) < 1.5 * float((rounded - exact).abs().mean())


def test_a_packed_row_holds_every_token_once() -> None:
    """By hand: two rows that share a prompt, one whose prompt differs by one token, without padding."""
    ids = torch.tensor([[0, 5, 6, 11, 12, 0], [0, 5, 6, 13, 0, 0], [4, 5, 6, 14, 15, 16]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    packed = pack(ids, mask, 3)
    assert packed is not None
    assert packed.layout.groups == (PackedGroup(2, (2, 1)), PackedGroup(3, (3,)))
    assert ids.flatten()[packed.token_index].tolist() == [5, 6, 11, 12, 13, 4, 5, 6, 14, 15, 16]
    assert packed.position.tolist() == [0, 1, 2, 3, 2, 0, 1, 2, 3, 4, 5]
    assert packed.predictor.tolist() == [1, 2, 1, 7, 8, 9]
    assert packed.target_index.tolist() == [0, 1, 3, 6, 7, 8]


def test_padding_elsewhere_is_not_packed() -> None:
    ids = torch.ones(2, 6, dtype=torch.long)
    for hole in [(0, 2), (1, 4)]:  # the prompt's last token; a completion token with others after it
        mask = torch.ones_like(ids)
        mask[hole] = 0
        assert pack(ids, mask, 3) is None


def test_calls_without_a_layout_are_the_models_own() -> None:
    model, rows = make("gemma3").eval(), make_rows()
    with torch.no_grad():
        before = model(rows[0], attention_mask=rows[1]).logits
        shared(model, *rows)
        assert torch.equal(model(rows[0], attention_mask=rows[1]).logits, before)
        assert torch.equal(model.generate(rows[0][:1], max_new_tokens=4, do_sample=False)[:, :-4], rows[0][:1])


class _LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, torch.Tensor):
                self.most = max(self.most, value.numel())
        return out


@pytest.mark.slow
def test_logits_of_a_large_vocabulary_are_never_held_for_all_tokens() -> None:
    torch.manual_seed(0)
    vocabulary, generations, width = 150_000, 8, 160
    model = Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "vocab_size": vocabulary, "tie_word_embeddings": True}))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.randint(vocabulary, (generations, 8 + width))
    ids[:, :8] = ids[0, :8]
    with _LargestTensor() as seen:
        logps, _, _ = shared(model, ids, torch.ones_like(ids), width)
        logps.sum().backward()
    assert vocabulary * SIZES["hidden_size"] <= seen.most < generations * width * vocabulary / 4


@pytest.mark.parametrize(
    ("build", "more", "reason"),
    [
        (lambda: make("llama", attn_implementation="eager"), {}, "(eager) is not one of transformers'"),
        (lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2)), {}, "no rotary position embeddings"),
        (lambda: make("qwen3"), {"compute_aux_loss": True}, "the model takes compute_aux_loss"),
        (lambda: make("qwen3"), {"pixel_values": torch.ones(1)}, "the model takes pixel_values"),
        (lambda: torch.nn.DataParallel(make("qwen3")), {}, "DataParallel"),
        (lambda: torch.nn.Linear(1, 1), {}, "Linear is not a transformers model"),
        (lambda: _with_other_attention(), {}, "2 of the model's 3 layers"),
        (lambda: _with_sinks(), {}, "the model's attention takes s_aux"),
        (lambda: _with_a_window_in_the_mask_only(), {}, "is called without its sliding window"),
        (lambda: _with_prompt_tuning(), {}, "tokens of its own"),
    ],
)
def test_an_unsupported_model_is_logged_once(
    build: Any, more: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    shared_scoring, model = SharedScoring(), build()
    with caplog.at_level(logging.WARNING, logger="covey"), torch.no_grad():
        assert shared_scoring.score(model, *make_rows(), **more) is None
        assert shared_scoring.score(model, *make_rows(), **more) is None
    (record,) = [record for record in caplog.records if record.name.startswith("covey")]
    assert record.getMessage().startswith("speed.shared_scoring does not apply: ")
    assert reason in record.getMessage()


def _with_other_attention() -> PreTrainedModel:
    """A layer whose attention cannot be replaced."""
    model = make("qwen3")
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    return model


def _with_sinks() -> PreTrainedModel:
    """A layer with attention sinks."""
    model = make("qwen3")
    attention = model.model.layers[1].self_attn
    original = attention.forward
    attention.forward = lambda *args, **kwargs: original(*args, **kwargs, s_aux=torch.zeros(4))
    return model


def _with_a_window_in_the_mask_only() -> PreTrainedModel:
    """A layer whose sliding window is in the mask only."""
    model = make("gemma3")
    model.model.layers[0].self_attn.sliding_window = None
    return model


def _with_prompt_tuning() -> Any:
    return get_peft_model(make("qwen3"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


def test_off_is_off() -> None:
    assert SharedScoring(on=False).score(make("qwen3"), *make_rows()) is None


@pytest.mark.slow
def test_two_processes_have_the_mean_of_their_gradients(tmp_path: Path) -> None:
    """Under DDP and under FSDP2, with gradient checkpointing."""
    run_two("scoring_processes.py", tmp_path, folder=tmp_path)
    ids, mask, width = make_rows()
    model = make("gemma3")
    halves = [gradients(model, plain(model, ids[rows], mask[rows], width)) for rows in (slice(0, 5), slice(5, None))]
    for way in ("ddp", "fsdp2"):
        found = torch.load(tmp_path / f"{way}.pt", weights_only=True)
        assert found.keys() == halves[0].keys()
        for name, gradient in found.items():
            expected = (halves[0][name] + halves[1][name]) / 2
            assert float((gradient - expected).norm()) <= 1e-5 * float(expected.norm()), (way, name)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"gradient_checkpointing": True, "beta": 0.05, "num_iterations": 2, "loss_type": "grpo"},
    {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "beta": 0.05},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["defaults", "reference", "cut-groups"])
def test_training_is_the_same_with_prompts_shared_or_not(
    tiny_model: str, tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    trainers = {}
    for sharing in (True, False):
        speed = SpeedConfig(shared_scoring=sharing)
        more = {"per_device_train_batch_size": 8, "max_steps": 3, "save_strategy": "no", **settings}
        trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=8, more={"speed": speed}, **more)
        torch.manual_seed(7)
        with caplog.at_level(logging.WARNING, logger="covey"):
            trainer.train()
        trainers[sharing] = trainer
    assert "shared_scoring" not in caplog.text
    ours, plainly = (trainers[sharing] for sharing in (True, False))
    for (name, one), (_, other) in zip(ours.model.named_parameters(), plainly.model.named_parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4, msg=name)  # Adam makes a step of 1e-2 of any gradient
    for one, other in zip(ours.state.log_history[:-1], plainly.state.log_history[:-1], strict=True):
        for key in {"loss", "grad_norm", "entropy", "kl", "reward"} & (one.keys() | other.keys()):
            assert one[key] == pytest.approx(other[key], rel=1e-4, abs=1e-6), key
