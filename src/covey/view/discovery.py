"""Which runs and evaluations a folder holds, and when one of them has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from covey.errors import RunDirectoryError
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import COMPLETIONS, SETTINGS, is_evaluation
from covey.runlog.files import writable
from covey.view.entries import DAMAGED

DEPTH = 4
"""Levels below the folder that are searched: `out/sweep/job` has two."""

_FILES = (
    *("config.yaml", "metrics.jsonl", "environment.json", "summary.json", "tags.json", "vocabulary.json"),
    *("completions", "evaluation", "final_model", "best_model", SETTINGS, COMPLETIONS),
)
"""What the list and the pages are made from; the time of a folder changes with the names in it."""

Signature = tuple[object, ...]
"""Equal as long as nothing that is shown of a run has changed."""


def existing(folder: Path) -> Path:
    """The folder, if it can be searched for runs.

    Raises:
        RunDirectoryError: it does not exist, is a file, or may not be read.
    """
    try:
        with os.scandir(folder):
            return folder
    except NotADirectoryError:
        problem = "is a file"
    except PermissionError:
        problem = "may not be read"
    except OSError:
        problem = "does not exist"
    raise RunDirectoryError(f"{folder} {problem}: name a run, or the folder that runs were written to (output_dir).")


def find_runs(folder: Path) -> dict[str, Path]:
    """The runs and the evaluations of their own in a folder, by their path relative to it; `.` is the folder itself.

    Evaluations in a run belong to it. A link to one of them counts; other links are not followed.
    """
    return {writable(path.relative_to(folder).as_posix()): path for path in _walk(folder, DEPTH)}


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, or one that is being prepared: some `config.yaml` alone is not one."""
    run = RunDirectory(folder)
    if run.metrics.is_file():
        return True
    if run.config.is_file():
        return run.environment.is_file() or run.is_locked() or bool(run.checkpoints())
    return run.is_locked() and run.is_empty()


def signature(folder: Path) -> Signature:
    """The times and sizes of what is shown of a run, and whether it is being written."""
    stats = tuple(_stat(folder / name) for name in _FILES)
    evaluations = tuple(
        (entry.name, _stat(folder / "evaluation" / entry.name)) for entry in _folders(folder / "evaluation")
    )
    return (*stats, evaluations, RunDirectory(folder).is_locked())


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if _is_shown(folder):
        yield folder
        return
    for entry in _folders(folder) if depth else ():
        yield from _walk(folder / entry.name, 0 if entry.is_symlink() else depth - 1)


def _is_shown(folder: Path) -> bool:
    """Whether it is a run, or an evaluation: some `settings.json` alone is none."""
    try:
        return is_run(folder) or (is_evaluation(folder) and (folder / COMPLETIONS).exists())
    except DAMAGED:  # deleted meanwhile, not ours to read, or a checkpoint that is none
        return False


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".") and Path(entry).is_dir()]
    except OSError:  # deleted meanwhile, or not ours to read
        return []
    return sorted(found, key=lambda entry: entry.name)


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
