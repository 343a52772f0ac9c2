"""The run directory in `tests/golden`, which an older Covey wrote."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

OLD = Path(__file__).parents[1] / "golden" / "run_c148dad"


def copied(target: Path) -> Path:
    """A copy of it; its files get times in the order of their names, since a checkout's are in any order."""
    shutil.copytree(OLD, target, symlinks=True)
    for number, path in enumerate(sorted(target.rglob("*"))):
        os.utime(path, (1.8e9 + number, 1.8e9 + number))
    return target
