"""The trainer's own sampling: with top_k=1, the same completions as stock TRL's."""

from __future__ import annotations

import logging
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOTrainer as TRLGRPOTrainer

from covey import GRPOTrainer
from covey.config import SpeedConfig
from covey.environments.chat import ToolChat
from covey.rollout import SamplingSettings
from covey.rollout.local.compatibility import options_of, unsupported_option
from covey.rollout.local.turns import Conversation, Match
from covey.training.trl import trainer as trl_trainer
from covey.training.trl.generation import PolicyEngine, TRLEngine, generate_turn, settings_of
from small_models import SMALL
from tool_trainers import asked, tool_trainer
from trainers import build_trainer

GREEDY: dict[str, Any] = {"top_k": 1, "max_steps": 1, "save_strategy": "no", "gradient_accumulation_steps": 4}


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("transformers' generate was called")


def completions_of(kind: type[TRLGRPOTrainer], model: str, folder: Path, *, stock: bool, **more: Any) -> list[str]:
    trainer = build_trainer(kind, model, folder, prompts=4, more=more.pop("more", None), **{**GREEDY, **more})
    torch.manual_seed(1)
    for name, parameter in trainer.model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            torch.nn.init.normal_(
                parameter, std=1.0
            )  # with weights as small as they are, the model would only repeat itself
    if not stock:
        trainer.model._prepare_generation_config = refuse  # the first that transformers' generate calls
    trainer.train()
    return [completion[0]["content"] for completion in trainer._logs["completion"]]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_greedy_completions_are_stock_trls(tiny_model: str, tmp_path: Path, checkpointing: bool) -> None:
    settings = {"gradient_checkpointing": checkpointing, "repetition_penalty": 1.1}
    ours = completions_of(GRPOTrainer, tiny_model, tmp_path / "ours", stock=False, **settings)
    stock = completions_of(TRLGRPOTrainer, tiny_model, tmp_path / "stock", stock=True, **settings)
    assert ours == stock
    assert len(set(ours)) > 1


def test_shared_prefill_off_uses_generate(tiny_model: str, tmp_path: Path) -> None:
    more = {"speed": SpeedConfig(shared_prefill=False)}
    with pytest.raises(AssertionError, match="generate was called"):
        completions_of(GRPOTrainer, tiny_model, tmp_path, stock=False, more=more)


def test_options_that_only_generate_knows_are_kept(tiny_model: str, tmp_path: Path) -> None:
    settings = {"generation_kwargs": {"no_repeat_ngram_size": 2}}
    ours = completions_of(GRPOTrainer, tiny_model, tmp_path / "ours", stock=True, **settings)
    assert ours == completions_of(TRLGRPOTrainer, tiny_model, tmp_path / "stock", stock=True, **settings)


def test_a_generate_of_the_models_own_is_used(
    tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, **GREEDY)
    own = trainer.processing_class("mine", add_special_tokens=False)["input_ids"]

    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.cat([input_ids, torch.tensor([own]).expand(len(input_ids), -1)], dim=1)

    trainer.model.generate = generate
    with caplog.at_level(logging.WARNING, logger="covey"):
        trainer.train()
    assert {completion[0]["content"] for completion in trainer._logs["completion"]} == {"mine"}
    (found,) = [one.getMessage() for one in caplog.records if "shared_prefill" in one.getMessage()]
    assert "this Qwen3ForCausalLM has a generate of its own" in found


def test_each_completion_has_its_limit_and_steps_end_a_conversation(tiny_model: str, tmp_path: Path) -> None:
    """The policy's weights are those of the current step."""
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, **GREEDY)
    limits, prompts = [1, 3, 2], [[5, 6, 7]] * 2 + [[8]]
    whole, _ = generate_turn(trainer, prompts, text_only=True) or ([], None)
    cut, _ = generate_turn(trainer, prompts, text_only=True, max_lengths=limits) or ([], None)
    assert cut == [ids[:most] for ids, most in zip(whole, limits, strict=True)]
    matches = []
    for steps in (0, 1):
        with trainer.engine.conversation():
            generate_turn(trainer, prompts, text_only=True, max_lengths=limits)
            trainer.state.global_step += steps
            matches += trainer.engine._conversation.find([[5, 6, 7, *cut[1], 4]], trainer.engine.version)
    assert [match.known for match in matches] == [3 + len(cut[1]) - 1, 0]


