"""`covey train` in a process that hangs while writing a checkpoint, to be killed there.

Arguments: the checkpoint, where in writing it (`optimizer`: half of the file is written; `marker`: everything but
the marker), the file to write once it hangs, and the arguments of `covey`.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from covey.cli.main import main
from covey.training.checkpoint import write


def hang(sign: Path) -> None:
    sign.touch()
    time.sleep(600)


def half_written(save: Callable[..., None], file: Path, sign: Path) -> Callable[..., None]:
    """`torch.save` that hangs at `file`."""

    def save_or_hang(value: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(target, str | Path) or Path(target) != file:
            return save(value, target, *args, **kwargs)
        whole = io.BytesIO()
        save(value, whole)
        with file.open("wb") as half:
            half.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            half.flush()
            hang(sign)

    return save_or_hang


def before_the_marker(mark: Callable[[Path, int], None], checkpoint: Path, sign: Path) -> Callable[[Path, int], None]:
    """`mark_complete` that hangs at `checkpoint`."""

    def mark_or_hang(folder: Path, step: int) -> None:
        if folder == checkpoint:
            hang(sign)
        mark(folder, step)

    return mark_or_hang


if __name__ == "__main__":
    checkpoint, where, sign, *words = sys.argv[1:]
    if where == "optimizer":
        torch.save = half_written(torch.save, Path(checkpoint) / "optimizer.pt", Path(sign))
    else:
        hanging = before_the_marker(write.mark_complete, Path(checkpoint), Path(sign))
        write.mark_complete = hanging
    sys.exit(main(words))
