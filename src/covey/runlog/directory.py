"""The paths of a run directory, and what makes a checkpoint whole.

A checkpoint is a folder of many files, written by several libraries. It counts only when its marker is there, which is
written last, after everything else has reached the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from covey.errors import RunDirectoryError
from covey.runlog.files import guard_disk, sync, write_atomically

CHECKPOINT_MARKER = "complete.json"
CHECKPOINT_FORMAT = 1
"""Changes when a checkpoint of an older Covey can no longer be gone on from."""

RUN_FORMAT = 1
"""Changes when an older Covey can no longer read a run directory: its report would be wrong."""

PACKAGES = ("covey", "torch", "transformers", "trl", "accelerate", "peft", "datasets")

logger = logging.getLogger(__name__)

_SECRET = re.compile(r"(token(?:=|\s+))[^\s'\"]+")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One run's folder, `output_dir/run_name`. Making the object touches nothing on the disk."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def completions(self) -> Path:
        return self.root / "completions"

    @property
    def final_model(self) -> Path:
        return self.root / "final_model"

    @property
    def best_model(self) -> Path:
        """A link to the checkpoint with the best held-out accuracy."""
        return self.root / "best_model"

    @property
    def evaluation(self) -> Path:
        return self.root / "evaluation"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def curves(self) -> Path:
        return self.root / "curves.png"

    @property
    def log(self) -> Path:
        return self.root / "train.log"

    def process_log(self, index: int) -> Path:
        """The log of one of several training processes; the main one has `log`."""
        return self.log if index == 0 else self.root / f"train.process-{index}.log"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    def checkpoint(self, step: int) -> Path:
        return self.root / f"checkpoint-{step}"

    def exists(self) -> bool:
        """Whether a run has been here: its config or one of its checkpoints, whole or not."""
        return self.config.exists() or bool(self._checkpoints())

    def is_empty(self) -> bool:
        """Whether there is no such folder, or nothing in it but what `lock` leaves when it is killed."""
        return not self.root.exists() or all(path == self._lock for path in self.root.iterdir())

    def whole_checkpoints(self) -> list[tuple[int, Path]]:
        """Step and path of every checkpoint that can be gone on from, in ascending order.

        Raises:
            RunDirectoryError: when one was written by a version of Covey whose checkpoints this one cannot read.
        """
        return [(step, path) for step, path in self._checkpoints() if is_whole(path)]

    def partial_checkpoints(self) -> list[tuple[int, Path]]:
        """Step and path of every checkpoint that was never finished, in ascending order."""
        return [(step, path) for step, path in self._checkpoints() if not is_whole(path)]

    def newest_checkpoint(self) -> Path | None:
        """The whole checkpoint with the most steps, if there is any."""
        whole = self.whole_checkpoints()
        return whole[-1][1] if whole else None

    def best_checkpoint(self) -> Path | None:
        """The checkpoint that `best_model` links to; None when there is no link, or what it links to is not whole."""
        if not self.best_model.is_symlink():
            return None
        found = self.root / self.best_model.readlink().name
        return found if is_whole(found) else None

    def link_best(self, step: int) -> None:
        """Let `best_model` link to the checkpoint of this step."""
        beside = self.best_model.with_name(f".{self.best_model.name}.{os.getpid()}.tmp")
        with self.guard(self.best_model.name):
            beside.unlink(missing_ok=True)
            try:
                beside.symlink_to(self.checkpoint(step).name)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                    raise
                logger.warning("The file system of %s has no links: the best is checkpoint-%d.", self.root, step)
                return
            beside.replace(self.best_model)

    def guard(self, what: str) -> contextlib.AbstractContextManager[None]:
        """`guard_disk` for this run: its message names the checkpoint that the run would go on from."""
        return guard_disk(what, self.root, self.newest_checkpoint)

    def refuse_newer(self) -> None:
        """Refuse a run that a newer Covey wrote in a format that this one does not know.

        Raises:
            RunDirectoryError: it is one, or `environment.json` cannot be read.
        """
        if not self.environment.is_file():
            return
        try:
            environment = json.loads(self.environment.read_bytes())
        except ValueError as error:
            problem = " ".join(str(error).split())
            raise RunDirectoryError(
                f"{self.environment} cannot be read ({problem}): it was cut short or changed. Restore it, or delete it."
            ) from None
        if not isinstance(environment, dict):
            raise RunDirectoryError(
                f"{self.environment} should hold a mapping of keys to values and does not. Restore it, or delete it."
            )
        written = environment.get("format", RUN_FORMAT)
        if not isinstance(written, int) or written > RUN_FORMAT:
            version = (environment.get("packages") or {}).get("covey") or "unknown"
            raise RunDirectoryError(
                f"{self.root} was written by a newer version of Covey ({version}: run format {written}; this version "
                f"reads up to format {RUN_FORMAT}). Update Covey to read it."
            )

    def write_environment(self) -> None:
        """Write down the machine, the versions and the command that the run is made with."""
        with self.guard(self.environment.name):
            write_atomically(self.environment, json.dumps(describe_environment(), indent=2) + "\n")

    @contextlib.contextmanager
    def lock(
        self,
        what: str = "the run",
        instead: str = "Wait until that run is done, stop it, or choose another run_name.",
    ) -> Iterator[None]:
        """Keep every other process from writing here, on this machine or over a shared file system. Makes the folder.

        The operating system gives the lock back when the process ends, however it ends.

        Args:
            what: what is written here, as it reads in a sentence.
            instead: what to do where another process is writing.

        Raises:
            RunDirectoryError: when another process is writing here, or the folder cannot be made.
        """
        with self.guard(what):
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = _take_lock(self._lock, instead)
        try:
            yield
        finally:
            self._lock.unlink(missing_ok=True)  # before it is given back, so that nobody takes a lock that goes away
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Whether a process is writing here, as far as the file system can tell."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def clear(self, *, keep_first: bool = False) -> None:
        """Delete what a run has written here, so that it can begin anew; files of anybody else stay.

        `checkpoint-0`, the model before its first step, stays where `keep_first` says so: the new run has written it.

        The config goes last: a clearing that was cut short still leaves a run directory, without a whole checkpoint.
        """
        checkpoints = [path for _, path in self._checkpoints()]
        if self.best_model.is_symlink():
            self.best_model.unlink()
        if not keep_first and self.checkpoint(0).is_dir():
            checkpoints.append(self.checkpoint(0))
        for path in checkpoints:
            unmark(path)
        folders = (self.completions, self.final_model, self.evaluation)
        files = (self.environment, self.metrics, self.report, self.curves, self.log, self.summary, self.config)
        for path in (*checkpoints, *folders):
            if path.exists():
                shutil.rmtree(path)
        for path in (*files, *self.root.glob("train.process-*.log")):
            path.unlink(missing_ok=True)

    @property
    def _lock(self) -> Path:
        return self.root / ".lock"

    def _checkpoints(self) -> list[tuple[int, Path]]:
        if not self.root.is_dir():
            return []
        named = ((_CHECKPOINT.fullmatch(path.name), path) for path in self.root.iterdir() if path.is_dir())
        found = sorted((int(name.group(1)), path) for name, path in named if name)
        return [(step, path) for step, path in found if step > 0]  # checkpoint-0 is a model, and no run to go on with


def mark_whole(checkpoint: Path, step: int) -> None:
    """Declare a checkpoint whole. Everything in it reaches the disk before the marker, which lists it, does."""
    unmark(checkpoint)
    for folder, _, files in os.walk(checkpoint):
        for name in files:
            sync(Path(folder) / name)
        sync(Path(folder))
    sync(checkpoint.parent)
    content = {"step": step, "format": CHECKPOINT_FORMAT, "bytes": _sizes(checkpoint)}
    write_atomically(checkpoint / CHECKPOINT_MARKER, json.dumps(content, indent=1) + "\n")


def unmark(checkpoint: Path) -> None:
    """Declare a checkpoint not whole: before it is written over or deleted. One without a marker stays as it is."""
    marker = checkpoint / CHECKPOINT_MARKER
    if marker.exists():
        marker.unlink()
        sync(checkpoint)


def is_whole(checkpoint: Path) -> bool:
    """Whether this is a folder `checkpoint-<step>` whose marker was written, for that step, and nothing was lost since.

    Files that were cut short or taken away after the marker was written (a disk that failed, a copy that was stopped)
    are noticed by their sizes.

    Raises:
        RunDirectoryError: when it was written by a version of Covey whose checkpoints this one cannot read.
    """
    name, marker = _CHECKPOINT.fullmatch(checkpoint.name), checkpoint / CHECKPOINT_MARKER
    if name is None or not marker.is_file():
        return False
    try:
        content = json.loads(marker.read_bytes())
    except ValueError:
        return False
    if not isinstance(content, dict) or content.get("step") != int(name.group(1)):
        return False
    if content.get("format") != CHECKPOINT_FORMAT:
        raise RunDirectoryError(
            f"{marker} says that this checkpoint has format {content.get('format')!r}, but this version of Covey reads "
            f"format {CHECKPOINT_FORMAT}. Go on with the version that began the run (see environment.json), or start "
            "anew under another run_name."
        )
    sizes = _sizes(checkpoint)
    return all(sizes.get(file) == size for file, size in content.get("bytes", {}).items())


def _sizes(checkpoint: Path) -> dict[str, int]:
    """The size of every file in a checkpoint, by its path from there."""
    files = (path for path in sorted(checkpoint.rglob("*")) if path.is_file())
    return {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}


def _take_lock(path: Path, instead: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_open_at(descriptor, path):
                return descriptor
            os.close(descriptor)  # whoever held it has just deleted it: try with a new file
        except BlockingIOError:
            os.close(descriptor)
            raise RunDirectoryError(f"{path.parent} is being written by another process. {instead}") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                os.close(descriptor)
                raise
            logger.warning("The file system of %s has no locks: take care that no two runs write there.", path.parent)
            return descriptor


def _is_open_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def describe_environment() -> dict[str, object]:
    """The facts about machine and software that bear on a run's numbers and speed; None where one is not known."""
    return {
        "format": RUN_FORMAT,
        "command": _SECRET.sub(r"\1…", shlex.join(sys.argv)),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu_count": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        **_git_state(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # a system that does not know these names
        return None


def _git_state() -> dict[str, object]:
    """Covey's own commit, when it runs from a git checkout, and whether files have been changed since."""
    here = Path(__file__)

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", here.parent, *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", here.name) is None:  # an installed copy that merely lies in some checkout
        return {"git_commit": None, "git_modified": None}
    changes = git("status", "--porcelain", "--untracked-files=no")
    return {"git_commit": git("rev-parse", "HEAD"), "git_modified": None if changes is None else changes != ""}
