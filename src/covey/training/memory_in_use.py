"""Peak memory of a run: of the process, and of its device."""

from __future__ import annotations

import resource
import sys

from covey.runlog import names


def memory_in_use() -> dict[str, float]:
    """Peak bytes since the process started, by metric name; of the device only with CUDA."""
    import torch

    used = {names.PROCESS_MEMORY: float(peak_memory())}
    if torch.cuda.is_available():
        used[names.DEVICE_MEMORY] = float(torch.cuda.max_memory_allocated())
    return used


def peak_memory() -> int:
    """Peak bytes of the process since it started."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
