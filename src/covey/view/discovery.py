"""Which runs and evaluations a folder holds, and when one of them has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from covey.errors import ConfigError
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import COMPLETIONS, SETTINGS, is_evaluation
from covey.runlog.files import writable

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
        ConfigError: it does not exist, or is a file.
    """
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {problem}: name a run, or the folder that runs were written to (output_dir).")
    return folder


def find_runs(folder: Path) -> dict[str, Path]:
    """The runs and the evaluations of their own in a folder, by their path relative to it; `.` is the folder itself.

    Evaluations in a run belong to it. A link to a run counts; other links are not followed.
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
    return (*stats, _evaluations(folder / "evaluation"), RunDirectory(folder).is_locked())


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder) or is_evaluation(folder):
        yield folder
        return
    for entry in _folders(folder) if depth else ():
        if not entry.is_symlink():
            yield from _walk(folder / entry.name, depth - 1)
        elif is_run(folder / entry.name):
            yield folder / entry.name


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".") and Path(entry).is_dir()]
    except OSError:  # deleted meanwhile, or not ours to read
        return []
    return sorted(found, key=lambda entry: entry.name)


def _evaluations(folder: Path) -> Signature:
    """The times of the evaluations by `covey eval`."""
    return tuple((entry.name, _stat(folder / entry.name)) for entry in _folders(folder))


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
