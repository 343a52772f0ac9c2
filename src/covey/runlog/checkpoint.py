"""Integrity of checkpoints: a marker file, written last, with the size and checksum of every file.

A checkpoint is a folder of files by several libraries. It is complete only if its marker exists; all files in the
marker have been synced to disk before it. Checksums are SHA-256: several hundred MB/s on one core, 1 to 2 GB/s with
processor support, without holding the GIL; `sha256sum` verifies them too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from covey.errors import RunDirectoryError
from covey.runlog.files import follow_umask, read_json, sync, write_atomically

CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")
CHECKPOINT_MARKER = "complete.json"
CHECKPOINT_FORMAT = 1
"""Bumped when checkpoints of older versions can no longer be resumed."""

_READERS = 4
"""Files that are read in parallel to verify checksums."""


def mark_complete(checkpoint: Path, step: int) -> None:
    """Mark a checkpoint as complete. All its files are synced to disk before the marker is written."""
    unmark(checkpoint)
    follow_umask(checkpoint)
    for folder, _, files in os.walk(checkpoint):
        for name in files:
            sync(Path(folder) / name)
        sync(Path(folder))
    sync(checkpoint.parent)
    sizes = _sizes(checkpoint)
    content = {"step": step, "format": CHECKPOINT_FORMAT, "bytes": sizes}
    content["sha256"] = {name: _checksum(checkpoint / name) for name in sizes}
    content["marker_sha256"] = _checksum_of(content)
    write_atomically(checkpoint / CHECKPOINT_MARKER, json.dumps(content, indent=1) + "\n")


def unmark(checkpoint: Path) -> None:
    """Remove the marker, before a checkpoint is overwritten or deleted; does nothing without a marker."""
    marker = checkpoint / CHECKPOINT_MARKER
    if marker.exists():
        marker.unlink()
        sync(checkpoint)


def is_marked(checkpoint: Path) -> bool:
    """Whether the checkpoint was written to the end; `is_complete` also checks that no file was lost since."""
    return (checkpoint / CHECKPOINT_MARKER).is_file()


def is_complete(checkpoint: Path) -> bool:
    """Whether this is a complete checkpoint: a folder `checkpoint-<step>` with that step's marker and all its files.

    Files that were truncated or removed later (a failed disk, an interrupted copy) are found by their sizes;
    `changed_files` finds other changes.

    Raises:
        RunDirectoryError: it has a format that this version of Covey cannot read.
    """
    name, content = CHECKPOINT_NAME.fullmatch(checkpoint.name), _read_marker(checkpoint)
    if name is None or content is None or content.get("step") != int(name.group(1)):
        return False
    if content.get("format") != CHECKPOINT_FORMAT:
        raise RunDirectoryError(
            f"{checkpoint / CHECKPOINT_MARKER} says that this checkpoint has format {content.get('format')!r}, but "
            f"this version of Covey reads format {CHECKPOINT_FORMAT}. Resume with the version that began the run (see "
            "environment.json), or start a new run under another run_name."
        )
    sizes = _sizes(checkpoint)
    return all(sizes.get(file) == size for file, size in content.get("bytes", {}).items())


def has_checksums(checkpoint: Path) -> bool:
    """Whether its marker holds checksums. Versions before them did not refuse non-finite weights either."""
    return bool((_read_marker(checkpoint) or {}).get("sha256"))


def changed_files(checkpoint: Path) -> list[str]:
    """The files whose content no longer matches the marker's checksums. Reads all files.

    Empty for a checkpoint without checksums, from an older version of Covey.
    """
    expected: Mapping[str, str] = (_read_marker(checkpoint) or {}).get("sha256", {})
    with ThreadPoolExecutor(_READERS) as readers:
        changed = readers.map(lambda name: _changed(checkpoint / name, expected[name]), expected)
        return [name for name, differs in zip(expected, changed, strict=True) if differs]


def _read_marker(checkpoint: Path) -> dict[str, Any] | None:
    """The content of the marker; None if it is missing or damaged."""
    try:
        content = read_json(checkpoint / CHECKPOINT_MARKER)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    own = content.pop("marker_sha256", None)
    return content if own is None or own == _checksum_of(content) else None


def _sizes(checkpoint: Path) -> dict[str, int]:
    """The size of every file in a checkpoint, by relative path."""
    files = (path for path in sorted(checkpoint.rglob("*")) if path.is_file())
    return {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}


def _changed(file: Path, expected: str) -> bool:
    try:
        return _checksum(file) != expected
    except OSError:  # it is missing, or unreadable
        return True


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _checksum_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
