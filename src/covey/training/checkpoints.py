"""A checkpoint counts once all of it is there. Knows transformers' folders, not TRL."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

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
        rotate_checkpoints(
            output_dir=str(run_dir),
            save_total_limit=keep,
            best_model_checkpoint=state.best_model_checkpoint,
            use_mtime=True,
        )
