"""The rollout process: `python -m covey.rollout.process.child FD PARENT`, started by `ProcessEngine`.

It ends when its trainer does, whatever ended that: the kernel kills it with its parent, and where the trainer's end of
the channel is closed it exits, also in the middle of a call. Ctrl-C and SIGTERM are ignored: the trainer decides.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from covey.errors import CoveyError, EngineError, one_line
from covey.rollout.engine import Completion
from covey.rollout.local.engine import LocalEngine
from covey.rollout.process import messages
from covey.rollout.weight_folder import read_folder
from covey.workers.channel import receive, send_with_bytes
from covey.workers.leftover_processes import die_with_parent
from covey.workers.signals import STOPS

_LEVELS = {"": logging.WARNING, "covey": logging.INFO}
"""By logger, from which level on the trainer gets what is logged."""


def main(arguments: list[str]) -> None:
    """Serve calls until the trainer is gone."""
    die_with_parent()
    if os.getppid() != int(arguments[1]):  # it died before
        return
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    channel = _Channel(socket.socket(fileno=int(arguments[0])))
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addHandler(_ToTrainer(channel))
    threading.Thread(target=channel.read, daemon=True).start()
    served = _Served(channel)
    while True:
        served.handle(channel.calls.get())


class _Channel:
    """The channel to the trainer. A thread of its own reads it, so that interruptions and the trainer's end are seen
    while a call is computed."""

    def __init__(self, end: socket.socket) -> None:
        end.set_inheritable(False)
        self._socket = end
        self._sending = threading.Lock()
        self.calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.interrupted = 0
        """The last call that is to end early."""

    def read(self) -> None:
        """Read until the trainer is gone, then end this process."""
        try:
            sys.path[:] = receive(self._socket) or sys.path
            while (message := receive(self._socket)) is not None:
                if isinstance(message, messages.Interrupt):
                    self.interrupted = message.call
                else:
                    self.calls.put(message)
        except ConnectionError:
            os._exit(0)
        except BaseException as error:  # such as a class of the model that cannot be imported here
            self.fail(0, error)
        os._exit(0)

    def send(self, message: list[Any], data: bytes = b"") -> None:
        """Send a message; ends this process if the trainer is gone."""
        try:
            with self._sending:
                send_with_bytes(self._socket, message, data)
        except OSError:
            os._exit(0)

    def fail(self, call: int, error: BaseException) -> None:
        """Send an error; the traceback is printed unless the message says all."""
        ours = isinstance(error, CoveyError)
        if not ours:
            traceback.print_exception(error)
        text = str(error) if ours else f"{type(error).__name__}: {one_line(error)}"
        self.send([messages.FAILED, call, type(error).__name__ if ours else "", text])


class _ToTrainer(logging.Handler):
    """Sends what is logged to the trainer, whose log it belongs into."""

    def __init__(self, channel: _Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.send([messages.LOG, 0, record.levelno, record.name, self.format(record)])


class _Served:
    """The engine, and what the trainer asks of it."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._engine: LocalEngine
        self._missing: set[str]
        """Weights that the last sync has not brought."""

    def handle(self, message: Any) -> None:
        """Handle one message; what it raises is sent."""
        try:
            match message:
                case messages.Start():
                    self._start(message)
                case messages.Sync():
                    self._sync(message)
                case messages.Generate():
                    self._write(message)
        except Exception as error:
            self._channel.fail(getattr(message, "call", 0), error)

    def _start(self, message: messages.Start) -> None:
        torch.set_num_threads(message.threads)
        torch.set_float32_matmul_precision(message.matmul_precision)
        torch.use_deterministic_algorithms(message.deterministic)
        if message.device.type == "cuda":
            torch.cuda.set_device(message.device)
        model, named = message.model, isinstance(message.model, str)
        self._engine = LocalEngine(model if isinstance(model, str) else model.build(message.device), **message.options)
        self._engine.model.to(message.device).eval()
        self._missing = set() if named else {name for name, _ in self._engine.model.named_parameters()}
        can = self._engine.capabilities
        self._channel.send([messages.READY, 0, {name: getattr(can, name) for name in type(can).__slots__}])

    def _sync(self, message: messages.Sync) -> None:
        missing = self._missing = {name for name, _ in self._engine.model.named_parameters()}

        def named() -> Iterator[tuple[str, torch.Tensor]]:
            for name, weights in read_folder(Path(message.folder)):
                yield name, weights
                missing.discard(name)

        self._engine.sync(named(), message.version)
        if missing:
            raise EngineError(
                f"The weights of version {message.version} in {message.folder} lack {len(missing)} of the model's, "
                f"{min(missing)} for one: a sync brings all of them."
            )
        self._channel.send([messages.DONE, message.call])

    def _write(self, message: messages.Generate) -> None:
        if self._missing:
            raise EngineError(
                f"The rollout process has no weights of {min(self._missing)} yet: sync all of them first."
            )
        sent = set[int]()

        def send_row(index: int, one: Completion) -> None:
            sent.add(index)
            self._channel.send(*messages.row_message(message.call, index, one))

        found = self._engine.generate(
            message.prompts,
            message.sampling,
            seed=message.seed,
            max_lengths=message.max_lengths,
            interrupted=lambda: self._channel.interrupted >= message.call,
            on_ended=send_row,
        )
        for index, one in enumerate(found):
            if index not in sent:
                send_row(index, one)
        self._channel.send([messages.DONE, message.call])


if __name__ == "__main__":
    main(sys.argv[1:])
