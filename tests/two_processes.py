"""One process of a two-process run, started by `torch.distributed.run` from `test_exact_resume.py`.

Arguments: the model's folder, the run's folder, the step to stop after (0: none), the checkpoint to go on from (or -).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from test_exact_resume import REUSED, run

if __name__ == "__main__":
    model, folder, stop, checkpoint = sys.argv[1:]
    resume = None if checkpoint == "-" else Path(checkpoint)
    run(model, Path(folder), {**REUSED, "beta": 0.05}, int(stop) or None, resume)
    torch.distributed.destroy_process_group()
