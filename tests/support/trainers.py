"""Trainers on a tiny model, for tests that compare runs exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOTrainer as TRLGRPOTrainer

from covey import GRPOConfig


def variety(completions: list[Any], **_: Any) -> list[float]:
    """A reward that random completions earn unevenly: the number of different characters."""
    return [float(len(set(completion[0]["content"]))) for completion in completions]


def build_trainer(
    kind: type[TRLGRPOTrainer],
    model: str,
    folder: Path,
    *,
    prompts: int,
    reward: Callable[..., Any] = variety,
    more: Mapping[str, Any] | None = None,
    **settings: Any,
) -> TRLGRPOTrainer:
    """A trainer of the given class that takes a second on the CPU.

    Args:
        kind: stock TRL's trainer or Covey's.
        model: the folder of the model.
        folder: where checkpoints go.
        prompts: how many different prompts there are.
        reward: the reward function.
        more: further arguments of the trainer, such as an objective.
        settings: more of GRPOConfig, over the settings here.
    """
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    args = GRPOConfig(output_dir=str(folder), **{**defaults, **settings})
    questions = [[{"role": "user", "content": f"What is {n} + {n}?"}] for n in range(prompts)]
    data = Dataset.from_dict({"prompt": questions})
    return kind(model=model, reward_funcs=reward, args=args, train_dataset=data, **(more or {}))
