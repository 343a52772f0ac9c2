"""Files of a run: atomic writes, clear errors for full or failing disks, a background writer, rotated logs."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import resource
import shutil
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from covey.errors import RunDirectoryError

logger = logging.getLogger(__name__)

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_TOO_LARGE = {errno.EFBIG: "a file would grow larger than is allowed (`ulimit -f`, or the limit of the file system)"}
_BROKEN = {
    errno.EIO: "the disk or the connection to it reports an error",
    errno.ESTALE: "the server of this network file system has lost the file",
    errno.ETIMEDOUT: "the server of this network file system does not answer",
    errno.EBUSY: "the file system says that it is busy",
}
_RENAME_AGAIN = 0.5  # seconds
_FORBIDDEN = {
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "there is no permission to write there",
    errno.EPERM: "there is no permission to write there",
}
_FIXES = (
    (_FULL, "free some space"),
    (_BROKEN, "wait until that place works again"),
    (_TOO_LARGE, "raise that limit"),
    (_FORBIDDEN, "make that place writable"),
)

# Libraries with their own writers report disk errors only as text (`os error`: Rust's). The last two are messages of
# torch's zip writer.
_MESSAGES = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "File too large": errno.EFBIG,
    "Input/output error": errno.EIO,
    "Stale file handle": errno.ESTALE,
    "(os error 110)": errno.ETIMEDOUT,
    "(os error 16)": errno.EBUSY,
    "PytorchStreamWriter failed writing file": errno.ENOSPC,
    "inline_container.cc": errno.ENOSPC,
}


MOST_BYTES = 100_000_000
"""Of a JSON file; those of one object a line may be longer."""


def read_json(path: Path) -> Any:
    """The content of a JSON file, which any program may have written.

    Raises:
        OSError: it cannot be read, or is no plain file.
        ValueError: it is no JSON, or too large.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES:,} bytes")
    return parse_json(read_plain(path))


def read_plain(path: Path) -> bytes:
    """The content of a plain file: one would wait for a pipe, and read a device for ever.

    Raises:
        OSError: it cannot be read, or is no plain file.
    """
    _refuse_special(path)
    return path.read_bytes()


def plain_lines(path: Path) -> Iterator[bytes]:
    """The lines of a plain file, one at a time; raises what `read_plain` does."""
    _refuse_special(path)
    with path.open("rb") as file:
        yield from file


