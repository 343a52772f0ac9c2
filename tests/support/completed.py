"""Commands that tests run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def completed(command: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with its output as text, which a test reads; `check=True` raises where the command fails."""
    return subprocess.run(command, **{"capture_output": True, "text": True, "check": False, **more})
