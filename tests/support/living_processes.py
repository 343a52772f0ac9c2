"""Whether processes still run."""

from __future__ import annotations

import time
from pathlib import Path


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended may be a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_end(pids: list[int]) -> bool:
    """Wait until all processes have ended, for half a minute at most; whether they have."""
    give_up = time.monotonic() + 30
    while any(lives(pid) for pid in pids) and time.monotonic() < give_up:
        time.sleep(0.02)
    return not any(lives(pid) for pid in pids)
