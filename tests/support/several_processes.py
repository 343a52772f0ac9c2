"""One of two processes that do all of this one after the other, started by `test_several_processes.py`.

Arguments: the model's folder, and a folder for what comes out. First the gradient of one scripted step, with copies of
the model and with shards, goes into `<case>.pt`; then come the runs of `covey train` in RUNS. The last one fails in one
process only.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from covey.cli.main import main
from covey.config.groups.mesh import Mesh
from covey.objective import MaxEnt
from covey.report import live
from covey.training import processes
from covey.training.processes import ACCELERATE, environment_kept, mesh_arguments
from resampled import resampled_trainer
from scripted import TOTAL, keep, scripted_trainer

STEPS = 4
REWARD = '''
import os, signal
from pathlib import Path

calls = 0

def variety(completions, **columns):
    """The number of different characters; a process may be asked to stop itself in its second call."""
    global calls
    if os.environ["RANK"] == "1" and Path(__file__).with_suffix(".stop").exists():
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
    return [float(len(set(c[-1]["content"]))) for c in completions]

def coarse(completions, **columns):
    """Equal within many groups."""
    return [float(reward > 13) for reward in variety(completions)]

def failing(completions, **columns):
    if os.environ["RANK"] == "1":
        raise ValueError("no more of this")
    return variety(completions)
'''

SETTINGS = (
    "objective.name=maxent",
    *("objective.kl.controller=adaptive", "objective.kl.kl_target=0.001", "objective.kl.kl_horizon=50"),
    *("training.loss_type=grpo", "training.beta=0.05"),
    *("objective.resample_groups=4", "training.gradient_accumulation_steps=2", "training.scale_rewards=none"),
    *("training.top_p=0.9", "logging.sampler_gap=true"),
)
"""A reference, a β that moves, groups without signal that are replaced, and supports; every speed key is at its
default."""
SHARDED = "model.mesh_shape=[[2],[fsdp]]"

RUNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("copies", SETTINGS),
    ("copies-stopped", SETTINGS),  # by a signal to one of the two
    ("copies-stopped", SETTINGS),
    ("shards", (*SETTINGS, SHARDED)),
    ("shards-stopped", (*SETTINGS, SHARDED, "stop_after_steps=2")),
    ("shards-stopped", (*SETTINGS, SHARDED)),
    ("thinking", ("model.reasoning_vocab_size=full", "training.beta=0.05", "training.max_steps=1")),
)

CASES: dict[str, tuple[Mesh, dict[str, Any], dict[str, Any]]] = {
    "copies": (Mesh(dp=2), {"objective": MaxEnt()}, {"loss_type": "grpo", "beta": 0.05}),
    "shards": (Mesh(fsdp=2), {"objective": MaxEnt()}, {"loss_type": "grpo", "beta": 0.05}),
    "shards-plain": (Mesh(fsdp=2), {}, {"loss_type": "dapo", "gradient_accumulation_steps": 3}),
    "thinking": (Mesh(dp=2), {}, {"beta": 0.05}),
}
EXPANDED = "expanded"
"""The folder with the model of the case `thinking`, which has a reasoning vocabulary."""


def words(model: str, folder: Path, name: str, *more: str) -> list[str]:
    """What follows `covey`."""
    reward = folder / "reward.py"
    function = "failing" if name == "failing" else "coarse"
    return [
        *("train", "model=starter", f"model.name={model}"),
        *(f"rewards.funcs=[{reward}:{function}]", "rewards.workers=0"),
        *("training.learning_rate=0.01", "training.lr_scheduler_type=constant", "training.warmup_steps=0"),
        *("training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=1"),
        *("training.num_generations=4", "training.max_completion_length=8", f"training.max_steps={STEPS}"),
        *("training.save_steps=1", "evaluation.every_steps=3", "evaluation.batch_size=3"),
        *("dataset.test_size=7", "dataset.hard_size=0", "dataset.train_size=12"),
        *(f"output_dir={folder}", f"run_name={name}", *more),
    ]


def scripted_steps(model: str, folder: Path) -> None:
    for name, (mesh, more, settings) in CASES.items():
        size = TOTAL // 2 // settings.get("gradient_accumulation_steps", 1)
        with environment_kept(*ACCELERATE):
            trainer = scripted_trainer(
                str(folder / EXPANDED) if name == "thinking" else model,
                folder / name,
                more=more,
                shards=mesh.fsdp > 1,
                per_device_train_batch_size=size,
                **settings,
                **mesh_arguments(mesh, fsdp_set=False),
            )
            trainer.train()
        keep(trainer, folder / f"{name}.pt")
    resampled = resampled_trainer(
        model, folder / "r", range(7), 4, silent={0, 2, 3}, more={}, per_device_train_batch_size=TOTAL // 2
    )
    resampled.train()
    keep(resampled, folder / "resampled.pt")


if __name__ == "__main__":
    model, folder = sys.argv[1], Path(sys.argv[2])
    first = os.environ["RANK"] == "0"
    scripted_steps(model, folder)
    codes = []
    for number, (name, more) in enumerate(RUNS):
        if number == 1:  # reports of one run are enough: the other process waits for them
            live.write_report = live.draw_curves = lambda *_: None
        stop = folder / "reward.stop"
        torch.distributed.barrier()
        if first:
            stop.touch() if number == 1 else stop.unlink(missing_ok=True)
        torch.distributed.barrier()
        codes.append(main(words(model, folder, name, *more)))
        (folder / f"codes-{os.environ['RANK']}.json").write_text(json.dumps(codes))
    processes._REPORT_FIRST = 3.0  # between two processes of one machine
    sys.exit(main(words(model, folder, "failing")))
