"""Covey's own engine in a process of its own: calls, weights through a folder, and a process that is replaced."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covey import errors
from covey.errors import CoveyError, EngineError
from covey.rollout.engine import Capabilities, Completion, NamedWeights, OnEnded, SamplingSettings
from covey.rollout.process.messages import (
    DONE,
    FAILED,
    LOG,
    READY,
    ROW,
    Generate,
    Interrupt,
    Seed,
    Start,
    Sync,
    read_row,
)
from covey.rollout.process.model_copy import ModelCopy
from covey.rollout.process.started import EndedError, StartedProcess, Starter
from covey.rollout.weight_folder import write_folder
from covey.runlog.directory import temporary_folder
from covey.runlog.files import rename
from covey.workers.channel import BadMessageError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TRIES = 3
"""How often in a row a process may end during the same call."""
_POLL_SECONDS = 0.02
"""Between two questions whether a call is interrupted."""


def default_threads() -> int:
    """Half of the cores of this process, at least one: the trainer needs the others."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)


class ProcessEngine:
    """A `LocalEngine` in a process of its own. Calls may come from any thread, one at a time.

    The same weights, prompts, seeds and number of threads give the same completions, bit for bit, as a `LocalEngine` in
    this process does. A process that dies is replaced: the new one gets the weights of the last sync, and the call is
    made again with the same seeds.
    """

    def __init__(
        self,
        model_name: PreTrainedModel | Any,
        tokenizer: PreTrainedTokenizerBase,
        *,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        folder: Path | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        shared_prefill: bool = True,
        autocast: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        """Start the process; it gets ready in the background.

        Args:
            model_name: the trainer's model, of which the process builds a copy that gets its weights by `sync`, with
                adapters merged; or the name of a model that is loaded there.
            device: of the copy; `cuda:1`, for one.
            threads: of the process, on which its results depend in the last bits; None is `default_threads`.
            folder: for the weights of `sync` and the process's output; None takes a temporary one.
            seed: of the calls that have none.
            options: of `from_pretrained`, for a name. The others are those of `LocalEngine`.

        Raises:
            EngineError: the process cannot take this model.
        """
        self.threads = threads or default_threads()
        self._draw = random.Random(seed)
        self._lock = threading.RLock()
        own = contextlib.ExitStack()
        self._folder = folder or own.enter_context(temporary_folder("covey-rollout-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        given = {"batch_size": batch_size, "shared_prefill": shared_prefill, "autocast": autocast, **options}
        start = Start(
            model_name if isinstance(model_name, str) else ModelCopy.of(model_name, tokenizer),
            torch.device(device),
            self.threads,
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            {"tokenizer": tokenizer, **given},
        )
        self._starter = Starter(start, self._folder / "output.log", self.threads)
        self._end = weakref.finalize(self, _end, self._starter, own)
        self._process: StartedProcess | None = None
        with contextlib.suppress(EndedError):  # which the first call finds again
            self._process = self._starter.start()
        self._capabilities: Capabilities | None = None
        self._synced: tuple[Path, int] | None = None
        self._calls = 0
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """Those of the `LocalEngine` there; waits until it is ready."""
        if self._capabilities is None:
            self._repeated("while it started", lambda process: None)
        assert self._capabilities is not None
        return self._capabilities

    @property
    def version(self) -> int | None:
        """See `InferenceEngine`."""
        return None if self._synced is None else self._synced[1]

    @property
    def pid(self) -> int | None:
        """The id of the process, which changes when it is replaced."""
        return None if self._process is None else self._process.pid

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingSettings,
        *,
        seed: Seed = None,
        max_lengths: Sequence[int] | None = None,
        interrupted: Callable[[], bool] | None = None,
        on_ended: OnEnded | None = None,
    ) -> list[Completion]:
        """See `InferenceEngine` and `Capabilities`. It blocks, while other threads of this process go on.

        Args:
            seed: of the call, or of each prompt.
            max_lengths: the longest completion of each prompt, where it is below that of the settings.
            interrupted: see `Capabilities.interruptible`; asked about fifty times a second, by this thread.
            on_ended: see `Capabilities.interruptible`; called by this thread, once for each row.

        Raises:
            EngineError: the process failed, or died several times in a row; or the engine was closed meanwhile.
            DataError: see `LocalEngine.generate`.
            TrainingError: see `LocalEngine.generate`.
        """
        seeds: Seed = self._draw.randrange(2**31) if seed is None else seed if isinstance(seed, int) else list(seed)
        rows = [list(map(int, ids)) for ids in prompts]
        limits = None if max_lengths is None else list(map(int, max_lengths))
        reported = set[int]()

        def ended(index: int, one: Completion) -> None:
            if on_ended is not None and index not in reported and not one.unfinished:
                reported.add(index)
                on_ended(index, one)

        def ask(process: StartedProcess) -> list[Completion]:
            self._calls += 1
            process.send(Generate(self._calls, rows, sampling, seeds, limits))
            return self._completions(process, len(rows), ended, interrupted)

        return self._repeated("while it generated", ask)

    def sync(self, weights: NamedWeights, version: int) -> None:
        """See `InferenceEngine`. The weights are written into a folder, where they stay until the next sync."""
        with self._lock:
            new = self._folder / f"weights-{version}.new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            write_folder(new, weights)
            last = self._synced
            final = self._folder / f"weights-{version}"
            shutil.rmtree(final, ignore_errors=True)
            rename(new, final)
            self.sync_folder(final, version)
            if last is not None and last[0].parent == self._folder and last[0] != final:
                shutil.rmtree(last[0])

    def sync_folder(self, folder: Path, version: int) -> None:
        """As `sync`, with weights that `covey.rollout.weight_folder.write_folder` has written.

        Args:
            folder: it is read again when a process has died, so it stays as it is until the next sync has returned.
            version: of these weights, from now on.
        """

        def ask(process: StartedProcess) -> None:
            self._send_weights(process, folder, version)

        with self._lock:
            self._synced, last = None, self._synced
            try:
                self._repeated("while it read weights", ask)
            except BaseException:
                self._synced = last
                raise
            self._synced = (folder, version)

    def close(self) -> None:
        """End the process; a call that waits for it raises an `EngineError`."""
        self._closed = True
        self._end()

    def _repeated(self, when: str, ask: Callable[[StartedProcess], T]) -> T:
        """Ask the process; where it dies, start another one and ask that."""
        with self._lock:
            for left in reversed(range(_TRIES)):
                try:
                    if not self._closed:
                        return ask(self._running())
                except BadMessageError as error:
                    self._starter.stop()
                    self._process = None
                    raise EngineError(f"The rollout process sent {error}.") from None
                except EndedError as ended:
                    self._process = None
                    if not self._closed:
                        self._report(ended, when, left)
        raise EngineError("The rollout engine was closed.")

    def _report(self, ended: EndedError, when: str, left: int) -> None:
        """Log the end of a process; raise it if no try is left."""
        if left:
            what = "another one is started, and what was lost is done again"
            logger.warning("The rollout process %s %s: %s. %s", ended.how, when, what, ended.output)
            return
        full = " Was the memory full?" if "SIGKILL" in ended.how else ""
        raise EngineError(f"The rollout process {ended.how} {when}, {_TRIES} times in a row.{full} {ended.output}")

    def _running(self) -> StartedProcess:
        """The process, ready, with the weights of the last sync."""
        process = self._process = self._process or self._starter.start()
        if not process.ready:
            names = {one.name for one in fields(Capabilities)}
            can = self._answer(process, 0, READY)[0]
            self._capabilities = Capabilities(**{name: bool(can[name]) for name in names & set(can)})
            process.ready = True
            if self._synced is not None:
                self._send_weights(process, *self._synced)
        return process

    def _send_weights(self, process: StartedProcess, folder: Path, version: int) -> None:
        self._calls += 1
        process.send(Sync(self._calls, str(folder.resolve()), version))
        self._answer(process, self._calls, DONE)

    def _completions(
        self, process: StartedProcess, count: int, ended: OnEnded, interrupted: Callable[[], bool] | None
    ) -> list[Completion]:
        """The completions of the newest call, as they come in."""
        found: dict[int, Completion] = {}
        call, told, done = self._calls, False, False
        try:
            while not done:
                if interrupted is not None and not told:
                    while not process.readable(_POLL_SECONDS) and not told:
                        told = interrupted()
                    if told:
                        process.send(Interrupt(call))
                kind, body, data = self._next(process, call)
                done = kind == DONE
                if kind == ROW:
                    index, one = read_row(body, data)
                    found[index] = one
                    ended(index, one)
        finally:
            if not done:  # what was asked here raised: nobody waits for the rest
                process.abandon(Interrupt(call))
        if sorted(found) != list(range(count)):
            raise EngineError(f"The rollout process returned {len(found)} completions of {count} prompts.")
        return [found[index] for index in range(count)]

    def _answer(self, process: StartedProcess, call: int, kind: str) -> list[Any]:
        """What follows the number of the call in its answer."""
        while True:
            found, body, _ = self._next(process, call)
            if found == kind:
                return body

    def _next(self, process: StartedProcess, call: int) -> tuple[str, list[Any], bytearray]:
        """The next message of a call; lines for the log are logged, and what calls before it left is skipped.

        Raises:
            EngineError: or another CoveyError that the process sent.
            EndedError: it died, or sends nonsense.
        """
        while True:
            message, data = process.receive()
            if not isinstance(message, list) or len(message) < 2:
                raise BadMessageError("something that is not a message")
            kind, of, *body = message
            if kind == LOG:
                level, name, text = body
                logging.getLogger(str(name)).log(int(level), "%s", text)
            elif kind == FAILED and of in (0, call):
                raise _error(*map(str, body))
            elif of == call:
                return str(kind), body, data


def _end(starter: Starter, own: contextlib.ExitStack) -> None:
    if starter.close():
        own.close()


def _error(name: str, text: str) -> CoveyError:
    """The error of the process, of the same class if it is Covey's."""
    kind = getattr(errors, name, None) if name else None
    if isinstance(kind, type) and issubclass(kind, CoveyError) and kind.__init__ is CoveyError.__init__:
        return kind(text)
    return EngineError(f"The rollout process failed: {text}")
