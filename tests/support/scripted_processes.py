"""One of the processes started by `test_maxent_training.py`: the gradient of each case, spread over all of them.

Arguments: the model's folder, and the folder to write `<case>.pt` into.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from covey.objective import AdaptiveKL, MaxEnt, make
from own_objective import RunningBaseline
from scripted import TOTAL, keep, reward_with_modes, scripted_trainer

TAU, BETA = 0.4, 0.3
FITS = ("mle", "listwise")

# name: objective, loss, accumulation steps. With three, the second of the three groups lies on both processes.
CASES = {
    "grpo-dapo": ("grpo", "dapo", 3),
    "mle-grpo": ("mle", "grpo", 3),
    "listwise-grpo": ("listwise", "grpo", 1),
    "listwise-luspo": ("listwise", "luspo", 3),
    "adaptive-dr_grpo": ("adaptive", "dr_grpo", 3),
    "own-dapo": ("own", "dapo", 3),
    "xdr-dr_grpo": ("xdr", "dr_grpo", 3),
    "seed-grpo": ("seed", "grpo", 3),
}
# With modes, the policy's log-probs and the reference's between them.
MORE = {"xdr": make("xdr", tau=0.1, reference=0.2, adaptive=True), "seed": make("seed")}


def more_for(name: str) -> dict[str, Any]:
    if name in FITS:
        return {"objective": MaxEnt(tau=TAU, fit=name)}
    if name in MORE:
        return {"objective": MORE[name], "reward_funcs": reward_with_modes}
    if name == "own":
        return {"objective": RunningBaseline()}
    return {"kl_controller": AdaptiveKL(target=0.5, horizon=100)} if name == "adaptive" else {}


if __name__ == "__main__":
    model, folder = sys.argv[1], Path(sys.argv[2])
    for name, (objective, loss_type, accumulation) in CASES.items():
        trainer = scripted_trainer(
            model,
            folder / name,
            more=more_for(objective),
            loss_type=loss_type,
            beta=0.05,
            per_device_train_batch_size=TOTAL // 2 // accumulation,
            gradient_accumulation_steps=accumulation,
        )
        trainer.train()
        keep(trainer, folder / f"{name}.pt", beta=trainer.beta, columns=trainer.objective_columns)
    # At interpreter exit, threads of an open process group may abort the process.
    torch.distributed.destroy_process_group()
