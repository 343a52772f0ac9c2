"""Writing, marking and deleting checkpoints such that the newest complete one survives a crash at any point. Knows
transformers' folders, not TRL.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from covey.runlog.background import InBackground
from covey.runlog.checkpoint import is_complete, mark_complete, unmark

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one trainer.

    The order is: the files are written; `before_marker` is called; then, in the background, the files are synced to the
    disk, their checksums are computed, the marker is written, `after_marker` is called, and last the oldest checkpoints
    are deleted. A process that is killed in between leaves the last complete checkpoint as it was.
    """

    def __init__(self) -> None:
        self.before_marker: list[Callable[[Path], None]] = []
        """Called by the process that writes, with the folder of the checkpoint; may add files to it."""
        self.after_marker: list[Callable[[int, bool], None]] = []
        """Called from another thread once a checkpoint is marked, with its step and whether it is the best so far."""
        self.newest: int | None = None
        """The step of the checkpoint written last since training began, if any."""
        self._work = InBackground()

    @contextmanager
    def writing(
        self, run_dir: Path, args: TrainingArguments, state: TrainerState, barrier: Callable[[], None]
    ) -> Iterator[Path]:
        """Context manager for writing the checkpoint of this step. Waits until the previous one is marked.

        The marker of an older checkpoint in this place is removed first.

        Args:
            run_dir: holds the checkpoints.
            args: for the limit, and whether this process writes.
            state: for the step, and the best checkpoint, which is kept.
            barrier: waits for all processes.

        Yields:
            The folder of the checkpoint.
        """
        folder, limit = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", args.save_total_limit
        if args.should_save:
            self.wait()
            if folder.is_dir():
                unmark(folder)
                shutil.rmtree(folder)
        barrier()
        with self.rotating(args):
            yield folder
        barrier()
        if args.should_save:
            for prepare in self.before_marker:
                prepare(folder)
            best, step = state.best_model_checkpoint, state.global_step
            kept = {folder} if best is None else {folder, run_dir / Path(best).name}
            self._work.add(partial(self._finish, folder, step, state.best_global_step == step, limit, kept))
        self.newest = state.global_step

    @contextmanager
    def rotating(self, args: TrainingArguments) -> Iterator[None]:
        """Context manager: old checkpoints are deleted here, by step, not by transformers, which uses file times."""
        limit, args.save_total_limit = args.save_total_limit, None
        try:
            yield
        finally:
            args.save_total_limit = limit

    def check(self) -> None:
        """Raise an error of the background thread, if any; does not wait."""
        self._work.check()

    def wait(self) -> None:
        """Wait until the newest checkpoint is marked. Raises the error of the background thread, such as a full
        disk."""
        self._work.wait()

    def _finish(self, folder: Path, step: int, is_best: bool, limit: int | None, kept: set[Path]) -> None:
        mark_complete(folder, step)
        for callback in self.after_marker:
            callback(step, is_best)
        if limit:
            _rotate(folder.parent, limit, kept)


def _rotate(run_dir: Path, limit: int, kept: set[Path]) -> None:
    """Delete the oldest checkpoints beyond the limit, those that were never finished first. Age is counted in steps.

    Args:
        run_dir: holds the checkpoints; `checkpoint-0`, the model before its first step, does not count.
        limit: how many stay, or more if more must be kept.
        kept: the one just written, and the best. The complete one with the most steps is kept too.
    """
    found = [path for path in run_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _step(path)]
    by_age = sorted((is_complete(path), _step(path), path) for path in found)
    kept = kept | {path for complete, _, path in by_age[-1:] if complete}
    old = [path for _, _, path in by_age if path not in kept]
    for path in old[: max(0, len(found) - max(limit, len(kept & set(found))))]:
        try:
            unmark(path)
            shutil.rmtree(path)
        except OSError as error:
            logger.warning("%s could not be deleted (%s): delete it to free its space.", path, error.strerror)


def _step(checkpoint: Path) -> int:
    step = checkpoint.name.rpartition("-")[2]
    return int(step) if step.isdecimal() else 0
