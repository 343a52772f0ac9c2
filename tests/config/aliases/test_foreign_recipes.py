"""Recipes in the style of other tools (foreign/): their keys set the keys of the same meaning here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.config import compose, load, to_yaml

FOREIGN = Path(__file__).parents[2] / "foreign"

NO_STARTER = {"dataset.task": None, "dataset.hard_size": 0}
EXPECTED: dict[str, dict[str, Any]] = {
    "open_r1_grpo": {
        **NO_STARTER,
        "model.name": "Qwen/Qwen2.5-Math-1.5B",
        "model.dtype": "bfloat16",
        "dataset.id": "open-r1/DAPO-Math-17k-Processed",
        "dataset.config": "en",
        "dataset.max_prompt_length": 768,
        "dataset.overlong_prompts": "truncate",
        "dataset.system_prompt": "Think first, answer then: <think>\n...\n</think>\n<answer>\n...\n</answer>. "
        "Keep a = b, c as it is.",
        "rewards.funcs": ("accuracy", "format", "tag_count", "cosine", "repetition_penalty"),
        "rewards.cosine_max_value_wrong": -0.6,
        "rewards.repetition_n_grams": 4,
        "training.reward_weights": [1.0, 0.5, 0.25, 1.0, 0.5],
        "training.max_steps": -1,
        "training.num_train_epochs": 2,
        "training.learning_rate": 3e-6,
        "training.warmup_steps": 0.05,
        "training.push_to_hub": True,
        "training.hub_revision": "v01.00",
        "evaluation.every_steps": 0,
        "evaluation.benchmarks": ("math_500", "aime24"),
        "logging.group": "pair-one",
        "overwrite": False,  # overwrite_output_dir deletes nothing
        "output_dir": "data",
        "run_name": "Qwen2.5-Math-1.5B-Test",
        "seed": 7,
    },
    "open_r1_mixture": {
        **NO_STARTER,
        "dataset.mixture.weights": "fraction",
        "dataset.mixture.seed": 11,
        "dataset.mixture.test_split_size": 0.05,
        "rewards.funcs": ("accuracy", "reasoning_steps", "length"),
        "training.reward_weights": None,
        "training.save_strategy": "no",
        "evaluation.every_steps": 75,
    },
    "maxent_grpo": {
        **NO_STARTER,
        "objective.name": "maxent",
        "objective.maxent_tau": 0.25,
        "objective.maxent_q_temperature": 0.8,
        "objective.maxent_q_epsilon": 1e-5,
        "objective.kl.controller": "adaptive",
        "objective.kl.kl_target": 0.05,
        "objective.kl.kl_horizon": 4000,
        "objective.kl.kl_ctl_step_size": 0.15,
        "dataset.answer_column": "answer",
        "training.beta": 0.2,
        "training.loss_type": "grpo",
        "training.temperature": 0.9,
        "training.top_p": 0.97,
        "training.vllm_server_host": "localhost",
        "training.vllm_server_port": 29525,
        "training.warmup_steps": 0.2,
        "evaluation.every_steps": 30,
        "resume": "auto",
        "overwrite": False,
        "output_dir": "var/data",
        "run_name": "maxent-test",
    },
    "trl_cli": {
        "model.lora.active": True,
        "model.lora.rank": 32,
        "model.lora.alpha": 48,
        "model.lora.dropout": 0.1,
        "model.load_in_4bit": True,
        "rewards.funcs": ("think_format", "accuracy"),
        "training.scale_rewards": "none",
        "training.loss_type": "dr_grpo",
        "training.epsilon_high": 0.3,
        "training.report_to": "tensorboard",
        "evaluation.every_steps": "epoch",
        "output_dir": "Qwen3-0.6B-GRPO",
        "run_name": "trl-style",
    },
    "old_trl": {
        "model.dtype": "float32",
        "model.lora.active": False,
        "dataset.max_prompt_length": 256,
        "training.warmup_steps": 0.03,
        "training.vllm_max_model_length": 1024,
        "evaluation.every_steps": "epoch",
        "overwrite": False,
        "output_dir": "outputs",
        "run_name": "old",
    },
    "tunix_nested": {
        "model.name": "google/gemma-3-270m-it",
        "model.lora.rank": 16,
        "model.lora.alpha": 24,
        "model.mesh_shape": [[4], ["fsdp"]],  # with half the batch in each process
        "dataset.max_prompt_length": 192,
        "dataset.train_fraction": 0.9,
        "training.per_device_train_batch_size": 4,  # half of two prompts, four completions each
        "training.num_generations": 4,
        "training.num_iterations": 2,
        "training.beta": 0.06,
        "training.epsilon": 0.25,
        "training.adam_beta1": 0.88,
        "training.adam_beta2": 0.98,
        "training.max_grad_norm": 0.2,
        "training.warmup_steps": 0.1,
        "training.max_steps": 2700,  # 500 batches, 3 passes, 2 updates each, of 0.9 of the data
        "training.max_completion_length": 384,
        "training.temperature": 0.85,
        "training.top_k": 40,
        "training.save_steps": 200,
        "training.save_total_limit": 5,
        "training.report_to": "none",
        "evaluation.every_steps": 25,
        "output_dir": "checkpoints",
        "run_name": "ckpts",
        "seed": 9,
    },
    "kaggle_style": {
        "model.name": "google/gemma-3-1b-it",
        "model.lora.rank": 8,
        "training.per_device_train_batch_size": 2,
        "training.max_steps": 120,
        "training.max_completion_length": 256,
        "run_name": "kaggle_notebook",
    },
    "reasoning_vocab": {
        "model.reasoning_vocab_size": 5000,
        "model.dtype": "bfloat16",
        "dataset.id": "agentica-org/DeepScaleR-Preview-Dataset",
        "dataset.max_train_samples": 4000,
        "dataset.max_prompt_length": 300,
        "dataset.system_prompt": r"Reason inside <think> and </think>; then the answer, as \boxed{...}",
        "training.max_completion_length": 640,
        "training.temperature": 0.7,
        "training.warmup_steps": 0.1,
        "training.report_to": "none",
        "logging.tags": ("vocab", "small"),
        "logging.mode": "offline",
        "run_name": "vocab_test",
    },
}


@pytest.mark.parametrize("name", sorted(path.stem for path in FOREIGN.glob("*.yaml")))
def test_recipes_of_other_tools_mean_the_same_here(name: str, tmp_path: Path) -> None:
    config = load(recipe=FOREIGN / f"{name}.yaml")
    for key, value in EXPECTED[name].items():
        found: Any = config
        for part in key.split("."):
            found = getattr(found, part)
        assert found == value, key
    path = tmp_path / "ours.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert load(recipe=path) == config


def test_what_such_a_recipe_holds_without_effect_is_noted_once() -> None:
    notes = [note for note in compose(recipe=FOREIGN / "maxent_grpo.yaml").notes if "vf_coef" in note]
    assert len(notes) == 1
    for key in ("gamma", "gae_lambda", "clip_range_vf", "advantage_normalization", "reward_clip"):
        assert key in notes[0]


def test_a_blend_of_another_tool_keeps_its_fractions() -> None:
    mixture = load(recipe=FOREIGN / "open_r1_mixture.yaml").dataset.mixture
    assert [source.weight for source in mixture.sources] == [0.25, 0.5]
    assert [source.columns for source in mixture.sources] == [("problem", "answer")] * 2
