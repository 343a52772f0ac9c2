"""A trainer whose completions are fixed by the prompt, and some of whose prompts give every completion the same reward.

Also one process of a two-process run, started by `test_resampled_training.py`; arguments: the model's folder, and the
folder to write `two.pt` into.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from covey import GRPOConfig
from covey.config import SpeedConfig
from scripted import MAX_LENGTH, TOTAL, ScriptedTrainer

GROUP = 8
PLAIN = {"speed": SpeedConfig(shared_prefill=False, shared_scoring=False, trim=False, skip_zero=False)}
"""As TRL does it: what is compared is the batch."""


class ResampledTrainer(ScriptedTrainer):
    """Records every round of prompts and completions that it generates, on this process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rounds: list[list[tuple[list[int], list[int]]]] = []
        self.numbers = {tuple(self._ids(n)): n for n in range(20)}

    def _ids(self, number: int) -> list[int]:
        ids: list[int] = self.processing_class.apply_chat_template(
            question(number), add_generation_prompt=True, return_dict=False
        )
        return ids

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        generated = super()._generate_single_turn(*args, **kwargs)
        self.rounds.append([(prompt, ids) for prompt, ids in self.generated])
        return generated


def question(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {number} + {number}?"}]


def asked_numbers(trainer: ResampledTrainer) -> list[list[int]]:
    """The numbers asked about, round by round."""
    return [[trainer.numbers[tuple(prompt)] for prompt, _ in part[::GROUP]] for part in trainer.rounds]


def numbers_alike(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether two rows of metrics have the same names and values, undefined ones included."""
    return found.keys() == expected.keys() and all(
        found[name] == value or (isinstance(value, float) and math.isnan(value) and math.isnan(found[name]))
        for name, value in expected.items()
    )


def resampled_trainer(
    model: str,
    folder: Path,
    prompts: Iterable[int],
    most: int,
    *,
    silent: set[int],
    more: dict[str, Any],
    **settings: Any,
) -> ResampledTrainer:
    """A trainer of one step over three groups of eight, in the order of `prompts`.

    Args:
        model: the folder of the model.
        folder: where output goes.
        prompts: the numbers asked about.
        most: `resample_groups`.
        silent: the numbers for which all completions get the same reward.
        more: further arguments of the trainer.
        settings: more of GRPOConfig.
    """

    def reward(prompts: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        numbers = [int(prompt[-1]["content"].split()[2]) for prompt in prompts]
        return [
            0.5 if number in silent else (sum(ids) % 3) / 2 for number, ids in zip(numbers, completion_ids, strict=True)
        ]

    defaults: dict[str, Any] = {
        "per_device_train_batch_size": TOTAL,
        "num_generations": GROUP,
        "max_completion_length": MAX_LENGTH,
        "max_steps": 1,
        "max_grad_norm": 0.0,
        "shuffle_dataset": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    args = GRPOConfig(output_dir=str(folder), **{**defaults, **settings})
    data = Dataset.from_dict({"prompt": [question(number) for number in prompts]})
    return ResampledTrainer(
        model=model, reward_funcs=reward, args=args, train_dataset=data, resample_groups=most, **more
    )


if __name__ == "__main__":
    model, folder = sys.argv[1], Path(sys.argv[2])
    trainer = resampled_trainer(
        model, folder, range(7), 4, silent={0, 2, 3}, more=PLAIN, per_device_train_batch_size=TOTAL // 2
    )
    trainer.train()
    if trainer.accelerator.is_main_process:
        row = {key: value for key, value in trainer.state.log_history[0].items() if isinstance(value, float)}
        torch.save({"gradient": trainer.gradient, "row": row}, folder / "two.pt")
    torch.distributed.destroy_process_group()