@pytest.mark.parametrize("tools", [True, False])
def test_a_trainer_with_tools_keeps_keys_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: bool
) -> None:
    """Every turn calls a tool; the completions are those of a trainer that reads each turn from its start."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    monkeypatch.setattr(ToolChat, "parse", lambda *_, **__: dict(said))
    monkeypatch.setattr(trl_trainer, "parse", lambda *_, **__: dict(said))
    known, find, found = list[int](), Conversation.find, []

    def spy(self: Conversation, *args: Any) -> list[Match]:
        matches = find(self, *args)
        known.extend(match.known for match in matches)
        return matches

    monkeypatch.setattr(Conversation, "find", spy)
    for keeps in (True, False):
        if not keeps:
            monkeypatch.setattr(PolicyEngine, "conversation", lambda _: nullcontext())
        more = {} if tools else {"tools": None}
        trainer = tool_trainer(GRPOTrainer, tmp_path / str(keeps), asked("one"), max_completion_length=200, more=more)
        trainer.eos_token_ids = [*trainer.eos_token_ids, *range(30, len(trainer.processing_class), 12)]
        torch.manual_seed(0)
        trainer.train()
        found.append([(episode.ids, episode.turns) for episode in trainer._episodes.newest])
        if keeps:
            assert len([one for one in known if one]) >= (6 if tools else 0)
            assert tools or not known
            known.clear()
    assert known == []
    assert found[0] == found[1]
    assert not tools or max(turns for _, turns in found[0]) > 2


def test_the_models_mode_and_attention_are_as_before(tiny_model: str, tmp_path: Path) -> None:
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, **GREEDY)
    before = trainer.model.config._attn_implementation
    torch.manual_seed(0)
    trainer.train()
    assert trainer.model.config._attn_implementation == before
    assert trainer.model.training


def test_settings_are_read_as_generate_reads_them() -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SMALL))
    asked = GenerationConfig(max_new_tokens=7, do_sample=True)
    assert settings_of(options_of(model, asked)).top_k == 50
    model.generation_config = GenerationConfig(repetition_penalty=1.2, top_k=20, eos_token_id=[4, 5], pad_token_id=0)
    asked.update(temperature=0.5, top_k=0, min_p=0.1)
    options = options_of(model, asked)
    assert unsupported_option(options) is None
    assert settings_of(options, [5, 6]) == SamplingSettings(
        7, temperature=0.5, top_k=0, min_p=0.1, repetition_penalty=1.2, stop_token_ids=(4, 5, 6)
    )
    assert settings_of(options_of(model, GenerationConfig(max_new_tokens=7))).temperature == 0.0
    for option in ({"no_repeat_ngram_size": 2}, {"num_beams": 2}, {"suppress_tokens": [3]}, {"stop_strings": ["x"]}):
        reason = unsupported_option(options_of(model, GenerationConfig(max_new_tokens=7, **option)))
        assert next(iter(option)) in str(reason)
    model.generation_config.no_repeat_ngram_size = 2
    assert "no_repeat_ngram_size" in str(unsupported_option(options_of(model, asked)))
    asked.no_repeat_ngram_size = 0
    assert unsupported_option(options_of(model, asked)) is None


class ScriptedVLLM:
    """In place of TRL's engine: repeats each prompt's first token, and notes how it was asked."""

    temperature, top_p, top_k, min_p, repetition_penalty, max_completion_length = 1.0, 1.0, 0, 0.0, 1.0, 16

    def __init__(self, mode: str) -> None:
        self.mode, self.asked, self.syncs = mode, list[tuple[Any, ...]](), 0
        self.generation_kwargs = {"top_k": 3, "logprobs": 9, "logit_bias": {5: 1.0}}

    def generate(self, prompts: list[list[int]], images: None, num_generations: int, profiler: Any) -> Any:
        assert self.generation_kwargs == {"logit_bias": {5: 1.0}}, "the settings hold what they know of them"
        self.asked.append((num_generations, self.temperature, self.top_k, self.max_completion_length))
        ids = [[prompt[0]] * 2 for prompt in prompts]
        return prompts, ids, [[[-0.5], [None]] for _ in prompts], [[[token] for token in one] for one in ids]

    def sync_weights(self) -> None:
        self.syncs += 1


def vllm_trainer(mode: str) -> Any:
    return SimpleNamespace(
        vllm_generation=ScriptedVLLM(mode),
        _last_loaded_step=-1,
        eos_token_ids=[2],
        accelerator=SimpleNamespace(num_processes=1, is_main_process=True),
        args=SimpleNamespace(report_to=[]),
        state=SimpleNamespace(global_step=3),
    )


@pytest.mark.parametrize(
    ("mode", "prompts", "size"),
    [
        ("server", [[5, 6]] * 4 + [[7]] * 2 + [[2]] * 4, 2),
        ("server", [[5]] * 3 + [[6]] * 2, 1),
        ("server", [[5]] * 4, 4),
        ("colocate", [[5]] * 4, 1),
    ],
)
def test_trls_vllm_behind_the_protocol(mode: str, prompts: list[list[int]], size: int) -> None:
    trainer = vllm_trainer(mode)
    engine, vllm = TRLEngine(trainer), trainer.vllm_generation
    assert engine.version is None
    engine.sync((), 3)
    assert (engine.version, vllm.syncs, trainer._last_loaded_step) == (3, 1, 3)
    found = engine.generate(prompts, SamplingSettings(9, temperature=0.3, top_k=4))
    assert vllm.asked == [(size, 0.3, 4, 9)]
    assert (vllm.temperature, vllm.top_k, vllm.max_completion_length) == (1.0, 0, 16), "training's own are kept"
    assert [one.ids for one in found] == [[prompt[0]] * 2 for prompt in prompts]
    assert [one.truncated for one in found] == [prompt[0] != 2 for prompt in prompts]
    assert found[0].logps is not None
    assert found[0].logps[0] == -0.5
    assert math.isnan(found[0].logps[1]), "TRL's word for a log-probability that vLLM could not compute is None"
