"""What a user may name for evaluation: a run, a checkpoint of one, a folder with a model, or a model on the hub."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from covey.errors import ModelError, RunDirectoryError
from covey.runlog.checkpoint import is_complete
from covey.runlog.directory import RunDirectory

_LISTED = 8
"""Runs that a message names."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is evaluated."""

    label: str
    """As the user named it."""
    source: str
    """What `model.name` is set to: a folder or a hub id."""
    adapter: Path | None = None
    """A folder with adapters of it."""
    run: Path | None = None
    """Its run, whose config supplies the defaults."""
    state: str = "final"
    """`final`, `best` or `checkpoint-N`."""


def find_target(name: str, checkpoint: str | None = None) -> Target:
    """Resolve a name to a target.

    Args:
        name: as given by the user.
        checkpoint: of a run: `final`, `best`, or the number of a step; None takes the final model.

    Raises:
        RunDirectoryError: it is a run without a final model, a checkpoint that is not there or incomplete (the message
            lists the others), or there is nothing by that name among other runs.
        ModelError: adapters without the name of their base model.
    """
    folder = Path(name).expanduser()
    if checkpoint not in (None, "final"):
        return _checkpoint(name, RunDirectory(folder), str(checkpoint))
    if folder.name == "best_model" and (folder.absolute().parent / "config.yaml").is_file():
        return _checkpoint(name, RunDirectory(folder.absolute().parent), "best")
    if (folder / "config.yaml").is_file():
        run = RunDirectory(folder)
        run.refuse_newer()
        if not run.final_model.is_dir():
            newest = run.newest_checkpoint()
            advice = f"Evaluate {newest}, or resume the run." if newest else "Resume the run."
            raise RunDirectoryError(f"{folder} has no final_model: the run has not finished. {advice}")
        return _with_adapters(name, run.final_model, folder, "final")
    run = RunDirectory(folder.resolve().parent)
    if folder.name.startswith("checkpoint-") and run.config.is_file():
        run.refuse_newer()
        if not is_complete(folder):
            raise _no_checkpoint(RunDirectory(folder.parent), folder.name.removeprefix("checkpoint-"))
        return _with_adapters(name, folder, folder.parent, folder.name)
    if folder.is_dir():
        return _with_adapters(name, folder, None, "final")
    if folder.name == run.final_model.name and run.config.is_file():
        return find_target(str(folder.parent))  # which says why there is none
    _refuse_missing_run(name, folder)
    if folder.name.startswith("checkpoint-"):
        _refuse_missing_run(str(folder.parent), folder.parent)
    return Target(name, name)


def _refuse_missing_run(name: str, folder: Path) -> None:
    """Raise if there are runs next to this path: then a run is missing, and the hub is not queried."""
    runs = sorted(path.parent.name for path in folder.absolute().parent.glob("*/config.yaml"))
    if len(folder.parts) == 1 or folder.exists() or not runs:
        return
    near = difflib.get_close_matches(folder.name, runs, n=3, cutoff=0.5)
    if near:
        guess = f"Did you mean {' or '.join(str(folder.parent / run) for run in near)}?"
    else:
        more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
        guess = f"The runs in {folder.parent} are {', '.join(runs[:_LISTED])}{more}."
    raise RunDirectoryError(f"There is no run {name}. {guess}")


def _checkpoint(name: str, run: RunDirectory, which: str) -> Target:
    if not run.config.is_file():
        raise RunDirectoryError(
            f"{name} is not a run directory, so it has no checkpoint {which}: there is no config.yaml."
        )
    run.refuse_newer()
    if which == "best":
        found = run.best_checkpoint()
        if found is None:
            raise RunDirectoryError(
                f"{run.root} has no best checkpoint: it has not been evaluated after its first step, or was trained "
                "with evaluation.keep_best=false."
            )
        return _with_adapters(name, found, run.root, "best")
    found = run.checkpoint(int(which)) if which.isdecimal() else None
    if found is None or not is_complete(found):
        raise _no_checkpoint(run, which)
    return _with_adapters(name, found, run.root, found.name)


def _no_checkpoint(run: RunDirectory, which: str) -> RunDirectoryError:
    steps = ", ".join(str(step) for step, _ in run.complete_checkpoints()) or "none"
    return RunDirectoryError(
        f"{run.root} has no whole checkpoint {which}; training.save_total_limit says how many are kept. Name the run "
        f"with --checkpoint final, best, or the step of one that is there ({steps})."
    )


def _with_adapters(name: str, folder: Path, run: Path | None, state: str) -> Target:
    described = folder / "adapter_config.json"
    if not described.is_file():
        return Target(name, str(folder), None, run, state)
    try:
        base = json.loads(described.read_bytes())["base_model_name_or_path"]
    except (ValueError, KeyError):
        base = None
    if not base:
        raise ModelError(f"{described} does not say which model its adapters belong to (base_model_name_or_path).")
    return Target(name, str(base), folder, run, state)
