"""One of the processes started by `test_loss_types.py`: two steps of each loss, spread over all of them.

Arguments: the model's folder, and the folder to write `<case>-<rank>.pt` into.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from second_pass import CASES, two_steps

if __name__ == "__main__":
    model, folder = sys.argv[1], Path(sys.argv[2])
    for case in CASES:
        if case.loss == "bnpo":
            continue
        steps = two_steps(model, folder / case.name, case, per_device_train_batch_size=4, gradient_accumulation_steps=3)
        rank = torch.distributed.get_rank()
        torch.save(
            {"generated": steps.generated, "weights": steps.weights, "gradients": steps.gradients},
            folder / f"{case.name}-{rank}.pt",
        )
    # At interpreter exit, threads of an open process group may abort the process.
    torch.distributed.destroy_process_group()
