"""vLLM in the trainer's process: completions come from the weights being trained, and anything else is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.generation import TopKLogitsWarper, TopPLogitsWarper

from covey import GRPOTrainer
from covey.errors import EngineError
from covey.model.prompts import render
from covey.rollout.vllm import engine as vllm_engine
from covey.training.trl.vllm import trainer_logps
from trainers import build_trainer

pytestmark = pytest.mark.vllm

SAME = 1e-5  # float32 on both sides; measured: 2e-7 on average, 1e-6 at most


def colocated(model: str, folder: Path, **more: Any) -> Any:
    """A trainer with vLLM in this process."""
    settings = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 128, "max_steps": 3} | more
    return build_trainer(GRPOTrainer, model, folder, prompts=6, **settings)


@pytest.fixture(params=["tied", "untied"])
def trainer(request: pytest.FixtureRequest, tied_model: str, untied_model: str, tmp_path: Path) -> Any:
    """A trainer on each of the two kinds of model."""
    return colocated(tied_model if request.param == "tied" else untied_model, tmp_path)


def gap(trainer: Any, rows: list[list[int]]) -> float:
    """The largest difference between the two sides now."""
    own = trainer_logps(trainer.model, rows)
    theirs = vllm_engine.prompt_logps(trainer.vllm_generation.llm, rows)
    return max(abs(a - b) for ours, other in zip(own, theirs, strict=True) for a, b in zip(ours, other, strict=True))


def test_every_group_of_weights_arrives(trainer: Any) -> None:
    """Each tensor is changed alone: before the sync the two sides differ, afterwards they do not."""
    engine = trainer.vllm_generation
    engine.sync_weights()
    rows = engine._rows
    assert gap(trainer, rows) < SAME
    for name, weights in trainer.model.named_parameters():
        with torch.no_grad():
            weights += 0.5 * torch.randn_like(weights) * weights.std().clamp(min=0.1)
        stale = gap(trainer, rows)
        engine.sync_weights()
        assert stale > 20 * SAME, f"moving {name} is not seen by the probe"
        assert gap(trainer, rows) < SAME, name


def test_training_generates_with_the_weights_of_each_step(trainer: Any) -> None:
    trainer.train()
    figures = [row for row in trainer.state.log_history if "sampling/sampling_logp_difference/max" in row]
    assert len(figures) == 3
    for row in figures:  # TRL's metric: log-probs by vLLM and by the policy
        assert row["sampling/sampling_logp_difference/max"] < SAME
        assert row["grad_norm"] > 0
    assert trainer.vllm_generation._syncs == 3


def test_adapters_arrive_merged(tied_model: str, tmp_path: Path) -> None:
    from peft import LoraConfig

    adapters = LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", lora_dropout=0.2)
    more = {"peft_config": adapters, "vllm_lora_sync": "merge"}
    trainer = colocated(tied_model, tmp_path, more=more, learning_rate=0.05)
    engine = trainer.vllm_generation
    trainer.train()
    engine.sync_weights()
    assert gap(trainer, engine._rows) < SAME
    with trainer.model.disable_adapter():  # they are trained, so that omitting them would be visible
        assert gap(trainer, engine._rows) > 100 * SAME


def test_a_sync_that_does_nothing_stops_the_run(
    tied_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = colocated(tied_model, tmp_path, learning_rate=1e-4)
    trainer.vllm_generation.sync_tolerance = 10.0  # so that the size of the gap is not an error
    real, calls = vllm_engine.load_into, []

    def skips_the_second(llm: Any, named: Any) -> None:
        calls.append(list(named))
        if len(calls) != 2:
            real(llm, calls[-1])

    monkeypatch.setattr(vllm_engine, "load_into", skips_the_second)
    with pytest.raises(EngineError, match=r"sync at step 1, .*bit for bit"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_a_head_that_is_not_updated_stops_the_run(
    tied_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own reload does not update a tied head: completions change, and are wrong."""
    trainer = colocated(tied_model, tmp_path, learning_rate=0.05)
    monkeypatch.setattr(
        vllm_engine, "load_weights", lambda runner, named: runner.reload_weights(weights_iterator=iter(named))
    )
    with pytest.raises(EngineError, match=r"differ by .* more than launch\.sync_tolerance \(0\.001\)"):
        trainer.train()


