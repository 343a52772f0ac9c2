"""The one trainer of the tests: a class of trainer on a tiny model, with settings for the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOTrainer as TRLGRPOTrainer

from covey import GRPOConfig, GRPOTrainer
from covey.training.processes import let_cpus_shard


def variety(completions: list[Any], **_: Any) -> list[float]:
    """A reward that random completions earn unevenly: the number of different characters."""
    return [float(len(set(completion[0]["content"]))) for completion in completions]


def question(number: int) -> dict[str, Any]:
    """A row of the dataset."""
    return {"prompt": [{"role": "user", "content": f"What is {number} + {number}?"}]}


def build_trainer(
    kind: type[TRLGRPOTrainer],
    model: Any,
    folder: Path,
    *,
    prompts: int | list[dict[str, Any]] | Dataset,
    reward: Any = variety,
    more: Mapping[str, Any] | None = None,
    shards: bool = False,
    **settings: Any,
) -> Any:
    """A trainer of the given class that takes a second on the CPU.

    Args:
        kind: stock TRL's trainer, Covey's, or a class derived from one of them.
        model: the folder of the model.
        folder: where checkpoints go.
        prompts: how many different prompts there are, or the dataset or its rows.
        reward: the reward function.
        more: further arguments of the trainer, such as an objective. No run is recorded, if not asked for.
        shards: whether to use FSDP on the CPU.
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
    if shards:
        let_cpus_shard(args.distributed_state)
    rows = [question(number) for number in range(prompts)] if isinstance(prompts, int) else prompts
    data = rows if isinstance(rows, Dataset) else Dataset.from_list(rows)
    arguments: dict[str, Any] = {"reward_funcs": reward, "train_dataset": data, **(more or {})}
    if issubclass(kind, GRPOTrainer):
        arguments.setdefault("run_directory", False)
    return kind(model=model, args=args, **arguments)
