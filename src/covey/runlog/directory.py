"""A run directory: its paths, its lock, its checkpoints, and the environment that the run is made in.

Locks are the system's, which releases them when a process ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from covey.config.secrets import redact_words
from covey.errors import CoveyError, RunDirectoryError
from covey.runlog.checkpoint import CHECKPOINT_NAME, is_complete, unmark
from covey.runlog.files import check_writable, guard_disk, read_json, rename, write_atomically

logger = logging.getLogger(__name__)

RUN_FORMAT = 1
"""Of a run directory. Bumped when older versions can no longer read one correctly."""

_PATIENCE = 0.1  # seconds: `is_locked` in another process holds the lock for a moment
_LOCK = ".in-use"


class DeletedError(RunDirectoryError):
    """The folder was deleted or moved while it was locked."""

    def __init__(self, folder: Path, what: str = "the run") -> None:
        super().__init__(
            f"{folder} was deleted or moved while {what} was being written there, so it was stopped. Move it back to "
            "resume, or start again."
        )


def take_lock(path: Path, instead: str) -> int:
    """Lock a file, which is made with its folder; returns the descriptor that holds the lock.

    Args:
        instead: advice for when another process holds it.

    Raises:
        RunDirectoryError: another process holds it.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # the previous holder has just removed the folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_open_at(descriptor, path):
                return descriptor
            os.close(descriptor)  # the previous holder has just deleted it: try a new file
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() >= until:
                raise in_use(path.parent, instead) from None
            time.sleep(_PATIENCE / 10)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                os.close(descriptor)
                raise
            logger.warning("The file system of %s has no locks: make sure that no two runs write there.", path.parent)
            return descriptor


def in_use(folder: Path, instead: str) -> RunDirectoryError:
    """The error of a folder that is locked."""
    return RunDirectoryError(f"{folder} is being written by another process. {instead}")


def is_open_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:  # it is gone, or its server
        return False


@contextmanager
def temporary_folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """Context manager: a folder within another or `TMPDIR`, deleted at the end. Those of the same prefix that killed
    processes of this user have left are deleted now: the lock in them is free."""
    for left in (within or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        with suppress(OSError), (left / _LOCK).open("r+b") as lock:  # "+": over NFS an exclusive lock needs it
            if left.stat().st_uid == os.getuid() and not left.is_symlink():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=within, ignore_cleanup_errors=True) as folder:
        new = Path(folder) / f"{_LOCK}.new"
        with new.open("wb") as lock:
            with suppress(OSError):  # a file system without locks, where nothing is deleted later either
                fcntl.flock(lock, fcntl.LOCK_EX)
                new.rename(new.with_name(_LOCK))  # only now: nobody finds it unlocked
            yield Path(folder)


_WAIT = "Wait until that run is done, stop it, or choose another run_name."
_BESIDES = ("tags.json", "settings.json", "completions.jsonl", "disagreements.jsonl", "summary.json", "vocabulary.*")
"""What Covey writes into the folder of a run or an evaluation, besides what a new run replaces."""


SCRIPT_FILES = (
    *("config.yaml", "environment.json", "metrics.jsonl", "summary.json", "tags.json", "report.html", "curves.png"),
    *("completions/step-*.parquet", "evaluation/*"),
)
"""What Covey writes into the `output_dir` of a script that trains with its trainer, besides the lock."""
FORMER = "former-"
"""Begins the names of the folders there with what was recorded of trainings before."""


