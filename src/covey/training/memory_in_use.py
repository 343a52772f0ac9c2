"""How much memory a run has used at most: of the process, and of its device."""

from __future__ import annotations

import resource
import sys

import torch

from covey.runlog import names


def memory_in_use() -> dict[str, float]:
    """Bytes at most since the process began, by metric name; the device only where there is one that can tell."""
    scale = 1 if sys.platform == "darwin" else 1024
    used = {names.PROCESS_MEMORY: float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale)}
    if torch.cuda.is_available():
        used[names.DEVICE_MEMORY] = float(torch.cuda.max_memory_allocated())
    return used
