"""The reasoning vocabulary in real vLLM: it samples what the trainer scores, with the mask on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

from covey import GRPOTrainer
from covey.model.adapters import trainable_rows
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.expansion import expand
from covey.model.starter import STARTER_PATH
from trainers import build_trainer

pytestmark = pytest.mark.vllm

SAME = 1e-4


@pytest.fixture(scope="module", params=["copy", "same_text"])
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The starter with reasoning tokens, by `copy` and by `same_text`."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    expand(STARTER_PATH, folder, 700, start=request.param)
    return str(folder)


def trained(model: str, folder: Path, **more: Any) -> tuple[Any, list[list[int]]]:
    """A trainer after two steps, and the completions of both."""
    settings = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 128, "max_steps": 2}
    settings |= {"temperature": 0.8, "max_completion_length": 32, "num_generations": 8, "learning_rate": 1e-3}
    settings["per_device_train_batch_size"] = 8
    trainer = build_trainer(GRPOTrainer, model, folder, prompts=4, **(settings | more))
    generate, completions = trainer.vllm_generation.generate, []

    def keep(*args: Any, **kwargs: Any) -> Any:
        output = generate(*args, **kwargs)
        completions.extend(output[1])
        return output

    trainer.vllm_generation.generate = keep
    trainer.train()
    return trainer, completions


def difference(trainer: Any) -> float:
    """The largest difference between log-probs by vLLM and by the policy, over all steps."""
    name = "sampling/sampling_logp_difference/max"
    found = [row[name] for row in trainer.state.log_history if name in row]
    assert len(found) == 2
    return max(found)


def test_vllm_samples_from_what_the_trainer_scores(wide: str, tmp_path: Path) -> None:
    trainer, completions = trained(wide, tmp_path)
    assert difference(trainer) < SAME
    token_map = ReasoningVocabulary.load(wide).map
    drawn = [token for ids in completions for token in ids if token >= token_map.base_vocab_size]
    assert drawn, "no reasoning token was sampled, so this tests nothing"


def test_without_the_mask_the_two_differ(wide: str, tmp_path: Path) -> None:
    more = {"generation_kwargs": {"extra_args": {"thinking_mask": False}}}
    trainer, _ = trained(wide, tmp_path, **more)
    assert difference(trainer) > 100 * SAME


def test_adapters_with_trained_rows_arrive_merged(wide: str, tmp_path: Path) -> None:
    rows = trainable_rows(wide, ReasoningVocabulary.load(wide))
    adapters = LoraConfig(r=4, target_modules="all-linear", trainable_token_indices=rows)
    trainer, _ = trained(wide, tmp_path, more={"peft_config": adapters}, learning_rate=0.05)
    assert difference(trainer) < SAME
    assert trainer.vllm_generation._syncs == 2
