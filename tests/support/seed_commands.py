"""The commands of the documents that the projects' users read, and what each must mean here.

000 and 001 are MaxEnt-GRPO's (guide and training page), 002 Agent-Tunix's, 003 RLVR vocabulary expansion's, 004 xDAN's,
which lists rewards and their parameters instead of commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TUNIX: dict[str, Any] = {
    "model.name": "google/gemma-3-270m-it",
    "model.lora.active": True,
    "model.lora.rank": 32,
    "dataset.id": "openai/gsm8k",
    "training.learning_rate": 3e-6,
    "training.warmup_steps": 0.1,
    "training.lr_scheduler_type": "cosine",
    "training.max_grad_norm": 0.1,
    "training.num_train_epochs": 1,
    "training.max_steps": 3738,
    "training.num_generations": 4,
    "prompts": 4,
    "training.gradient_accumulation_steps": 1,
    "training.beta": 0.08,
    "training.epsilon": 0.2,
    "dataset.max_prompt_length": 256,
    "training.max_completion_length": 512,
    "training.temperature": 0.9,
    "training.top_k": 50,
    "training.top_p": 1.0,
    "training.report_to": "wandb",
    "objective.name": "grpo",
}
"""002: the defaults of Agent-Tunix (its list of hyperparameters). `prompts` are those of a micro-batch."""

RLVR: dict[str, Any] = {
    "model.name": "Qwen/Qwen3-0.6B",
    "model.reasoning_vocab_size": 0,
    "model.lora.active": False,
    "dataset.id": "agentica-org/DeepScaleR-Preview-Dataset",
    "dataset.max_train_samples": None,
    "training.learning_rate": 5e-6,
    "training.num_train_epochs": 4,
    "training.max_steps": -1,
    "training.per_device_train_batch_size": 2,
    "training.gradient_accumulation_steps": 4,
    "training.num_generations": 4,
    "training.beta": 0.0,
    "training.report_to": "wandb",
    "logging.project": "rlvr-vocab",
    "objective.name": "grpo",
}
"""003: the defaults of RLVR vocabulary expansion."""

OPEN_R1: dict[str, Any] = {"training.beta": 0.04, "training.loss_type": "bnpo"}
"""004 and recipes of open-r1: what they leave to their TRL."""

COSINE: dict[str, Any] = {
    "rewards.cosine_min_value_wrong": 0.0,
    "rewards.cosine_max_value_wrong": -0.5,
    "rewards.cosine_min_value_correct": 0.5,
    "rewards.cosine_max_value_correct": 1.0,
    "rewards.cosine_max_len": 1000,
    "rewards.repetition_n_grams": 3,
    "rewards.repetition_max_penalty": -1.0,
}
"""004: the parameters of its rewards, with their defaults."""

DEFAULTS = {"agent_tunix": TUNIX, "rlvr_vocab": RLVR, "open_r1": OPEN_R1}


@dataclass(frozen=True)
class SeedCommand:
    """A line of a document."""

    document: str
    line: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What it sets in place of the project's defaults, in Covey's keys."""
    preset: str = ""
    """The project whose defaults are the rest of its meaning."""
    selects: str = ""
    """How its own words choose those defaults: `run` takes them; `note` names them, as the run stays the starter or its
    words are Covey's own experiments too; `refused`: they do not fit the starter's; empty: its words are Covey's own,
    nothing to say."""

    @property
    def meaning(self) -> dict[str, Any]:
        return {**DEFAULTS.get(self.preset, {}), **self.changes}


def tunix(words: str, selects: str, changes: Mapping[str, Any] | None = None) -> SeedCommand:
    return SeedCommand("002", f"python run_training.py {words}".rstrip(), changes or {}, "agent_tunix", selects)


def rlvr(
    words: str,
    selects: str,
    changes: Mapping[str, Any] | None = None,
    *,
    program: str = "python grpo_train.py",
) -> SeedCommand:
    return SeedCommand("003", f"{program} {words}".rstrip(), changes or {}, "rlvr_vocab", selects)