def _refuse_special(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a plain file", str(path))


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says.

    Raises:
        ValueError: it is no JSON, or too deep.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically: write a temporary file next to it, sync it to disk, rename it.

    Text is written as UTF-8. The folder is created if missing.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process, or a link to a file elsewhere
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder, over a file or an empty folder that is there. Every atomic write ends here.

    After a passing fault of the file system it is tried once more. Over NFS the first try may have succeeded although
    its answer was lost.
    """
    follow_umask(old)
    try:
        old.replace(new)
    except OSError as error:
        if error.errno not in _BROKEN:
            raise
        time.sleep(_RENAME_AGAIN)
        try:
            old.replace(new)
        except FileNotFoundError:
            if not os.path.lexists(new) or os.path.lexists(old):
                raise


def follow_umask(folder: Path) -> None:
    """Give weights the modes that the umask gave their folder: safetensors, which writes through temporary files,
    leaves them to their owner alone."""
    for file in folder.rglob("*.safetensors"):
        with contextlib.suppress(OSError):  # a file system without modes
            file.chmod(file.parent.stat().st_mode & 0o666)


def json_line(value: Mapping[str, Any]) -> str:
    """One line of a JSON Lines file. Floats round-trip exactly; NaN is an error."""
    return writable(json.dumps(value, allow_nan=False, ensure_ascii=False)) + "\n"


def writable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot encode, replaced by `?`."""
    return text.encode("utf-8", "replace").decode()


def sync(path: Path) -> None:
    """Sync a file, or a folder's entries, to disk."""
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
    """Turn errors of a full, read-only or failing disk into one clear paragraph; other errors pass.

    Args:
        what: what is being written, for the message ("checkpoint-50").
        directory: where it is being written.
        newest_checkpoint: finds the complete checkpoint from which the next run would resume; called only if needed.
        elsewhere: how to write it to another place, if that is not set by `output_dir`.

    Raises:
        RunDirectoryError: the disk is full or fails, the quota is used up, or writing is not allowed.
    """
    try:
        yield
    except RunDirectoryError:
        raise
    except Exception as error:
        code = _disk_errno(error, directory)
        if code is None:
            raise
        checkpoint = newest_checkpoint() if newest_checkpoint else None
        raise RunDirectoryError(_explain(what, directory, code, checkpoint, elsewhere)) from error


def check_writable(what: str, directory: Path) -> None:
    """Raise the error of `guard_disk` unless a folder, or the first of its path that exists, may be written to."""
    if not os.access(_existing(directory), os.W_OK | os.X_OK):
        raise RunDirectoryError(_explain(what, directory, errno.EACCES, None, None))


def free_bytes(directory: Path) -> int:
    """The free space on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(_existing(directory)).free


def _disk_errno(error: Exception, directory: Path) -> int | None:
    if isinstance(error, OSError) and error.errno in _FULL | _TOO_LARGE | _BROKEN | _FORBIDDEN:
        return error.errno
    text = str(error)
    code = next((code for message, code in _MESSAGES.items() if message in text), None)
    if code == errno.ENOSPC and "No space" not in text:  # `ulimit -f` may be nearer than the end of the disk
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return errno.EFBIG if limit != resource.RLIM_INFINITY and limit < free_bytes(directory) else code
    return code


def _explain(what: str, directory: Path, code: int, checkpoint: Path | None, elsewhere: str | None) -> str:
    causes, fix = next((causes, fix) for causes, fix in _FIXES if code in causes)
    more = f" ({_free_space(directory)} free)" if causes is _FULL else ""
    cause = causes[code] + (f" ({os.strerror(code)})" if causes is _BROKEN else more)
    again, elsewhere = "run the same command again", elsewhere or "set output_dir to another place"
    if checkpoint is not None:
        again += f": it resumes from {checkpoint.name}"
        elsewhere += f", with resume={checkpoint} to resume from there"
    return (
        f"Could not write {what} in {directory}: {cause}. Earlier files are intact. Either {fix}, and "
        f"{again}; or {elsewhere}."
    )


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.absolute().parents) if path.exists())


def _free_space(directory: Path) -> str:
    free = float(free_bytes(directory))
    for unit in ("bytes", "kB", "MB", "GB"):
        if free < 1000:
            return f"{free:.0f} {unit}" if unit == "bytes" else f"{free:.1f} {unit}"
        free /= 1000
    return f"{free:.1f} TB"


_MOST_WAITING = 4


class InBackground:
    """Runs jobs one after the other in a thread. The interpreter waits for them at exit.

    A job must own its data: nothing that the caller changes later.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="covey-records")
        self._waiting: deque[Future[object]] = deque()

    def add(self, job: Callable[[], object]) -> None:
        """Queue a job; blocks while the queue is full. Raises what an earlier job raised."""
        self.check()
        while len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(job))

    def check(self) -> None:
        """Raise what a finished job has raised, once each; does not wait."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Wait for all jobs. Raises what they raised, once each."""
        while self._waiting:
            self._waiting.popleft().result()


LOG_BYTES = 10_000_000
"""Size limit of a log before it is rotated; the second file holds at most as much."""
_LOOK_EVERY = 0.2  # seconds: bounds how far a fast writer exceeds the limit


def older(log: Path) -> Path:
    """The file with the rotated part of a log."""
    return log.with_name(f"{log.name}.1")


@contextlib.contextmanager
def bounded(log: Path, most: int = LOG_BYTES) -> Iterator[None]:
    """Rotate the log in a thread whenever it exceeds `most` bytes.

    Works like logrotate's `copytruncate`: the end is copied to a second file and the log is truncated in place, so that
    processes that have it open are not affected. All must append (O_APPEND): others would leave a gap.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_EVERY):
            rotate(log, most)

    thread = threading.Thread(target=watch, name="covey-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        rotate(log, most)


def rotate(log: Path, most: int) -> None:
    """If the log exceeds `most` bytes, move its last `most` bytes to `older(log)` and empty it."""
    try:
        if log.stat().st_size <= most:
            return
        with log.open("rb") as file:
            file.seek(-most, os.SEEK_END)
            file.readline()  # an incomplete line
            end = file.read(most)
        with contextlib.suppress(OSError):  # a full disk: then the old part is lost, which frees space
            write_atomically(older(log), end)
        os.truncate(log, 0)
    except OSError:  # the log was deleted
        return
    logger.info("The log had reached %d bytes: the earlier part is in %s.", most, older(log).name)