def test_completions_depend_on_the_seed(tied_model: str, tmp_path: Path) -> None:
    def drawn(seed: int, name: str) -> list[str]:
        trainer = colocated(tied_model, tmp_path / name, seed=seed, max_steps=1)
        trainer.train()
        return [completion[0]["content"] for completion in trainer.latest_completions["completion"]]

    first = drawn(1, "a")
    assert first == drawn(1, "b")
    assert first != drawn(2, "c")


def test_a_resumed_run_equals_the_straight_one(tied_model: str, tmp_path: Path) -> None:
    """In process, vLLM samples from random states that are part of a checkpoint."""

    def figures(trainer: Any) -> dict[int, tuple[float, float]]:
        rows = [row for row in trainer.state.log_history if "grad_norm" in row]
        return {row["step"]: (row["reward"], row["grad_norm"]) for row in rows}

    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    straight = colocated(tied_model, tmp_path / "straight", **settings)
    straight.train()
    again = colocated(tied_model, tmp_path / "again", **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-2"))
    assert figures(again) == figures(straight)
    assert len(figures(straight)) == 4
    for ours, theirs in zip(again.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_prompt_that_is_too_long_is_an_error(tied_model: str, tmp_path: Path) -> None:
    trainer = colocated(tied_model, tmp_path, vllm_max_model_length=16)
    with pytest.raises(
        EngineError, match=r"vLLM does not take these prompts \(training\.vllm_max_model_length\): .*16"
    ):
        trainer.train()


def test_unsupported_head_dimensions_are_an_error(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"heads have dimension 8"):
        colocated(tiny_model, tmp_path)


def test_completions_outside_of_training_are_those_of_the_models_own_generation() -> None:
    """Greedy, to compare two engines token by token; sampled, by seed; and with weights that are exchanged."""
    from importlib.resources import files

    from transformers import AutoModelForCausalLM, AutoTokenizer

    from covey.rollout import LocalEngine, SamplingSettings, generate
    from covey.rollout.vllm.engine import VLLMEngine

    source = str(files("covey.model.starter") / "weights")
    tokenizer = AutoTokenizer.from_pretrained(source)
    prompts: list[Any] = [[{"role": "user", "content": f"What is {n} + 7?"}] for n in (3, 15, 240)]
    greedy = SamplingSettings(max_completion_length=48, temperature=0.0)
    engine = VLLMEngine(source, max_model_len=128)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    local = LocalEngine(model, tokenizer)
    assert generate(engine, tokenizer, prompts, greedy, seed=0) == generate(local, tokenizer, prompts, greedy, seed=0)

    drawn = SamplingSettings(max_completion_length=48, top_k=12, top_p=0.9, logprobs=True)
    first = generate(engine, tokenizer, prompts * 2, drawn, seed=5)
    assert generate(engine, tokenizer, prompts * 2, drawn, seed=5) == first
    assert generate(engine, tokenizer, (prompts * 2)[1:], drawn, seed=6) == first[1:]  # each has a seed of its own
    assert generate(engine, tokenizer, prompts * 2, drawn, seed=50) != first
    assert [one.ids for one in first[:3]] != [one.ids for one in first[3:]]
    for prompt, one in zip(prompts * 2, first, strict=True):
        ids = tokenizer(render(tokenizer, prompt), add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits_TV = model(torch.tensor([ids + one.ids])).logits[0, len(ids) - 1 : -1]
        kept_TV = TopPLogitsWarper(0.9)(None, TopKLogitsWarper(12)(None, logits_TV))
        expected_T = kept_TV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(one.logps), expected_T, atol=1e-3)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    changed = generate(local, tokenizer, prompts, greedy, seed=0)
    assert generate(engine, tokenizer, prompts, greedy, seed=0) != changed
    engine.sync(model.named_parameters(), 4)
    assert engine.version == 4
    assert generate(engine, tokenizer, prompts, greedy, seed=0) == changed