class Inside:
    """Descriptor: a path inside a folder that is an attribute of the object."""

    def __init__(self, name: str, of: str = "root") -> None:
        self._name, self._of = name, of

    def __get__(self, owner: Any, kind: type) -> Path:
        if owner is None:  # accessed on the class, as documentation tools do
            return self  # type: ignore[return-value]
        return Path(getattr(owner, self._of) / self._name)

    def __repr__(self) -> str:
        return repr(self._name)


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One run's folder, `output_dir/run_name`. Creating the object does not touch the disk."""

    root: Path

    config = Inside("config.yaml")
    recipe = Inside("recipe.yaml")
    """Of a run that was given rows: the recipe that was made for them."""
    environment = Inside("environment.json")
    metrics = Inside("metrics.jsonl")
    completions = Inside("completions")
    schedule = Inside("schedule.jsonl")
    """What an asynchronous run wrote when, and by which weights."""
    rollouts = Inside("rollouts")
    """While an asynchronous run trains: the weights that completions are being written by."""
    final_model = Inside("final_model")
    best_model = Inside("best_model")
    """A link to the checkpoint with the best held-out accuracy."""
    evaluation = Inside("evaluation")
    code = Inside("code")
    """Copies of the files of the user's own parts."""
    report = Inside("report.html")
    curves = Inside("curves.png")
    log = Inside("train.log")
    summary = Inside("summary.json")
    audit = Inside("audit.json")
    """What `covey audit` found, where the rollouts of another trainer were made a run."""
    tags = Inside("tags.json")
    """The user's tags and note."""
    _lock = Inside(".lock")

    @staticmethod
    def records_in(checkpoint: Path) -> RunDirectory:
        """The copies in a checkpoint of the run's `config` and `metrics` up to its step."""
        return RunDirectory(checkpoint / "records")

    def process_log(self, index: int) -> Path:
        """The log of one of several training processes; the main one has `log`."""
        return self.log if index == 0 else self.root / f"train.process-{index}.log"

    def checkpoint(self, step: int) -> Path:
        return self.root / f"checkpoint-{step}"

    def exists(self) -> bool:
        """Whether the folder holds a run: a config or a checkpoint, complete or not."""
        return self.config.exists() or bool(self.checkpoints())

    def is_empty(self) -> bool:
        """Whether the folder is missing, or holds only what a run leaves that was killed before its config was written:
        the lock, temporary files, the model before the first step."""
        first = self.checkpoint(0)
        known = (self._lock, first.with_name(f"{first.name}.part"), *([first] if is_complete(first) else []))
        others = [path for path in self.root.iterdir() if path not in known] if self.root.exists() else []
        return all(path.name.startswith(".") and path.name.endswith(".tmp") for path in others)

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Step and path of every checkpoint, complete or not, in ascending order."""
        if not self.root.is_dir():
            return []
        named = ((CHECKPOINT_NAME.fullmatch(path.name), path) for path in self.root.iterdir() if path.is_dir())
        found = sorted((int(name.group(1)), path) for name, path in named if name)
        return [(step, path) for step, path in found if step > 0]  # checkpoint-0 is only a model and cannot be resumed

    def complete_checkpoints(self) -> list[tuple[int, Path]]:
        """Step and path of every complete checkpoint, in ascending order.

        Raises:
            RunDirectoryError: one has a format that this version of Covey cannot read.
        """
        return [(step, path) for step, path in self.checkpoints() if is_complete(path)]

    def newest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, if there is any."""
        complete = self.complete_checkpoints()
        return complete[-1][1] if complete else None

    def best_checkpoint(self) -> Path | None:
        """The checkpoint that `best_model` links to; None without a link, or if the checkpoint is not complete."""
        if not self.best_model.is_symlink():
            return None
        found = self.root / self.best_model.readlink().name
        return found if is_complete(found) else None

    def link_best(self, step: int) -> None:
        """Make `best_model` link to the checkpoint of this step."""
        temporary = self.best_model.with_name(f".{self.best_model.name}.{os.getpid()}.tmp")
        with self.guard(self.best_model.name):
            temporary.unlink(missing_ok=True)
            try:
                temporary.symlink_to(self.checkpoint(step).name)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                    raise
                logger.warning(
                    "The file system of %s has no symbolic links: the best checkpoint is checkpoint-%d.",
                    self.root,
                    step,
                )
                return
            rename(temporary, self.best_model)

    def guard(self, what: str) -> AbstractContextManager[None]:
        """`guard_disk` for this run: its message names the checkpoint from which the run would resume."""
        return guard_disk(what, self.root, self.newest_checkpoint)

    def refuse_newer(self) -> None:
        """Refuse a run in a format newer than this version of Covey knows.

        If `environment.json` is damaged, the format is unknown; a warning is logged.

        Raises:
            RunDirectoryError: the format is newer.
        """
        if not self.environment.is_file():
            return
        environment = self._read_environment()
        if not environment:
            logger.warning("%s cannot be read: it was cut short or changed.", self.environment)
            return
        written = environment.get("format", RUN_FORMAT)
        if not isinstance(written, int) or written > RUN_FORMAT:
            version = (environment.get("packages") or {}).get("covey") or "unknown"
            raise RunDirectoryError(
                f"{self.root} was written by a newer version of Covey ({version}: run format {written}; this version "
                f"reads up to format {RUN_FORMAT}). Update Covey to read it."
            )

    def code_hashes(self) -> dict[str, str]:
        """The hashes of the files of the user's own parts, by name, as `write_environment` got them."""
        code = self._read_environment().get("code")  # an older version wrote none
        return {str(name): str(value) for name, value in code.items()} if isinstance(code, dict) else {}

    def write_environment(self, code: Mapping[str, str] = MappingProxyType({}), used: Sequence[str] = ()) -> None:
        """Write the machine, package versions and command of the run, the hashes of the user's own code, and what is
        used in place of settings. A resumed run keeps the time of its first start."""
        content = {**describe_environment(), "code": dict(code), "used": list(used)}
        if started := self._read_environment().get("started"):
            content["started"] = started
        with self.guard(self.environment.name):
            write_atomically(self.environment, json.dumps(content, indent=2) + "\n")

    @property
    def started(self) -> float:
        """When the run was started first, in seconds since 1970; 0 if that is not known."""
        started = self._read_environment().get("started")
        return datetime.fromisoformat(started).timestamp() if isinstance(started, str) else 0.0

    def _read_environment(self) -> dict[str, Any]:
        """Empty if it is missing or damaged."""
        try:
            content = read_json(self.environment)
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    @contextmanager
    def lock(self, what: str = "the run", instead: str = _WAIT) -> Iterator[None]:
        """Lock the folder against other writers, on this machine or over a shared file system. Creates the folder.

        The operating system releases the lock when the process ends. Folders created for it that are still empty at
        the end are removed.

        Args:
            what: what is written here, for messages.
            instead: advice for when another process holds the lock.

        Raises:
            RunDirectoryError: another process holds the lock, the folder cannot be created, or it was deleted while
                it was written to.
        """
        with self.guard(what), ExitStack() as stack:
            for folder in self._missing_folders():
                stack.callback(_remove_if_empty, folder)
            try:
                self.root.mkdir(parents=True, exist_ok=True)
            except (FileNotFoundError, FileExistsError) as error:  # a file system of the kernel, a dangling link
                raise RunDirectoryError(
                    f"{self.root} cannot be made: {error.strerror}. Set output_dir to another place."
                ) from error
            descriptor = take_lock(self._lock, instead)
            stack.callback(os.close, descriptor)
            try:
                yield
            except Exception as error:
                mine, seen = is_open_at(descriptor, self._lock), isinstance(error, DeletedError)
                records = self.config.exists() or bool(self.complete_checkpoints())
                if seen and not records and self.root.exists() and (mine or not self.is_locked()):
                    self.clear()  # what was still written into the deleted folder would be in a new run's way
                if mine or isinstance(error, CoveyError):
                    raise
                raise DeletedError(self.root, what) from error
            finally:
                if is_open_at(descriptor, self._lock):
                    self._lock.unlink()  # before it is released, so that nobody locks a deleted file

    def refuse_deleted(self) -> None:
        """Stop a run, which holds the lock and has written its config, before it writes into a folder that was deleted
        or moved meanwhile. Raises a `DeletedError` if the folder, or all that was in it, is gone."""
        if not (self._lock.exists() and (self.config.exists() or self.metrics.exists())):
            raise DeletedError(self.root)

    def check_place(self) -> None:
        """Check that a run can be written here. Changes nothing.

        Raises:
            RunDirectoryError: a part of the path is a file, or may not be written to.
        """
        self._missing_folders()
        check_writable("the run", self.root)

    def _missing_folders(self) -> list[Path]:
        """The folders that have to be made, outermost first."""
        path = (*reversed(self.root.parents), self.root)
        file = next((folder for folder in path if os.path.lexists(folder) and not folder.is_dir()), None)
        if file is not None:
            raise RunDirectoryError(f"{file} is a file, so {self.root} cannot be a folder. Choose another name.")
        return [folder for folder in path if not folder.exists()]

    def refuse_locked(self) -> None:
        """Refuse early, before anything is loaded, a run that another process is writing; `lock` is what enforces it.

        Raises:
            RunDirectoryError: a process is writing here.
        """
        if self.is_locked():
            raise in_use(self.root, _WAIT)

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

    def clear(self, *, keep_first: bool = False, keep_config: bool = False) -> None:
        """Delete what a run has written here, for a new run; other files stay.

        The config is deleted last: an interrupted deletion still leaves a run directory, without a complete checkpoint.

        Args:
            keep_first: keep `checkpoint-0`, the model before the first step, which the new run has already written.
            keep_config: keep the config, which is overwritten later.
        """
        checkpoints = [path for _, path in self.checkpoints()]
        if self.best_model.is_symlink():
            self.best_model.unlink()
        if not keep_first and self.checkpoint(0).is_dir():
            checkpoints.append(self.checkpoint(0))
        for path in checkpoints:
            if not path.is_symlink():
                unmark(path)
        part = self.final_model.with_name(f"{self.final_model.name}.part")
        if self.final_model.is_dir():  # atomic: half of it must not be taken for a model
            _delete(part)
            rename(self.final_model, part)
        folders = (self.completions, part, self.evaluation, self.rollouts, self.code)
        records = (self.recipe, self.environment, self.metrics, self.schedule, self.summary)
        files = (*records, self.report, self.curves, self.log)
        logs = (*self.root.glob("train.process-*.log"), *self.root.glob("train*.log.1"))
        for path in (*checkpoints, *folders, *files, self.audit, *logs, *(() if keep_config else (self.config,))):
            _delete(path)

    def delete(self) -> list[str]:
        """Delete the run or evaluation here, and the folder if nothing else lies in it.

        Returns:
            The names of other files, which stay.

        Raises:
            RunDirectoryError: nothing says that Covey wrote this, a process is writing here, or files may not be
                deleted.
        """
        self._check_origin()
        with self.guard("the deletion"):
            with self.lock("the deletion"):
                if self.exists() or self.metrics.exists():  # else it is an evaluation
                    self.clear()
                for name in (*_BESIDES, ".*.tmp"):
                    for path in self.root.glob(name):
                        if path.is_symlink() or not path.is_dir():
                            path.unlink()
            left = sorted(path.name for path in self.root.iterdir())
            if not left:
                self.root.absolute().rmdir()  # it may be the working directory
        return left

    def _check_origin(self) -> None:
        """Refuse another program's folder that has files of the same names."""
        for path, key in ((self.environment, "packages"), (self.root / "settings.json", "format")):
            try:
                if key in read_json(path):
                    return
            except FileNotFoundError:
                continue
            except (OSError, TypeError, ValueError):  # damaged
                return
        raise RunDirectoryError(
            f"{self.root} looks like a run, but no environment.json or settings.json in it says that Covey wrote it: "
            "delete it by hand."
        )


def _delete(path: Path) -> None:
    """Delete a file, a folder or a link, if there is one; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


PACKAGES = ("covey", "torch", "transformers", "trl", "accelerate", "peft", "datasets")


def describe_environment() -> dict[str, object]:
    """Machine and software details that affect a run's numbers and speed; None if unknown."""
    return {
        "format": RUN_FORMAT,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(redact_words(sys.argv)),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "cpu_count": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        **_git_state(),
    }


def version_of(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
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

    if git("ls-files", "--error-unmatch", here.name) is None:  # an installed copy inside some other checkout
        return {"git_commit": None, "git_modified": None}
    changes = git("status", "--porcelain", "--untracked-files=no")
    return {"git_commit": git("rev-parse", "HEAD"), "git_modified": None if changes is None else changes != ""}
