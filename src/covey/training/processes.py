"""The processes of a run: which is the main one, what all agree on, and how one that fails ends the others.

One process fails and the others wait for it in a collective: on the CPU they fail too, with an error that says nothing;
on GPUs they hang. So a process that fails leaves word in the store by which the processes found each other, every
process watches that store, and the others end quietly: the one that failed says why.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

from covey.config import Config
from covey.config.mesh import check_axis, check_mesh
from covey.errors import ConfigError, CoveyError, EndedElsewhereError

T = TypeVar("T")

logger = logging.getLogger(__name__)

_FAILED = "covey/failed/{run}"
_runs = count(1)
"""Runs that this program has begun: what one run leaves in the store must not end the next."""
_LOOK_EVERY = 1.0
_GRACE = 15.0
"""Seconds that a process may take to come out of a collective by itself, once another has failed."""
_SPEAK_FIRST = 10.0
"""Seconds that the process that failed gets to say why. A launcher ends all as soon as one has ended."""


@dataclass(slots=True)
class Processes:
    """The training processes, seen from one of them. `Processes()` is a run of one process."""

    index: int = 0
    count: int = 1
    _store: Any = None  # a torch.distributed.Store, whose type torch does not export
    _failed: str = _FAILED
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def is_main(self) -> bool:
        """Whether this one shows, writes and reports."""
        return self.index == 0

    @classmethod
    def join(cls, config: Config) -> Processes:
        """Meet the other processes, if the launcher has started several (torchrun's environment variables).

        Raises:
            ConfigError: they do not fit `model.mesh_shape`, or need a package that is not installed.
        """
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        check_mesh(config.model.mesh_shape, processes)
        for axis in ("tp", "cp", "sp"):  # what an accelerate config has asked for
            size = int(os.environ.get(f"PARALLELISM_CONFIG_{axis.upper()}_SIZE", "1"))
            check_axis(axis, size, "the accelerate config")
        _check_deepspeed()
        if processes == 1:
            return cls()
        import torch
        from accelerate import PartialState

        timeout = timedelta(seconds=config.training.ddp_timeout)
        more = {} if config.training.ddp_backend is None else {"backend": config.training.ddp_backend}
        cpu = bool(config.training.use_cpu) or not torch.accelerator.is_available()
        if not torch.distributed.is_initialized():
            atexit.register(_part)
        PartialState._reset_state()  # of an earlier run in this program
        state = PartialState(cpu=cpu, timeout=timeout, **more)
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]  # torch's types leave it out
            host, port, is_master=False, timeout=timeout
        )
        return cls(state.process_index, state.num_processes, store, _FAILED.format(run=next(_runs)))

    def agree_on(self, value: T) -> T:
        """What the main process has, in every process."""
        if self.count == 1:
            return value
        from accelerate.utils import broadcast_object_list

        found: T = broadcast_object_list([value])[0]
        return found

    def gather(self, value: T) -> list[T]:
        """What every process has, in their order."""
        if self.count == 1:
            return [value]
        import torch

        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Wait until all have come here."""
        self.gather(None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within, each does its part; if that fails anywhere, none goes on. A `CoveyError` is told once.

        Raises:
            EndedElsewhereError: another process failed, and says why.
        """
        failed: CoveyError | None = None
        try:
            yield
        except CoveyError as error:
            failed = error
        told = self.gather(None if failed is None else failed.exit_code)
        first = next((index for index, code in enumerate(told) if code is not None), None)
        if first is None:
            return
        if failed is None or first != self.index:
            self._let_speak()
            raise EndedElsewhereError(first, int(told[first] or 1)) from None
        failed.told_here = True
        raise failed

    @contextmanager
    def main_of_machine_first(self) -> Iterator[None]:
        """Within, one process of each machine goes first: it fills the caches that the others then read."""
        if self.count == 1:
            yield
            return
        first = os.environ.get("LOCAL_RANK", "0") == "0"
        if not first:
            self.wait()
        try:
            yield
        finally:
            if first:
                self.wait()

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Within, a failure of any process ends all of them, and what it said stays the only thing that is said.

        Raises:
            EndedElsewhereError: another process failed.
        """
        if self._store is None:
            yield
            return
        store = self._store
        threading.Thread(target=self._watch, daemon=True, name="covey-processes").start()
        try:
            yield
        except EndedElsewhereError:
            self._ended.set()
            raise
        except BaseException as error:
            code = error.exit_code if isinstance(error, CoveyError) else 1
            word = self._leave_word(store, f"{self.index} {code}")
            self._ended.set()
            if word.startswith(f"{self.index} ") or isinstance(error, KeyboardInterrupt):
                if isinstance(error, CoveyError):
                    error.told_here = True
                raise
            self._let_speak()
            raise _elsewhere(word) from None

    def leave(self) -> None:
        """Part from the others, all at once; after that nothing can be asked of them. May be called again."""
        if self._store is None or self._ended.is_set():
            return
        self.wait()
        self._ended.set()

    def any_signal(self, caught: int | None) -> int | None:
        """The signal that any process has caught; of several the one of the highest number."""
        if self.count == 1:
            return caught
        return max((number for number in self.gather(caught) if number is not None), default=None)

    def _leave_word(self, store: Any, word: str) -> str:
        """Say in the store that this process failed; returns the word of the first that did."""
        try:
            return str(store.compare_set(self._failed, "", word).decode())
        except RuntimeError:  # it went with whoever held it: nobody is left to ask
            return word

    def _watch(self) -> None:
        """End this process where another one has failed and this one does not come out by itself."""
        assert self._store is not None
        while not self._ended.wait(_LOOK_EVERY):
            try:
                if not self._store.check([self._failed]):
                    continue
                word = self._store.get(self._failed).decode()
            except RuntimeError:  # the store went with the process or the launcher that held it
                word = "0 1"
            if word.startswith(f"{self.index} ") or self._ended.wait(_GRACE):
                return
            error = _elsewhere(word)
            logger.error("%s", error)
            os._exit(error.exit_code)

    def _let_speak(self) -> None:
        """Give the process that failed the time to say why, before a launcher sees this one end and ends all."""
        time.sleep(_SPEAK_FIRST)


def _part() -> None:
    """At the end of the program: left to the interpreter, threads of the process group may abort it."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _elsewhere(word: str) -> EndedElsewhereError:
    index, code = word.split()
    return EndedElsewhereError(int(index), int(code))


def _check_deepspeed() -> None:
    from importlib.util import find_spec

    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true" and find_spec("deepspeed") is None:
        raise ConfigError(
            "This run was started with an accelerate config for DeepSpeed, and the package deepspeed is not installed: "
            "pip install deepspeed, or take FSDP2, which needs no package (launch.accelerate=fsdp2)."
        )


def silent_console() -> Any:
    """A rich console for the processes that are not the main one."""
    from io import StringIO

    from rich.console import Console

    return Console(file=StringIO(), quiet=True)


class StopRequest:
    """Asks for a clean stop when a signal comes. A second Ctrl-C interrupts at once; a launcher that hands on the
    signal which the terminal or the scheduler has sent to all processes already does not count as a second one."""

    _HANDED_ON = 3.0

    def __init__(self, tell: Callable[[int], None], *, alone: bool) -> None:
        self._tell = tell
        self._alone = alone
        self._at = 0.0
        self.signal: int | None = None
        """The signal that asked first."""

    def __call__(self, number: int, frame: object) -> None:
        if self.signal is None:
            self.signal, self._at = number, time.monotonic()
            self._tell(number)
        elif number == signal.SIGINT and (self._alone or time.monotonic() - self._at > self._HANDED_ON):
            raise KeyboardInterrupt