UV = "uv run python rlvr_vocab/exp/grpo_train.py"

TRAIN: tuple[SeedCommand, ...] = (
    tunix("", ""),
    tunix("wandb_disabled=true", "note", {"training.report_to": "none"}),
    tunix("training.micro_batch_size=1", "note", {"prompts": 1}),
    tunix("model=gemma3_270m", ""),
    tunix("model.lora_rank=8", "", {"model.lora.rank": 8}),
    tunix(
        "generation.max_prompt_length=128 generation.max_generation_steps=256",
        "note",
        {"dataset.max_prompt_length": 128, "training.max_completion_length": 256},
    ),
    tunix("grpo.num_generations=2", "note", {"training.num_generations": 2}),
    tunix("optimizer.learning_rate=1e-6", "note", {"training.learning_rate": 1e-6}),
    tunix("optimizer.max_grad_norm=0.05", "note", {"training.max_grad_norm": 0.05}),
    tunix("training.save_interval_steps=50", "note", {"training.save_steps": 50}),
    tunix("checkpoint_dir=./checkpoints/ckpts/", "", {"output_dir": "checkpoints", "run_name": "ckpts"}),
    tunix("model=gemma3_270m training.micro_batch_size=1", "run", {"prompts": 1}),
    tunix(
        "model=gemma3_1b +experiment=full_training",
        "note",
        {"model.name": "google/gemma-3-1b-it", "training.max_steps": -1, "training.num_train_epochs": 1},
    ),
    tunix("+experiment=quick_test", "", {"training.max_steps": 5, "prompts": 2}),
    rlvr("", "", program=UV),
    rlvr("model.reasoning_vocab_size=151646", "", {"model.reasoning_vocab_size": 151646}, program=UV),
    rlvr(
        "exp_name=my_experiment training.learning_rate=1e-5 training.num_train_epochs=2 dataset.max_train_samples=1000",
        "note",
        {
            "run_name": "my_experiment",
            "output_dir": "out",
            "training.learning_rate": 1e-5,
            "training.num_train_epochs": 2,
            "dataset.max_train_samples": 1000,
        },
        program=UV,
    ),
    rlvr("training.learning_rate=5e-6", ""),
    rlvr("model.name=Qwen/Qwen2.5-1.5B", "", {"model.name": "Qwen/Qwen2.5-1.5B"}),
    rlvr("dataset.max_train_samples=5000", "", {"dataset.max_train_samples": 5000}),
    rlvr(
        "exp_name=fast_test training.num_train_epochs=1 training.per_device_train_batch_size=1 "
        "dataset.max_train_samples=100",
        "refused",
        {
            "run_name": "fast_test",
            "training.num_train_epochs": 1,
            "training.per_device_train_batch_size": 1,
            "dataset.max_train_samples": 100,
        },
    ),
    rlvr("dataset=gsm8k", "", {"dataset.id": "openai/gsm8k"}),
    rlvr("logging.enabled=false", "note", {"training.report_to": "none"}),
    rlvr("logging.mode=offline", "", {"logging.mode": "offline"}),
    rlvr(
        "exp_name=test_run dataset.max_train_samples=100 training.num_train_epochs=1 logging.mode=offline",
        "note",
        {
            "run_name": "test_run",
            "dataset.max_train_samples": 100,
            "training.num_train_epochs": 1,
            "logging.mode": "offline",
        },
        program=UV,
    ),
    rlvr(
        "exp_name=baseline_full model.reasoning_vocab_size=0",
        "note",
        {"run_name": "baseline_full"},
        program=UV,
    ),
    rlvr(
        "exp_name=reasoning_full model.reasoning_vocab_size=151646",
        "note",
        {"run_name": "reasoning_full", "model.reasoning_vocab_size": 151646},
        program=UV,
    ),
)
"""The commands that train, in the documents' order."""

