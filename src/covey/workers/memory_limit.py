"""Limiting the memory of a worker."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_DATA = 5  # the field of /proc/self/statm with the private, writable pages: what RLIMIT_DATA counts


def limit_memory(more: int | None) -> None:
    """Limit the memory of this process, so that a memory bomb raises MemoryError instead of filling the machine.

    Args:
        more: bytes on top of what it has now; None removes the limit.
    """
    if sys.platform != "linux":
        return  # elsewhere the limit has no effect, or counts more than the data
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    size = resource.RLIM_INFINITY
    if more is not None:
        pages = int(Path("/proc/self/statm").read_bytes().split()[_DATA])
        size = pages * resource.getpagesize() + more
    if hard != resource.RLIM_INFINITY:
        size = hard if size == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, hard))
