"""Aliases: which key each sets, with what value, as a flag, a flat line, an override or nested YAML.

What the values mean is in test_foreign_meanings.py, and how several keys go together in test_alias_conflicts.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from compose_config import from_words, from_yaml, value_of
from covey.config import document, known_keys
from covey.config.aliases.aliases import look_up, table
from covey.config.groups.training import OWNED_ELSEWHERE, training_fields
from covey.errors import ConfigError

ROOT = Path(__file__).parents[3]


def as_words(value: Any) -> list[str]:
    """A value as people type it after a flag."""
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return [str(item) for item in value]
    return [value if isinstance(value, str) else json.dumps(value)]


# --- which key each alias sets ------------------------------------------------------------------------------------

# (name, value, key, value of the key): one row for each key known from recipes of other tools
FLAT: list[tuple[str, Any, str, Any]] = [
    ("model_name_or_path", "Qwen/Qwen2.5-1.5B", "model.name", "Qwen/Qwen2.5-1.5B"),
    ("model_revision", "main", "model.revision", "main"),
    ("torch_dtype", "bfloat16", "model.dtype", "bfloat16"),
    ("dtype", "fp16", "model.dtype", "float16"),
    ("attn_implementation", "sdpa", "model.attn_implementation", "sdpa"),
    ("trust_remote_code", True, "model.trust_remote_code", True),
    ("dataset_name", "open-r1/OpenR1-Math-220k", "dataset.id", "open-r1/OpenR1-Math-220k"),
    ("dataset_name", "rows/train.jsonl", "dataset.path", "rows/train.jsonl"),
    ("dataset_config", "all", "dataset.config", "all"),
    (
        "dataset_mixture",
        {"datasets": [{"id": "a/b", "split": "train", "weight": 0.5}], "seed": 3, "test_split_size": 0.1},
        "dataset.mixture.datasets",
        [{"id": "a/b", "split": "train", "weight": 0.5}],
    ),
    ("dataset_prompt_column", "problem", "dataset.prompt_column", "problem"),
    ("dataset_solution_column", "answer", "dataset.answer_column", "answer"),
    ("dataset_train_split", "train[:9]", "dataset.train_split", "train[:9]"),
    ("dataset_test_split", "test", "dataset.test_split", "test"),
    ("system_prompt", "Think, then: a=b.", "dataset.system_prompt", "Think, then: a=b."),
    ("chat_template", "{% for m in messages %}{{ m }}{% endfor %}", "model.chat_template", None),
    ("benchmarks", ["math500", "aime24"], "evaluation.benchmarks", ["math500", "aime24"]),
    ("callbacks", ["my.py:Watcher"], "callbacks", ["my.py:Watcher"]),
    ("reward_funcs", ["accuracy", "format"], "rewards.funcs", ["accuracy", "format"]),
    ("reward_weights", [1.0, 0.25], "training.reward_weights", [1.0, 0.25]),
    ("cosine_min_value_wrong", -0.1, "rewards.cosine_min_value_wrong", -0.1),
    ("cosine_max_value_wrong", -0.6, "rewards.cosine_max_value_wrong", -0.6),
    ("cosine_min_value_correct", 0.4, "rewards.cosine_min_value_correct", 0.4),
    ("cosine_max_value_correct", 0.9, "rewards.cosine_max_value_correct", 0.9),
    ("cosine_max_len", 500, "rewards.cosine_max_len", 500),
    ("repetition_n_grams", 4, "rewards.repetition_n_grams", 4),
    ("repetition_max_penalty", -0.5, "rewards.repetition_max_penalty", -0.5),
    ("max_completion_len", 900, "rewards.soft_overlong_max_length", 900),
    ("soft_punish_cache", 100, "rewards.soft_overlong_cache", 100),
    ("init_kl_coeff", 0.5, "training.beta", 0.5),
    ("init_kl_coef", 0.5, "training.beta", 0.5),
    ("kl_target", 0.2, "objective.kl.kl_target", 0.2),
    ("kl_horizon", 500, "objective.kl.kl_horizon", 500),
    ("kl_ctl_step_size", 0.15, "objective.kl.kl_ctl_step_size", 0.15),
    ("maxent_tau", 0.7, "objective.maxent_tau", 0.7),
    ("maxent_q_temperature", 0.9, "objective.maxent_q_temperature", 0.9),
    ("maxent_q_epsilon", 1e-5, "objective.maxent_q_epsilon", 1e-5),
    ("maxent_length_normalize_ref", False, "objective.maxent_length_normalize_ref", False),
    ("train_grpo_objective", False, "objective.name", "maxent"),
    ("gen_temperature", 0.8, "training.temperature", 0.8),
    ("gen_top_p", 0.85, "training.top_p", 0.85),
    ("gen_top_k", 40, "training.top_k", 40),
    ("vllm_url", "http://host:29525/generate/", "training.vllm_server_base_url", "http://host:29525"),
    ("use_peft", True, "model.lora.enabled", True),
    ("lora_r", 8, "model.lora.rank", 8),
    ("lora_alpha", 64, "model.lora.alpha", 64),
    ("lora_dropout", 0.1, "model.lora.dropout", 0.1),
    ("lora_target_modules", ["q_proj", "v_proj"], "model.lora.target_modules", ["q_proj", "v_proj"]),
    ("lora_target_modules", ["all-linear"], "model.lora.target_modules", "all-linear"),
    ("wandb_project", "p", "logging.project", "p"),
    ("wandb_entity", "e", "logging.entity", "e"),
    ("wandb_run_group", "g", "logging.group", "g"),
    ("hub_model_id", "me/mine", "training.hub_model_id", "me/mine"),
    ("hub_model_revision", "v1", "training.hub_revision", "v1"),
    ("push_to_hub_revision", True, "training.push_to_hub", True),
    ("max_prompt_length", 300, "dataset.max_prompt_length", 300),
    ("evaluation_strategy", "epoch", "evaluation.every_steps", "epoch"),
    ("eval_strategy", "no", "evaluation.every_steps", 0),
    ("eval_steps", 25, "evaluation.every_steps", 25),
    ("eval_on_start", False, "evaluation.before_training", False),
    ("resume_from_checkpoint", "out/x/checkpoint-5", "resume", "out/x/checkpoint-5"),
    ("resume_from_checkpoint", "true", "resume", "auto"),
    ("vllm_max_model_len", 2048, "training.vllm_max_model_length", 2048),
    ("vllm_guided_decoding_regex", "a+", "training.vllm_structured_outputs_regex", "a+"),
    ("use_liger_loss", True, "training.use_liger_kernel", True),
    ("wandb_log_unique_prompts", True, "training.log_unique_prompts", True),
    ("per_gpu_train_batch_size", 16, "training.per_device_train_batch_size", 16),
    ("no_cuda", True, "training.use_cpu", True),
    ("use_flash_attention_2", True, "model.attn_implementation", "flash_attention_2"),
    ("adafactor", True, "training.optim", "adafactor"),
    ("warmup_ratio", 0.1, "training.warmup_steps", 0.1),
    ("inference_config", "greedy", "evaluation.temperature", 0.0),
    ("scale_rewards", False, "training.scale_rewards", "none"),
    ("scale_rewards", "batch", "training.scale_rewards", "batch"),
    ("streaming", True, "dataset.streaming", True),
]

DOTTED: list[tuple[str, Any, str, Any]] = [
    ("exp_name", "first", "run_name", "first"),
    ("model.name", "Qwen/Qwen3-0.6B", "model.name", "Qwen/Qwen3-0.6B"),
    ("model.lora_rank", 32, "model.lora.rank", 32),
    ("model.lora_rank", 0, "model.lora.enabled", False),
    ("model.lora_alpha", 16.0, "model.lora.alpha", 16.0),
    ("model.model_size", "1b", "model.name", "google/gemma-3-1b-it"),
    ("model.mesh_shape", [[1, 4], ["fsdp", "tp"]], "model.mesh_shape", [[4], ["fsdp"]]),
    ("model.model_kwargs.torch_dtype", "fp32", "model.dtype", "float32"),
    ("model.model_kwargs.load_in_8bit", False, "model.load_in_8bit", False),
    ("model.model_kwargs.use_safetensors", True, "training.model_init_kwargs", {"use_safetensors": True}),
    ("model.generation_kwargs.max_new_tokens", 77, "training.max_completion_length", 77),
    ("model.generation_kwargs.temperature", 0.7, "training.temperature", 0.7),
    ("model.generation_kwargs.num_beams", 2, "training.generation_kwargs", {"num_beams": 2}),
    ("training.micro_batch_size", 2, "training.per_device_train_batch_size", 16),
    ("training.num_batches", 30, "training.max_steps", 30),
    ("training.num_epochs", 2, "training.num_train_epochs", 2),
    ("training.save_interval_steps", 7, "training.save_steps", 7),
    ("training.eval_every_n_steps", 6, "evaluation.every_steps", 6),
    ("training.max_checkpoints_to_keep", 4, "training.save_total_limit", 4),
    ("training.train_fraction", 0.5, "dataset.train_fraction", 0.5),
    ("training.warmup_ratio", 0.1, "training.warmup_steps", 0.1),
    ("training.max_prompt_length", 99, "dataset.max_prompt_length", 99),
    ("training.evaluation_strategy", "no", "evaluation.every_steps", 0),
    ("training.seed", 9, "seed", 9),
    ("training.output_dir", "there/run", "output_dir", "there"),
    ("training.resume_from_checkpoint", "x", "resume", "x"),
    ("optimizer.learning_rate", 3e-6, "training.learning_rate", 3e-6),
    ("optimizer.warmup_ratio", 0.2, "training.warmup_steps", 0.2),
    ("optimizer.weight_decay", 0.1, "training.weight_decay", 0.1),
    ("optimizer.beta1", 0.8, "training.adam_beta1", 0.8),
    ("optimizer.beta2", 0.99, "training.adam_beta2", 0.99),
    ("optimizer.max_grad_norm", 0.1, "training.max_grad_norm", 0.1),
    ("grpo.num_generations", 4, "training.num_generations", 4),
    ("grpo.num_iterations", 2, "training.num_iterations", 2),
    ("grpo.beta", 0.08, "training.beta", 0.08),
    ("grpo.epsilon", 0.3, "training.epsilon", 0.3),
    ("generation.max_prompt_length", 256, "dataset.max_prompt_length", 256),
    ("generation.max_generation_steps", 128, "training.max_completion_length", 128),
    ("generation.temperature", 0.9, "training.temperature", 0.9),
    ("generation.top_k", 50, "training.top_k", 50),
    ("generation.top_p", 0.95, "training.top_p", 0.95),
    ("wandb_disabled", True, "training.report_to", "none"),
    ("checkpoint_dir", "ckpts/run/", "run_name", "run"),
    ("training.checkpoint_dir", "./ckpts/run/", "output_dir", "ckpts"),
    ("logging.enabled", False, "training.report_to", "none"),
    ("logging.enabled", True, "training.report_to", "wandb"),
    ("logging.project", "p", "logging.project", "p"),
    ("logging.mode", "offline", "logging.mode", "offline"),
    ("wandb_run_name", "r", "logging.run_name", "r"),
    ("dataset.name", "a/b", "dataset.id", "a/b"),
    ("dataset.max_train_samples", 10, "dataset.max_train_samples", 10),
    ("dataset.system_prompt", "Be brief.", "dataset.system_prompt", "Be brief."),
    ("objective.kl", "adaptive", "objective.kl.controller", "adaptive"),
    ("objective.tau", 0.6, "objective.maxent_tau", 0.6),
    ("xdr_tau", 0.6, "objective.xdr_tau", 0.6),
    ("objective.kl_target", 0.1, "objective.kl.kl_target", 0.1),
    ("evaluation.num_passes", 4, "evaluation.num_samples", 4),
    ("evaluation.inference_config", "greedy", "evaluation.temperature", 0.0),
    ("baseline.training.learning_rate", 2e-6, "training.learning_rate", 2e-6),
    ("maxent.training.maxent_tau", 0.6, "objective.maxent_tau", 0.6),
    ("script.dataset_name", "a/b", "dataset.id", "a/b"),
]


def flags(rows: Iterable[tuple[str, Any]]) -> list[str]:
    return [word for name, value in rows for word in (f"--{name}", *as_words(value))]


PARTS = 10
"""Every tenth row of a list goes into one config: no two of these contradict each other."""


@pytest.mark.parametrize("part", range(PARTS))
def test_flat_keys_as_flags_and_as_lines(part):
    rows = FLAT[part::PARTS]
    values = {name: value for name, value, *_ in rows}
    assert len(values) == len(rows)
    extra = ["rewards.funcs=[accuracy,format]"] if "reward_weights" in values and "reward_funcs" not in values else []
    dashed = {name.replace("_", "-"): value for name, value in values.items()}
    for composed in (
        from_words(*flags(values.items()), *extra),
        from_words(*flags(dashed.items()), *extra),
        from_yaml(values, "flat.yaml", *extra),
    ):
        for name, value, key, expected in rows:
            assert value_of(composed, key) == (value if expected is None else expected), name
            assert key in composed.origins or name in ("eval_on_start", "inference_config"), name


@pytest.mark.parametrize("part", range(PARTS))
def test_dotted_keys_as_overrides_flags_and_nested(part):
    rows = DOTTED[part::PARTS]
    values = {name: value for name, value, *_ in rows}
    assert len(values) == len(rows)
    nested: dict[str, Any] = {}
    for name, value in values.items():
        node = nested
        *groups, last = name.split(".")
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    typed = [
        f"{name}={value!r}" if isinstance(value, str) else f"{name}={json.dumps(value)}"
        for name, value in values.items()
    ]
    for composed in (
        from_words(*typed),
        from_words(*(f"++{word}" for word in typed)),
        from_words(*flags(values.items())),
        from_yaml(nested, "nested.yaml"),
        from_yaml(values, "dotted.yaml"),
    ):
        for name, _, key, expected in rows:
            assert value_of(composed, key) == expected, name


def sample(name: str) -> Any:
    """A valid value of a field of GRPOConfig other than its default."""
    field = training_fields()[name]
    special = {
        "max_steps": 7,
        "num_generations": 4,
        "num_generations_eval": 2,
        "generation_batch_size": 256,
        "reward_weights": [0.5, 0.5],
        "loss_type": "grpo",
        "vllm_importance_sampling_clip_min": 0.5,
        "vllm_mode": "server",
        "importance_sampling_level": "sequence",
        "multi_objective_aggregation": "normalize_then_sum",
        "vllm_model_impl": "transformers",
        "vllm_importance_sampling_mode": "token_mask",
        "scale_rewards": "batch",
        "optim_target_modules": ["q", "v"],
        "pad_to_multiple_of": 8,
        "vllm_servers": 2,
        "debug": "underflow_overflow",
        "torch_compile_mode": "max-autotune",
        "cache_implementation": "static",
        "include_for_metrics": ["inputs"],
        "optim_args": "rank=64, scale=0.5",
        "liger_kernel_config": {"rope": True},
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "activation_checkpointing_kwargs": {"use_reentrant": False},
        "include_num_input_tokens_seen": "all",
        "report_to": ["wandb", "tensorboard"],
        "trackio_static_space_id": "me/space",
        "per_device_train_batch_size": 64,
        "gradient_accumulation_steps": 8,
    }
    if name in special:
        return special[name]
    kind = field.type.removesuffix(" | None")
    if field.choices:
        return next(choice for choice in field.choices if choice != field.default)
    if kind == "bool":
        return not field.default
    if "dict" in kind:
        return {"a": 1, "b": [True, "x"]}
    if kind in ("int", "float"):
        return (field.default or 0) + 1 if kind == "int" else 0.5 if field.default != 0.5 else 0.25
    return ["a", "b"] if kind == "list[str]" else "text"


OTHER_KEYS = {
    **dict.fromkeys(("eval_strategy", "eval_steps", "do_eval"), "evaluation.every_steps"),
    "eval_on_start": "evaluation.before_training",
    "resume_from_checkpoint": "resume",
    "trust_remote_code": "model.trust_remote_code",
    "max_tool_calling_iterations": "environment.max_turns",
    **{name: name for name in ("output_dir", "run_name", "seed")},
}
REJECTED = {
    *("label_smoothing_factor", "neftune_noise_alpha", "train_sampling_strategy"),  # without effect in GRPO
    *("auto_find_batch_size", "load_best_model_at_end", "parallelism_config", "log_completions_hub_repo"),
    *("dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context"),
}
"""On their own, at least: the last three need `dataloader_num_workers`."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_field_of_trl_under_its_own_name(part):
    names = [name for name in training_fields() if name not in REJECTED and name not in OWNED_ELSEWHERE]
    values = {name: sample(name) for name in names[part::PARTS]}
    for composed in (from_words(*flags(values.items())), from_yaml(values)):
        assert {name: composed.config.training.values[name] for name in values} == values
        assert composed.notes == ()


def test_every_field_of_trl_has_a_key():
    assert set(OTHER_KEYS) == set(OWNED_ELSEWHERE)
    for name in training_fields():
        known, inside = look_up(name), look_up(f"training.{name}")
        assert known is not None
        assert inside is not None
        assert known.key == inside.key == OTHER_KEYS.get(name, f"training.{name}")
    with pytest.raises(ConfigError, match=r"would cut groups.*--auto_find_batch_size"):
        from_words("--auto_find_batch_size")


def test_aliases_map_to_existing_keys():
    for name, alias in table().items():
        assert name == "callbacks" or alias.native or name not in known_keys()
        if alias.key:
            assert look_up(alias.key) is not None
            assert document(alias.key if alias.key in known_keys() else alias.key.rpartition(".")[0]).doc
