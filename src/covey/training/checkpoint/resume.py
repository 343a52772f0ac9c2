"""Planning, before anything heavy, whether a run starts, resumes, or must not be touched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.config import Config, differences, load
from covey.config.compose.recipe import script_of
from covey.config.named_code import own_code
from covey.errors import ConfigError, RunDirectoryError
from covey.importing import code_hashes
from covey.runlog.checkpoint import CHECKPOINT_MARKER, changed_files, has_checksums, is_complete, is_marked
from covey.runlog.directory import RunDirectory
from covey.runlog.notes import edited, has_failed

_SHOWN_DIFFERENCES = 12


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """How a run starts."""

    checkpoint: Path | None
    """The complete checkpoint to resume from; None to start at step 0."""
    step: int
    """Optimiser steps already done."""
    notes: tuple[str, ...] = ()
    """Messages to the user."""
    finished: bool = False
    """Whether this run has reached its end already."""
    clear: bool = False
    """Whether to empty the run directory first (`overwrite=true`)."""


def plan_resume(config: Config, run: RunDirectory, *, verify: bool = True) -> ResumePlan:
    """Read the run directory and plan how the run starts. Changes nothing; call it under the run's lock.

    Args:
        verify: compare the checkpoint to resume from with its checksums.

    Raises:
        RunDirectoryError: the directory belongs to something else or to a run of another config, or holds no checkpoint
            although resume=true.
    """
    resume = config.resume
    if config.overwrite:
        if isinstance(resume, str) and resume != "auto":
            raise ConfigError(
                f"overwrite=true starts from scratch, and resume={resume} from a checkpoint: give only one of them."
            )
        _refuse_foreign(run)
        return ResumePlan(None, 0, clear=run.root.exists())
    if isinstance(resume, str) and resume != "auto":
        return _from_named(config, Path(resume).expanduser(), run, verify)
    if run.is_empty():
        if resume is True:
            raise _no_checkpoint(run)
        return ResumePlan(None, 0)
    _refuse_foreign(run)
    if resume is False:
        raise RunDirectoryError(
            f"{run.root} already holds a run, and resume=false does not resume one. Choose another run_name, or "
            "start it again with overwrite=true, which removes its checkpoints."
        )
    changed, notes = _compared(config, run)
    if resume == "auto":
        _refuse_other_config(changed, run)
    complete = run.complete_checkpoints()
    ended = run.summary.is_file() and not has_failed(run)
    if not changed and run.final_model.is_dir() and (ended or not complete):
        again = "overwrite=true trains it again; a larger training.max_steps with resume=true continues from its end."
        step, path = complete[-1] if complete else (0, None)
        return ResumePlan(path, step, (f"{run.root} is finished: nothing is left to do. {again}",), finished=True)
    skipped: list[str] = []
    for step, path in reversed(run.checkpoints()):
        problem = what_is_wrong(path, verify=verify)
        if problem is None:
            notes += [f"{text}, so it is skipped." for text in skipped]
            if config.training.save_only_model:
                notes.append("training.save_only_model=true: checkpoints lack the optimizer, which starts anew.")
            notes += _edited_code(config, run)
            return ResumePlan(path, step, (*notes, f"Resuming from {path.name} of {run.root}."))
        skipped.append(f"{path.name} {problem}")
    if any(is_marked(path) for _, path in run.checkpoints()):
        raise RunDirectoryError(
            f"No checkpoint of {run.root} can be resumed from: {'; '.join(skipped)}. Nothing was touched. Restore "
            "one of them from a copy, choose another run_name, or start again with overwrite=true, which removes them."
        )
    if resume is True:
        raise _no_checkpoint(run)
    notes += [f"{text}, so it is skipped." for text in skipped]
    return ResumePlan(
        None, 0, (*notes, f"{run.root} holds no complete checkpoint yet, so the run starts from step 0."), clear=True
    )


def what_is_wrong(checkpoint: Path, *, verify: bool = True) -> str | None:
    """Why a checkpoint cannot be resumed from, as a phrase that follows its name; None if it can.

    Args:
        verify: compare its files with its checksums, or, if an older version wrote none, look for values that are not
            finite.
    """
    if not is_complete(checkpoint):
        return "has lost files since it was written" if is_marked(checkpoint) else "is incomplete"
    if not verify:
        return None
    if has_checksums(checkpoint):
        changed = changed_files(checkpoint)
        return f"is damaged ({', '.join(changed)} changed since it was written)" if changed else None
    from covey.training.checkpoint.finite import non_finite_files

    try:
        found = non_finite_files(checkpoint)
    except Exception as error:  # every library raises its own for a damaged file
        return f"cannot be read ({' '.join(str(error).split())})"
    return f"holds values that are not finite (NaN or infinite), in {', '.join(found)}" if found else None


def foreign_weights(checkpoint: Path) -> str:
    """The key that trains the weights of another program's checkpoint from step 0, with its value; empty if it is
    Covey's own, which may have been cut short before its marker, or none."""
    run = RunDirectory(checkpoint.parent)
    if is_marked(checkpoint) or run.records_in(checkpoint).root.exists() or run.config.is_file():
        return ""
    if (checkpoint / "adapter_config.json").is_file():
        return f"model.lora.path={checkpoint}"
    return f"model.name={checkpoint}" if (checkpoint / "config.json").is_file() else ""


