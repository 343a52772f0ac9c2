"""Writing single files, whole or not at all, and saying clearly when the disk will not have them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from covey.errors import RunDirectoryError

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_TOO_LARGE = {errno.EFBIG: "a file would grow larger than is allowed (`ulimit -f`, or the limit of the file system)"}
_FORBIDDEN = {
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "there is no permission to write there",
    errno.EPERM: "there is no permission to write there",
}

# Libraries that write through their own code tell of the disk in words only. The last two are all that torch says when
# its zip writer could not write.
_WORDS = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "PytorchStreamWriter failed writing file": errno.ENOSPC,
    "inline_container.cc": errno.ENOSPC,
}


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file, or leave what was there: write beside it, bring it to the disk, rename.

    Text is written as UTF-8. The folder is made when it is not there.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def json_line(value: Mapping[str, Any]) -> str:
    """One line of a JSON Lines file. Numbers read back as the same float; a NaN in them is an error."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n"


def sync(path: Path) -> None:
    """Bring a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise  # some file systems cannot sync a folder; every other failure counts
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def guard_disk(
    what: str,
    directory: Path,
    newest_checkpoint: Callable[[], Path | None] | None = None,
    *,
    elsewhere: str | None = None,
) -> Iterator[None]:
    """Turn "the disk will not have it" into one clear paragraph; let every other error pass.

    Args:
        what: what is being written, as it reads in a sentence ("checkpoint-50").
        directory: where it is being written.
        newest_checkpoint: finds the whole checkpoint that the next run would go on from; asked only when needed.
        elsewhere: how to have it written to another place, where that is not `output_dir`.

    Raises:
        RunDirectoryError: when the disk is full, the quota used up, or writing is not allowed.
    """
    try:
        yield
    except RunDirectoryError:
        raise
    except Exception as error:
        code = _disk_errno(error)
        if code is None:
            raise
        checkpoint = newest_checkpoint() if newest_checkpoint else None
        raise RunDirectoryError(_explain(what, directory, code, checkpoint, elsewhere)) from error


def _disk_errno(error: Exception) -> int | None:
    if isinstance(error, OSError) and error.errno in _FULL | _TOO_LARGE | _FORBIDDEN:
        return error.errno
    text = str(error)
    return next((code for words, code in _WORDS.items() if words in text), None)


def _explain(what: str, directory: Path, code: int, checkpoint: Path | None, elsewhere: str | None) -> str:
    again = "run the same command again"
    if checkpoint is not None:
        again += f": it goes on from {checkpoint.name}"
    if code in _FULL:
        cause, cure = f"{_FULL[code]} ({_free_space(directory)} free)", "free some space"
    elif code in _TOO_LARGE:
        cause, cure = _TOO_LARGE[code], "raise that limit"
    else:
        cause, cure = _FORBIDDEN[code], "make that place writable"
    if elsewhere is None:
        elsewhere = "set output_dir to another place"
    if checkpoint is not None:
        elsewhere += f", with resume={checkpoint} to go on from there"
    return (
        f"Could not write {what} in {directory}: {cause}. What was written before is still whole. Either {cure}, and "
        f"{again}; or {elsewhere}."
    )


def _free_space(directory: Path) -> str:
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    free = float(shutil.disk_usage(existing).free)
    for unit in ("bytes", "kB", "MB", "GB"):
        if free < 1000:
            return f"{free:.0f} {unit}" if unit == "bytes" else f"{free:.1f} {unit}"
        free /= 1000
    return f"{free:.1f} TB"
