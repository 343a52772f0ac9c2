"""Training with a reasoning vocabulary through the real trainer: on policy the ratio is 1 and the KL 0."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from batches import PLAIN
from covey import GRPOTrainer
from covey.config import SpeedConfig
from covey.errors import ConfigError, DataError
from covey.model.adapters import trainable_rows
from covey.model.reasoning_vocab import MAP_FILE, ReasoningVocabulary
from covey.model.reasoning_vocab.expansion import expand
from covey.model.reasoning_vocab.vocabulary import vocabulary_of
from covey.model.starter import STARTER_PATH
from trainers import build_trainer

ROWS = 512
PATHS = {
    "shared": SpeedConfig(),
    "plain": PLAIN,
}


@pytest.fixture(scope="module", params=["copy", "same_text"])
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param) / "model"
    expand(STARTER_PATH, folder, 700, start=request.param)
    return str(folder)


def build(model: str, folder: Path, speed: SpeedConfig, *, more: dict[str, Any] | None = None, **settings: Any) -> Any:
    defaults = {"beta": 0.1, "temperature": 0.8, "max_completion_length": 32, "save_strategy": "no", "max_steps": 2}
    return build_trainer(
        GRPOTrainer, model, folder, prompts=4, more={"speed": speed, **(more or {})}, **{**defaults, **settings}
    )


@pytest.mark.parametrize("path", PATHS)
def test_at_step_0_the_ratio_is_1_and_the_divergence_0(wide: str, tmp_path: Path, path: str) -> None:
    """The old log-probabilities are kept (several steps per batch), so the ratio is computed, and not 1 by default."""
    trainer = build(wide, tmp_path, PATHS[path], steps_per_generation=2, gradient_accumulation_steps=1)
    ratios: list[float] = []
    loss = trainer._chunk_loss

    def watch(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        trainer._keeps_loss_logps = True
        found = torch.as_tensor(loss(model, inputs))
        apart = (trainer._loss_logps_BT.detach() - inputs["old_per_token_logps"]) * inputs["completion_mask"]
        ratios.append(float(apart.abs().max()))
        return found

    trainer._chunk_loss = watch
    trainer.train()
    first, second = trainer.state.log_history[:2]
    assert first["kl"] == pytest.approx(0, abs=1e-9)
    assert ratios[0] < 1e-5
    assert 0.1 < first["vocabulary/reasoning_share"] < 0.9
    assert second["kl"] > 0
    assert ratios[1] > 1e-4
    moved = dict(trainer.model.named_parameters())["model.embed_tokens.weight"][ROWS:].detach()
    initial = AutoModelForCausalLM.from_pretrained(wide).get_input_embeddings().weight[ROWS:].detach()
    assert float((moved - initial).abs().max()) > 0


def test_both_paths_have_the_same_gradient(wide: str, tmp_path: Path) -> None:
    found = {}
    for path, speed in PATHS.items():
        together = SpeedConfig(shared_scoring=speed.shared_scoring, trim=speed.trim, skip_zero=speed.skip_zero)
        trainer = build(wide, tmp_path / path, together, max_steps=1, beta=0.0)
        trainer.train()
        found[path] = trainer.state.log_history[0]
    for name in ("loss", "grad_norm", "entropy", "vocabulary/reasoning_share"):
        assert found["shared"][name] == pytest.approx(found["plain"][name], rel=1e-4, abs=1e-6), name


def test_adapters_train_the_rows_of_reasoning_tokens_but_not_the_reference(wide: str, tmp_path: Path) -> None:
    vocabulary = ReasoningVocabulary.load(wide)
    rows = trainable_rows(wide, vocabulary)
    assert rows is not None
    assert list(rows) == ["model.embed_tokens"]
    assert len(rows["model.embed_tokens"]) == 700 - len(vocabulary.map.unusable)
    lora = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear", trainable_token_indices=rows)
    trainer = build(wide, tmp_path, SpeedConfig(), more={"peft_config": lora})
    trainer.train()
    first, second = trainer.state.log_history[:2]
    assert first["kl"] == pytest.approx(0, abs=1e-9)
    assert second["kl"] > 0
    trainer.save_model(str(tmp_path / "adapters"))
    assert (tmp_path / "adapters" / MAP_FILE).is_file()
    from peft import PeftModel

    base: Any = AutoModelForCausalLM.from_pretrained(wide)
    before = base.get_input_embeddings().weight.detach().clone()
    merged = PeftModel.from_pretrained(base, str(tmp_path / "adapters")).merge_and_unload()
    after = merged.get_input_embeddings().weight
    changed = (after != before).any(1)
    assert not changed[:ROWS].any()
    assert changed[ROWS:].any()
    assert not changed[sorted(vocabulary.map.unusable)].any()
    assert vocabulary_of(merged) is not None


def test_what_cannot_be_combined_with_a_vocabulary(wide: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no logits processors"):
        build(wide, tmp_path, SpeedConfig(), use_transformers_continuous_batching=True)
    trainer = build(wide, tmp_path, SpeedConfig())
    with pytest.raises(DataError, match="holds the reasoning token 600"):
        trainer._generate_single_turn([[5, 600]], None, {}, 1)


def test_a_model_without_a_vocabulary_trains_as_usual(tmp_path: Path) -> None:
    trainer = build(str(STARTER_PATH), tmp_path, SpeedConfig())
    assert trainer._reasoning.vocabulary is None
    assert trainer.sampling._head._vocabulary is None
    assert trainer.model.forward.__qualname__.startswith(type(trainer.model).__name__)


@pytest.mark.slow
def test_a_stopped_run_resumes_exactly(tmp_path: Path) -> None:
    """`covey train` with reasoning tokens: `checkpoint-0`, rotation, stop and resume, evaluation, the final model."""
    from covey.cli.main import main

    common = [
        *("train", "model.reasoning_vocab_size=full", "model.reasoning_start=same_text", f"output_dir={tmp_path}"),
        *("training.max_steps=3", "training.save_steps=1", "training.save_total_limit=1", "evaluation.max_problems=16"),
        *("training.per_device_train_batch_size=16", "training.gradient_accumulation_steps=1", "training.beta=0.05"),
    ]
    assert main([*common, "run_name=straight"]) == 0
    assert main([*common, "run_name=stopped", "stop_after_steps=2"]) == 0
    assert main([*common, "run_name=stopped"]) == 0
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    rows = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (straight, stopped)
    ]
    for one, other in zip(*rows, strict=True):
        for name, value in one.items():
            if not name.startswith(("time/", "memory/")) and "time" not in name:
                assert other[name] == value or (math.isnan(other[name]) and math.isnan(value)), name
    assert rows[0][1]["train/vocabulary/reasoning_share"] > 0
    for run in (straight, stopped):
        for name in ("checkpoint-0", "checkpoint-3", "final_model"):
            assert (run / name / MAP_FILE).is_file(), name
        initial: Any = AutoModelForCausalLM.from_pretrained(run / "checkpoint-0")
        table = initial.get_input_embeddings().weight
        assert torch.equal(table[ROWS:], table[:ROWS])
    assert main(["generate", str(stopped), "--prompt", "What is 12 + 30?"]) == 0
    (stopped / "checkpoint-0" / "model.safetensors").unlink()
    assert main([*common, "run_name=stopped", "training.max_steps=4", "resume=true"]) == 1
    assert main([*common, "run_name=again", f"model.name={straight / 'final_model'}"]) == 2
    assert not (tmp_path / "again" / "config.yaml").exists()
