"""One of several processes that take a step on given completions, started by `test_mesh.py`: two plain ones, or the
four of the seeds' mesh.

Arguments: the model's folder, the folder to write `<case>.pt` into, and what the command line says of the mesh.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from covey.config import compose
from covey.config.groups.mesh import check_mesh
from covey.training.processes import ACCELERATE, environment_kept, mesh_arguments
from scripted import keep, scripted_trainer

CASES: dict[str, tuple[str, ...]] = {
    "batch": ("per_device_train_batch_size=12", "gradient_accumulation_steps=1", "loss_type=grpo", "beta=0.05"),
    "accumulation": ("per_device_train_batch_size=3", "gradient_accumulation_steps=4", "steps_per_generation=4"),
    "generation_batch": (
        *("per_device_train_batch_size=3", "gradient_accumulation_steps=4", "generation_batch_size=24"),
        "loss_type=dr_grpo",
    ),
}
"""Of two processes, 24 completions a step."""
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size")

if __name__ == "__main__":
    model, folder, mesh_words = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    for name, words in CASES.items():
        config = compose([*words, *mesh_words]).config
        mesh = check_mesh(config.model.mesh_shape, int(os.environ["WORLD_SIZE"]))
        names = (*SIZES, "loss_type", "beta")
        settings = {name: config.training.values[name] for name in names if name in config.training.values}
        settings |= {"optim": "sgd", "learning_rate": 0.1}  # Adam would hide a gradient of another size
        with environment_kept(*ACCELERATE):
            trainer = scripted_trainer(
                model, folder / name, shards=mesh.splits, **settings, **mesh_arguments(mesh, fsdp_set=False)
            )
            trainer.train()
        found = trainer.accelerator.unwrap_model(trainer.model).state_dict()
        local = {
            name: one.to_local().numel() if isinstance(one, DTensor) else one.numel() for name, one in found.items()
        }
        whole = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in found.items()}
        keep(trainer, folder / f"{name}.pt", weights=whole, local=local)
    torch.distributed.destroy_process_group()
