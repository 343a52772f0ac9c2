"""The machine and the software that a run's numbers and speed depend on."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from covey.config.secrets import redact_words

RUN_FORMAT = 1
"""Of a run directory. Bumped when older versions can no longer read one correctly."""

PACKAGES = ("covey", "torch", "transformers", "trl", "accelerate", "peft", "datasets")


def describe_environment() -> dict[str, object]:
    """Machine and software details that affect a run's numbers and speed; None if unknown."""
    return {
        "format": RUN_FORMAT,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(redact_words(sys.argv)),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "cpu_count": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        **_git_state(),
    }


def version_of(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # a system that does not know these names
        return None


def _git_state() -> dict[str, object]:
    """Covey's own commit, when it runs from a git checkout, and whether files have been changed since."""
    here = Path(__file__)

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", here.parent, *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", here.name) is None:  # an installed copy inside some other checkout
        return {"git_commit": None, "git_modified": None}
    changes = git("status", "--porcelain", "--untracked-files=no")
    return {"git_commit": git("rev-parse", "HEAD"), "git_modified": None if changes is None else changes != ""}
