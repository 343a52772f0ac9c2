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

import batches
from scripted import ONE_STEP, TOTAL, ScriptedTrainer, keep
from trainers import build_trainer, question

GROUP = ONE_STEP["num_generations"]
PLAIN = {"speed": batches.PLAIN}
"""As TRL does it: what is compared is the batch."""


class ResampledTrainer(ScriptedTrainer):
    """Records every round of prompts and completions that it generates, on this process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rounds: list[list[tuple[list[int], list[int]]]] = []
        self.numbers = {tuple(self._ids(n)): n for n in range(20)}

    def _ids(self, number: int) -> list[int]:
        ids: list[int] = self.processing_class.apply_chat_template(
            question(number)["prompt"], add_generation_prompt=True, return_dict=False
        )
        return ids

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        generated = super()._generate_single_turn(*args, **kwargs)
        self.rounds.append([(prompt, ids) for prompt, ids in self.generated])
        return generated


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

    return build_trainer(
        ResampledTrainer,
        model,
        folder,
        prompts=[question(number) for number in prompts],
        reward=reward,
        more={"resample_groups": most, **more},
        **{**ONE_STEP, "shuffle_dataset": False, **settings},
    )


if __name__ == "__main__":
    model, folder = sys.argv[1], Path(sys.argv[2])
    trainer = resampled_trainer(
        model, folder, range(7), 4, silent={0, 2, 3}, more=PLAIN, per_device_train_batch_size=TOTAL // 2
    )
    trainer.train()
    keep(trainer, folder / "two.pt")
    torch.distributed.destroy_process_group()
