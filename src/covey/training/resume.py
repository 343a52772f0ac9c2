"""Deciding, before anything heavy, whether a run begins, goes on, or must not be touched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.config import Config, differences, load
from covey.errors import ConfigError, RunDirectoryError
from covey.runlog.directory import RunDirectory, is_whole

_SHOWN_DIFFERENCES = 12


@dataclass(frozen=True, slots=True)
class Start:
    """How a run starts."""

    checkpoint: Path | None
    """The whole checkpoint to go on from; None to begin at step 0."""
    step: int
    """Optimiser steps already done."""
    notes: tuple[str, ...] = ()
    """What the user should be told about this."""
    finished: bool = False
    """Whether this very run has been here already and reached its end."""
    clear: bool = False
    """Whether what the run directory holds is to be removed first (`overwrite=true`)."""


def decide_start(config: Config, run: RunDirectory) -> Start:
    """Read the run directory and say how the run starts. Changes nothing.

    Raises:
        RunDirectoryError: the directory belongs to something else or to a run of another config, or holds no checkpoint
            where one is demanded.
    """
    resume = config.resume
    if config.overwrite:
        if isinstance(resume, str) and resume != "auto":
            raise ConfigError(
                f"overwrite=true starts the run anew, but resume={resume} wants to go on from a checkpoint: give one "
                "only."
            )
        _refuse_foreign(run)
        return Start(None, 0, clear=run.root.exists())
    if isinstance(resume, str) and resume != "auto":
        return _from_named(Path(resume).expanduser(), run)
    if run.is_empty():
        return Start(None, 0)
    _refuse_foreign(run)
    if resume is False:
        raise RunDirectoryError(
            f"{run.root} already holds a run, and resume=false does not go on from one. Choose another run_name, or "
            "start it anew with overwrite=true (its checkpoints are then removed)."
        )
    changed = differences(load(recipe=run.config), config)
    if resume == "auto":
        _refuse_other_config(changed, run)
    notes = _notes_on_partial(run)
    whole = run.whole_checkpoints()
    if not changed and whole and run.summary.is_file() and run.final_model.is_dir():
        again = "overwrite=true trains it anew; a larger training.max_steps with resume=true goes on from its end."
        step, path = whole[-1]
        return Start(path, step, (f"{run.root} is finished: there is nothing left to do. {again}",), finished=True)
    if whole:
        step, path = whole[-1]
        return Start(path, step, (*notes, f"Going on from {path.name} of {run.root}."))
    if resume is True:
        raise RunDirectoryError(
            f"resume=true demands a checkpoint, but {run.root} holds no whole one. Drop resume=true to begin it anew, "
            "or choose another run_name."
        )
    return Start(None, 0, (*notes, f"{run.root} holds no whole checkpoint yet, so the run begins anew."), clear=True)


def _from_named(path: Path, run: RunDirectory) -> Start:
    if not path.is_dir():
        raise RunDirectoryError(
            f"resume={path} is no folder. Give a checkpoint (…/checkpoint-100), or resume=auto for the newest of this "
            "run."
        )
    if not is_whole(path):
        inside = RunDirectory(path).whole_checkpoints()
        hint = f" The newest whole checkpoint in it is {inside[-1][1]}." if inside else ""
        raise RunDirectoryError(
            f"resume={path} is not a whole checkpoint: it was never finished, or lost files since.{hint}"
        )
    step = int(path.name.rpartition("-")[2])
    newer = [p.name for s, p in run.whole_checkpoints() if s > step]
    if newer and path.resolve().parent == run.root.resolve():
        raise RunDirectoryError(
            f"resume={path} would go back behind {', '.join(newer)} of the same run. To branch off there, give the new "
            "branch its own run_name."
        )
    if not run.is_empty() and path.resolve().parent != run.root.resolve():
        raise RunDirectoryError(
            f"{run.root} already holds something, so it cannot become the continuation of {path}. Choose another "
            "run_name."
        )
    return Start(path, step, (f"Going on from {path}.",))


def _refuse_foreign(run: RunDirectory) -> None:
    if run.root.exists() and not run.root.is_dir():
        raise RunDirectoryError(f"{run.root} is a file, so it cannot be a run directory. Choose another run_name.")
    if not run.is_empty() and not run.config.is_file():
        held = ", ".join(sorted(p.name for p in run.root.iterdir())[:6])
        raise RunDirectoryError(
            f"{run.root} is not a run directory of Covey: it holds {held}, but no config.yaml. Nothing was touched. "
            "Choose another run_name or output_dir."
        )


def _refuse_other_config(changed: list[tuple[str, Any, Any]], run: RunDirectory) -> None:
    if not changed:
        return
    shown = "; ".join(f"{key}: {old} there, {new} now" for key, old, new in changed[:_SHOWN_DIFFERENCES])
    more = f"; and {len(changed) - _SHOWN_DIFFERENCES} more" if len(changed) > _SHOWN_DIFFERENCES else ""
    raise RunDirectoryError(
        f"{run.root} holds a run of another config ({shown}{more}). Nothing was touched. Choose another run_name for a "
        "new run, resume=true to go on from its checkpoint with the new values, or overwrite=true to remove it and "
        "begin anew."
    )


def _notes_on_partial(run: RunDirectory) -> tuple[str, ...]:
    return tuple(
        f"{path.name} is only half-written, or has lost something since, so it is passed over."
        for _, path in run.partial_checkpoints()
    )