SWEEP = SeedCommand(
    "002", "python run_training.py --multirun optimizer.learning_rate=1e-6,3e-6,1e-5", preset="agent_tunix"
)
MESH = SeedCommand("002", 'python run_training.py model.mesh_shape=[[2,2],["fsdp","tp"]]', preset="agent_tunix")
SERVER = (
    "trl vllm-serve --model Qwen/Qwen2.5-1.5B-Instruct --dtype float16 --port 8000 --tensor-parallel-size 1 "
    "--max-model-len 2048 --gpu-memory-utilization 0.90"
)
TRAINER = (
    "accelerate launch --main_process_port 29525 --config_file CONFIG_FILE src/grpo.py --config CONFIG --use_vllm "
    "--run_name NAME-TIME --ignore_data_skip --overwrite_output_dir false --seed 42"
)
"""001: the two halves of its Slurm step."""

OTHER_PROGRAMS = (
    "nvidia-smi -l 1",
    "nvidia-smi -L",
    "curl -sf http://localhost:8000/health",
    "huggingface-cli login",
    "wandb login",
    "module load WebProxy",
    "pip install -r docs/requirements.txt",
)
"""Commands of the documents that are other tools' own, here as there."""

FLAGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    # 000 and 001: common flags
    ("000", "--dataset_name some/data", {"dataset.id": "some/data", "dataset.task": None}),
    ("000", "--system_prompt 'Think first.'", {"dataset.system_prompt": "Think first."}),
    ("000", "--chat_template '{{ messages }}'", {"model.chat_template": "{{ messages }}"}),
    ("000", "--benchmarks math_500", {"evaluation.benchmarks": ("math_500",)}),
    ("000", "--num_generations 4", {"training.num_generations": 4}),
    ("000", "--max_completion_length 700", {"training.max_completion_length": 700}),
    ("000", "--init_kl_coeff 0.5", {"training.beta": 0.5}),
    (
        "000",
        "--init_kl_coeff 0.5 --kl_target 0.05 --kl_horizon 300",
        {
            "training.beta": 0.5,
            "objective.kl.controller": "adaptive",
            "objective.kl.kl_target": 0.05,
            "objective.kl.kl_horizon": 300,
        },
    ),
    ("000", "--kl_horizon 300", {"objective.kl.kl_horizon": 300}),
    (
        "000",
        "--report_to wandb --wandb_project p --wandb_entity e --wandb_run_group g",
        {
            "training.report_to": "wandb",
            "logging.project": "p",
            "logging.entity": "e",
            "logging.group": "g",
        },
    ),
    ("000", "--maxent_tau 0.2", {"objective.name": "maxent", "objective.maxent_tau": 0.2}),
    ("000", "--maxent_q_temperature 2", {"objective.name": "maxent", "objective.maxent_q_temperature": 2.0}),
    ("000", "--maxent_q_epsilon 1e-4", {"objective.name": "maxent", "objective.maxent_q_epsilon": 1e-4}),
    (
        "000",
        "--maxent_length_normalize_ref true",
        {"objective.name": "maxent", "objective.maxent_length_normalize_ref": True},
    ),
    ("000", "--per_device_train_batch_size 8", {"training.per_device_train_batch_size": 8}),
    ("000", "--gradient_checkpointing", {"training.gradient_checkpointing": True}),
    ("000", "--push_to_hub --hub_model_id me/mine", {"training.push_to_hub": True, "training.hub_model_id": "me/mine"}),
    # 002: key hyperparameters, with other values than the defaults
    ("002", "model.lora_rank=16", {"model.lora.rank": 16, "model.lora.active": True}),
    ("002", "model.model_size=1b", {"model.name": "google/gemma-3-1b-it"}),
    ("002", "training.num_batches=100", {"training.max_steps": 100}),
    ("002", "training.num_batches=100 training.num_epochs=2", {"training.max_steps": 200}),
    ("002", "optimizer.warmup_ratio=0.2", {"training.warmup_steps": 0.2}),
    ("002", "grpo.beta=0.02", {"training.beta": 0.02}),
    ("002", "grpo.epsilon=0.3", {"training.epsilon": 0.3}),
    ("002", "generation.temperature=0.7", {"training.temperature": 0.7}),
    ("002", "generation.top_k=10", {"training.top_k": 10}),
    ("002", "generation.top_p=0.9", {"training.top_p": 0.9}),
    # 003: key parameters
    ("003", "model.model_kwargs.torch_dtype=fp32", {"model.dtype": "float32"}),
    ("003", "model.model_kwargs.torch_dtype=fp16", {"model.dtype": "float16"}),
    ("003", "model.model_kwargs.torch_dtype=bf16", {"model.dtype": "bfloat16"}),
    ("003", "model.model_kwargs.load_in_8bit=true model.lora.rank=16", {"model.load_in_8bit": True}),
    ("003", "model.generation_kwargs.max_new_tokens=77", {"training.max_completion_length": 77}),
    ("003", "model.generation_kwargs.temperature=0.5", {"training.temperature": 0.5}),
    ("003", "training.num_generations=2", {"training.num_generations": 2}),
    ("003", "training.gradient_accumulation_steps=8", {"training.gradient_accumulation_steps": 8}),
    ("003", "training.gradient_checkpointing=true", {"training.gradient_checkpointing": True}),
    ("003", "training.bf16=true", {"training.bf16": True}),
    ("003", "dataset.name=some/data", {"dataset.id": "some/data"}),
    ("003", "dataset.system_prompt='You are helpful.'", {"dataset.system_prompt": "You are helpful."}),
    ("003", "logging.enabled=true", {"training.report_to": "wandb"}),
    ("003", "+preset=rlvr_vocab logging.project=mine", {"training.report_to": "wandb", "logging.project": "mine"}),
    ("003", "logging.project=mine", {"logging.project": "mine"}),
    ("003", "logging.mode=online", {"training.report_to": "wandb", "logging.mode": "online"}),
    ("003", "logging.mode=offline", {"training.report_to": "wandb", "logging.mode": "offline"}),
    ("003", "logging.mode=disabled", {"logging.mode": "disabled"}),
    # 004: rewards, by function and by name
    (
        "004",
        "--reward_funcs accuracy_reward format_reward reasoning_steps_reward cosine_scaled_reward "
        "repetition_penalty_reward len_reward",
        COSINE,
    ),
    ("004", "--reward_funcs accuracy format", {"rewards.funcs": ("accuracy", "format")}),
    *(("004", f"--{key.removeprefix('rewards.')} {value}", {key: value}) for key, value in COSINE.items()),
    # 004: in its repository's own configuration class
    ("004", "--tensor_parallel_size 4", {"training.vllm_tensor_parallel_size": 4}),
    ("004", "--gpu_memory_utilization 0.8", {"training.vllm_gpu_memory_utilization": 0.8}),
    ("004", "--max_model_len 4096", {"training.vllm_max_model_length": 4096}),
)
"""Every flag and key that a document lists: the document, words, and what they set."""


def programs(page: Path) -> dict[str, str]:
    """The table of programs on docs/coming_from.md: what replaces each."""
    section = page.read_text(encoding="utf-8").partition("## Programs")[2].partition("\n## ")[0]
    found = {}
    for before, now in re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]:
        for name in re.findall(r"`([^`]+)`", before):
            found[name] = name if now == "the same" else re.findall(r"`([^`]+)`", now)[0]
    return found


def translated(line: str, programs: Mapping[str, str]) -> list[str]:
    """The words after `covey` for a line of a document.

    Args:
        line: the program and its words.
        programs: what replaces each program; the longest that matches counts.
    """
    words = shlex.split(line)
    for name in sorted(programs, key=lambda name: -len(name)):
        start = name.split()
        if words[: len(start)] == start:
            return [*programs[name].split()[1:], *words[len(start) :]]
    raise AssertionError(f"the table of programs has nothing for {line}")
