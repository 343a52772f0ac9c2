"""One of the processes started by `test_pieces.py`: the gradient of each case, spread over all of them.

Arguments: the model's folder, and the folder to write `<case>.pt` into.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from test_pieces import SPREAD, run

if __name__ == "__main__":
    model, folder = sys.argv[1], Path(sys.argv[2])
    for name, (speed, dead, settings) in SPREAD.items():
        trainer, _ = run(
            model,
            folder / name,
            speed,
            dead=dead,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=3,
            **settings,
        )
        if trainer.accelerator.is_main_process:
            row = {key: value for key, value in trainer.state.log_history[0].items() if isinstance(value, float)}
            torch.save({"gradient": trainer.gradient, "row": row}, folder / f"{name}.pt")
    # Left to the interpreter's end, a thread of the process group may still be running, and the process aborts.
    torch.distributed.destroy_process_group()
