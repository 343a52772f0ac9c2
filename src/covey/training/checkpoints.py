"""A checkpoint counts once all of it is there. Knows transformers' folders, not TRL."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from covey.runlog.directory import is_whole, mark_whole, unmark


@contextmanager
def written_whole(
    run_dir: Path, args: TrainingArguments, state: TrainerState, barrier: Callable[[], None]
) -> Iterator[Path]:
    """Within, the checkpoint of this step is written; after it, the checkpoint is marked, and old ones go.

    What lies in its place is no whole checkpoint from the beginning on, and older ones stay until the new one is whole:
    a process that dies in between leaves the last whole one as it was.

    Args:
        run_dir: holds the checkpoints.
        args: says how many are kept, and whether this process writes.
        state: knows the step, and the best checkpoint, which is kept.
        barrier: waits for all processes.

    Yields:
        The folder of the checkpoint.
    """
    folder = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
    if args.should_save and folder.is_dir():
        if is_whole(folder):
            unmark(folder)  # it is about to be rewritten
        else:
            shutil.rmtree(folder)  # left half-written by a process that died
    barrier()
    keep, args.save_total_limit = args.save_total_limit, None
    try:
        yield folder
    finally:
        args.save_total_limit = keep
    barrier()
    if args.should_save:
        mark_whole(folder, state.global_step)
        _rotate(run_dir, keep, state.best_model_checkpoint)


def _rotate(run_dir: Path, keep: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints beyond the limit; the newest stays, the best does, and so does `checkpoint-0`."""
    found = sorted(
        (path for path in run_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _step(path)),
        key=lambda path: (path.stat().st_mtime, _step(path)),
    )
    if keep is None or keep <= 0 or not found:
        return
    kept = {found[-1], *([Path(best)] if best is not None else [])}
    beyond = max(0, len(found) - max(keep, len(kept)))
    for path in [path for path in found if path not in kept][:beyond]:
        shutil.rmtree(path, ignore_errors=True)


def _step(checkpoint: Path) -> int:
    step = checkpoint.name.rpartition("-")[2]
    return int(step) if step.isdecimal() else 0