def _no_checkpoint(run: RunDirectory) -> RunDirectoryError:
    return RunDirectoryError(
        f"resume=true needs a checkpoint, but {run.root} holds no complete one. Name the run to resume with "
        "output_dir and run_name, or leave out resume=true to start it."
    )


def _compared(config: Config, run: RunDirectory) -> tuple[list[tuple[str, Any, Any]], list[str]]:
    """How the config differs from the run's, and notes. If the run's file differs or cannot be read, its copy in the
    newest checkpoint is accepted as well.

    Raises:
        RunDirectoryError: the file cannot be read, there is no copy, and the config has to be the same.
    """
    copies = [run.records_in(path).config for _, path in reversed(run.complete_checkpoints())]
    unreadable = None
    try:
        changed = differences(load(recipe=run.config), config)
        if not changed:
            return [], []
    except ConfigError as error:
        changed, unreadable = [], error
    for copy in (copy for copy in copies[:1] if copy.is_file()):
        changed_since = differences(load(recipe=copy), config)
        if unreadable is not None or not changed_since:
            if unreadable is None:
                return changed_since, []
            return changed_since, [f"{run.config} is damaged: {unreadable} The copy in {copy.parents[1].name} is used."]
    if unreadable is None:
        return changed, []
    if config.resume is not True:
        raise RunDirectoryError(
            f"The config of {run.root} cannot be read, so it cannot be compared with this one: {unreadable} Restore "
            "the file, or resume the run with this config (resume=true)."
        )
    return [], [f"{run.config} is damaged: {unreadable} The run resumes with the config of this command."]


def _from_named(config: Config, path: Path, run: RunDirectory, verify: bool) -> ResumePlan:
    if not path.is_dir():
        raise RunDirectoryError(
            f"resume={path} is not a folder. Give a checkpoint (…/checkpoint-100), or resume=auto for the newest of "
            "this run."
        )
    if weights := foreign_weights(path):
        raise RunDirectoryError(
            f"resume={path} is another program's checkpoint (it has no {CHECKPOINT_MARKER}), without what an exact "
            f"resume needs. Leave resume out; {weights} trains its weights from step 0."
        )
    problem = what_is_wrong(path, verify=verify)
    if problem is not None:
        others = [other for _, other in RunDirectory(path).complete_checkpoints()]
        others += [other for _, other in RunDirectory(path.parent).complete_checkpoints() if other.name != path.name]
        hint = f" The newest complete checkpoint there is {others[-1]}." if others else ""
        raise RunDirectoryError(f"resume={path} is not a checkpoint to resume from: it {problem}.{hint}")
    step = int(path.name.rpartition("-")[2])
    newer = [p.name for s, p in run.complete_checkpoints() if s > step]
    if newer and path.resolve().parent == run.root.resolve():
        raise RunDirectoryError(
            f"resume={path} is older than {', '.join(newer)} of the same run. Leave resume out to go on from the "
            "newest; to branch off at the older one, use another run_name."
        )
    if not run.is_empty() and path.resolve().parent != run.root.resolve():
        raise RunDirectoryError(
            f"{run.root} is not empty, so a run resumed from {path} cannot be written there. Choose another run_name, "
            "or leave resume out to go on from the newest checkpoint there."
        )
    notes = _edited_code(config, RunDirectory(path.parent))
    return ResumePlan(path, step, (*notes, f"Resuming from {path}."))


def _edited_code(config: Config, run: RunDirectory) -> list[str]:
    """A note on the user's own parts whose file was edited since the run began or was last resumed."""
    found = edited(run.code_hashes(), code_hashes(own_code(config)))
    if not found:
        return []
    return [
        f"WARNING: the code of {', '.join(found)} was changed since this run was started: it goes on with the new "
        f"version. {run.code} has the one before."
    ]


def _refuse_foreign(run: RunDirectory) -> None:
    if run.root.exists() and not run.root.is_dir():
        raise RunDirectoryError(f"{run.root} is a file, so it cannot be a run directory. Choose another run_name.")
    if (script := script_of(run.config)) is not None:
        raise RunDirectoryError(
            f"{run.root} holds what the script {script} has trained. Nothing was touched. Choose another run_name."
        )
    copies = [path for _, path in run.checkpoints() if run.records_in(path).config.is_file()]
    if not run.is_empty() and not run.config.is_file() and not copies:
        held = ", ".join(sorted(p.name for p in run.root.iterdir() if p.name != run._lock.name)[:6])
        theirs = [weights for _, path in run.checkpoints() if (weights := foreign_weights(path))]
        hint = f" {theirs[-1]} trains the weights of its newest checkpoint from step 0." if theirs else ""
        raise RunDirectoryError(
            f"{run.root} is not a run directory of Covey: it holds {held}, but no config.yaml. Nothing was touched. "
            f"Choose another run_name or output_dir.{hint}"
        )


def _refuse_other_config(changed: list[tuple[str, Any, Any]], run: RunDirectory) -> None:
    if not changed:
        return
    shown = "; ".join(f"{key}: {old} there, {new} now" for key, old, new in changed[:_SHOWN_DIFFERENCES])
    more = f"; and {len(changed) - _SHOWN_DIFFERENCES} more" if len(changed) > _SHOWN_DIFFERENCES else ""
    raise RunDirectoryError(
        f"{run.root} holds a run with another config ({shown}{more}). Nothing was touched. Choose another run_name "
        "for a new run, resume=true to resume it with the new values, or overwrite=true to remove it and start again."
    )
