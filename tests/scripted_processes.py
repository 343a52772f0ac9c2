"""One of the processes started by `test_maxent_training.py`: the gradient of each case, spread over all of them.

Arguments: the model's folder, and the folder to write `<case>.pt` into.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from scripted import TOTAL, scripted_trainer
from test_maxent_training import SPREAD, more_for

if __name__ == "__main__":
    model, folder = sys.argv[1], Path(sys.argv[2])
    for name, (objective, loss_type, accumulation) in SPREAD.items():
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
        if trainer.accelerator.is_main_process:
            row = {key: value for key, value in trainer.state.log_history[0].items() if isinstance(value, float)}
            torch.save({"gradient": trainer.gradient, "beta": trainer.beta, "row": row}, folder / f"{name}.pt")
    # Left to the interpreter's end, a thread of the process group may still be running, and the process aborts.
    torch.distributed.destroy_process_group()
