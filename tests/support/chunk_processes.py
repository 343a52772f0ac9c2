"""Steps with completions that have no signal; and, as a script, the gradient of each case over several processes.

Arguments: the model's folder, and the folder to write `<case>.pt` into.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from batches import PLAIN
from covey.config import SpeedConfig
from covey.objective import Objective
from scripted import ScriptedTrainer, keep, scripted_trainer

BOTH = replace(PLAIN, trim=True, skip_zero=True)

# name: speed, completions without signal, settings. With two processes, the first has the first twelve completions.
CASES: dict[str, tuple[SpeedConfig, int, dict[str, Any]]] = {
    "one-process-has-nothing": (BOTH, 12, {"loss_type": "grpo", "num_iterations": 1}),
    "chunks": (replace(BOTH, max_tokens=50), 10, {"loss_type": "dapo"}),
    "chunks-with-kl": (replace(BOTH, max_tokens=50), 0, {"loss_type": "luspo", "beta": 0.1}),
    "shared-scoring": (SpeedConfig(shared_prefill=False, max_tokens=50), 12, {"loss_type": "luspo"}),
    "nothing-at-all-but-one": (replace(BOTH, max_tokens=40), 21, {"loss_type": "dr_grpo"}),
}


class PartlySilent(Objective):
    """Rewards less their group's mean, and none for the first `silent` of all completions."""

    def __init__(self, silent: int) -> None:
        self.silent = silent

    def advantages(self, rewards_PG: torch.Tensor, mask_PG: torch.Tensor, **_: Any) -> Any:
        centred_PG = (rewards_PG - rewards_PG.nanmean(dim=1, keepdim=True)).nan_to_num()
        signal_PG = torch.arange(rewards_PG.numel()).view_as(rewards_PG) >= self.silent
        return torch.where(signal_PG, centred_PG, 0.0), {}


def run(
    model: str, folder: Path, speed: SpeedConfig, *, silent: int = 0, **settings: Any
) -> tuple[ScriptedTrainer, list[tuple[int, ...]]]:
    """One step; the trainer, and the shape of what went through the model with gradients."""
    trainer = scripted_trainer(model, folder, more={"speed": speed, "objective": PartlySilent(silent)}, **settings)
    shapes: list[tuple[int, ...]] = []

    def record(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            shapes.append(tuple(kwargs["input_ids"].shape))

    trainer.model.register_forward_pre_hook(record, with_kwargs=True)
    trainer.train()
    return trainer, shapes


if __name__ == "__main__":
    model, folder = sys.argv[1], Path(sys.argv[2])
    for name, (speed, silent, settings) in CASES.items():
        trainer, _ = run(
            model,
            folder / name,
            speed,
            silent=silent,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=3,
            **settings,
        )
        keep(trainer, folder / f"{name}.pt")
    # At interpreter exit, threads of an open process group may abort the process.
    torch.distributed.destroy_process_group()
