"""Keeping a plan's processes running, and ending all of them, whatever happens to one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from covey.launch.guard import end_all
from covey.launch.health import answers
from covey.launch.machine import LaunchError
from covey.launch.plan import SERVER, TRAINER, Plan
from covey.launch.process import Managed, Tail
from covey.runlog.directory import RunDirectory
from covey.runlog.files import write_atomically

RESUMED = ("resume=auto", "overwrite=false")
"""Overrides of training that is started again: it goes on from its newest whole checkpoint."""

_TICK = 0.05
_HEALTH_SECONDS = 0.5
_SERVER_STOP_SECONDS = 10.0
_DUMP_SECONDS = 1.0
_HUNG_STOP_SECONDS = 10.0
_OUTAGE_SECONDS = 60.0
"""Training that fails so soon after its server did, failed because of it."""
_LAST_LINES = 15
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the supervisor waits, and how often it tries again; the keys `launch.*` of the same names."""

    server_timeout: float = 600.0
    server_restarts: int = 3
    step_timeout: float | None = 3600.0
    hang_restarts: int = 1
    stop_timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a plan ended."""

    code: int
    """The exit code of training; 128 and the signal's number when the launcher was asked to stop."""
    signal: int | None = None
    """The signal that asked."""
    clean: bool = False
    """Whether training stopped by itself when it was asked to, with a checkpoint."""


class Reporter(Protocol):
    """What the supervisor tells."""

    def say(self, text: str) -> None:
        """Something happened."""

    def waiting(self, text: str, lines: list[str]) -> None:
        """Something takes time; the last lines of its log. An empty text ends it."""

    def echo(self, text: str) -> None:
        """What training wrote."""


class Supervisor:
    """Runs the processes of one node."""

    def __init__(
        self,
        plan: Plan,
        node: int,
        patience: Patience,
        reporter: Reporter,
        *,
        to_terminal: bool = False,
        ended_elsewhere: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Prepare it; nothing is started.

        Args:
            plan: what is started.
            node: which of its nodes this is.
            patience: timeouts and tries.
            reporter: what is told.
            to_terminal: whether training prints to where this process prints.
            ended_elsewhere: for a node that only serves: the exit code of training once it has ended.
        """
        self._plan, self._patience, self._reporter = plan, patience, reporter
        self._to_terminal, self._ended_elsewhere = to_terminal, ended_elsewhere
        mine = {process.name: process for process in plan.on(node)}
        self._server_process, self._trainer_process = mine.get(SERVER), mine.get(TRAINER)
        self._server: Managed | None = None
        self._trainer: Managed | None = None
        self._signal: int | None = None
        self._interrupted = False
        self._instance = 0
        self._server_up = False
        self._server_tail: Tail | None = None
        self._trainer_tail: Tail | None = None
        self._server_deadline = 0.0
        self._server_asked = 0.0
        self._server_lost: float | None = None
        self._server_tries = patience.server_restarts
        self._hang_tries = patience.hang_restarts
        self._progress = _Progress(RunDirectory(plan.run))

    def run(self) -> Ending:
        """Start everything, and wait for training to end; then nothing that was started is left.

        Raises:
            LaunchError: the server never answered, or died too often, or training hung too often.
        """
        with self._listening():
            try:
                self._begin_server()
                if not self._await_server():
                    return Ending(128 + self._stopped_by, self._signal)
                if self._trainer_process is None:
                    return self._serve()
                self._begin_trainer(())
                return self._watch()
            finally:
                self._end_everything()

    # -- asking to stop

    @property
    def _stopped_by(self) -> int:
        """The signal's number in the exit code: Slurm's warning ends a run as SIGTERM would."""
        if self._signal is None or self._signal == signal.SIGUSR1:
            return int(signal.SIGTERM)
        return self._signal

    @contextmanager
    def _listening(self) -> Iterator[None]:
        before = [signal.signal(number, self._on_signal) for number in _STOPS]
        try:
            yield
        finally:
            for number, handler in zip(_STOPS, before, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signal == signal.SIGINT:
            self._interrupted = True
        if self._signal is None:
            self._signal = number

    # -- the server

    def _begin_server(self) -> None:
        server = self._plan.server
        if server is None:
            self._server_up = True
            return
        self._server_up = False
        self._server_deadline = time.monotonic() + self._patience.server_timeout
        process = self._server_process
        if process is None:
            return
        self._instance += 1
        self._server_tail = Tail(process.log)
        self._server = Managed(process.command, process.environment, process.log, _SERVER_STOP_SECONDS)
        self._reporter.say(f"vLLM server started ({process.log}); it will answer at {server.url}.")

    def _await_server(self) -> bool:
        """Wait until the server answers; False when the launcher was asked to stop before."""
        began = time.monotonic()
        while not self._server_up:
            if self._signal is not None:
                return False
            self._look_at_server()
            if self._server is not None and (code := self._server.poll()) is not None:
                raise LaunchError(
                    f"The vLLM server ended with exit code {code} before it answered.{self._server_end()}"
                )
            waited = time.monotonic() - began
            lines = self._server_tail.last_lines(5) if self._server_tail else []
            self._reporter.waiting(f"waiting for the vLLM server at {self._server_url} ({waited:.0f} s)", lines)
            time.sleep(_TICK)
        self._reporter.waiting("", [])
        return True

    @property
    def _server_url(self) -> str:
        return self._plan.server.url if self._plan.server else ""

    def _look_at_server(self) -> None:
        """Note whether a server that is starting answers by now.

        Raises:
            LaunchError: its time is over.
        """
        server, now = self._plan.server, time.monotonic()
        if server is None or self._server_up or now < self._server_asked + _HEALTH_SECONDS:
            return
        self._server_asked = now
        if answers(server.health) and (self._server is None or self._server.poll() is None):
            self._server_up = True
            if self._server is not None:
                state = {"instance": self._instance, "url": server.url, "time": time.time()}
                write_atomically(self._plan.server_file, json.dumps(state) + "\n")
            self._reporter.say(f"vLLM server at {server.url} answers.")
        elif now > self._server_deadline:
            seconds = self._patience.server_timeout
            raise LaunchError(
                f"The vLLM server at {server.url} did not answer within {seconds:g} s (launch.server_timeout)."
                f"{self._server_end()}"
            )

    def _server_end(self) -> str:
        if self._server_tail is None:
            return " It is not started by this launcher: start it first, or leave its address out of the config."
        lines = self._server_tail.last_lines(_LAST_LINES)
        text = "\n".join(f"  {line}" for line in lines) if lines else "  (nothing)"
        return f" The end of its log, {self._server_tail.path}:\n{text}"

    def _tend_server(self) -> None:
        """Start a server again that has died.

        Raises:
            LaunchError: it has died too often.
        """
        if self._server is not None and (code := self._server.poll()) is not None:
            self._lose_server()
            self._server.close()
            self._server = None
            if self._server_tries == 0:
                raise LaunchError(
                    f"The vLLM server ended with exit code {code}, and was started again "
                    f"{self._patience.server_restarts} times before (launch.server_restarts).{self._server_end()}"
                )
            self._server_tries -= 1
            self._reporter.say(
                f"the vLLM server ended with exit code {code}; starting it again ({self._server_tries} tries are left "
                "after this one)."
            )
            self._begin_server()
        self._look_at_server()

    def _lose_server(self) -> None:
        self._server_lost = time.monotonic()

    def _serve(self) -> Ending:
        """On a node that only serves: go on until training has ended elsewhere."""
        while self._signal is None:
            self._tend_server()
            if (code := self._ended_elsewhere()) is not None:
                return Ending(code)
            time.sleep(_TICK * 10)
        return Ending(128 + self._stopped_by, self._signal, clean=True)

    # -- training

    def _begin_trainer(self, more: tuple[str, ...]) -> None:
        process = self._trainer_process
        assert process is not None
        for file in self._plan.logs.glob("finish-*.json"):
            file.unlink(missing_ok=True)
        self._progress.restart()
        if self._trainer_tail is None:
            self._trainer_tail = Tail(process.log)
        self._trainer = Managed(
            (*process.command, *more),
            process.environment,
            process.log,
            self._patience.stop_timeout,
            to_terminal=self._to_terminal,
        )

    def _watch(self) -> Ending:
        stopping = False
        while True:
            trainer = self._trainer
            assert trainer is not None
            code = trainer.poll()
            self._echo()
            if code is not None:
                ending = self._trainer_ended(code)
                if ending is not None:
                    return ending
                stopping = False
                continue
            if self._interrupted:
                trainer.kill()
            elif self._signal is not None:
                if not stopping:
                    stopping = True
                    self._reporter.say(f"{signal.Signals(self._signal).name}: training ends with a checkpoint.")
                    trainer.stop()
            else:
                self._tend_server()
                if self._hangs():
                    self._end_hanging()
            time.sleep(_TICK)

    def _trainer_ended(self, code: int) -> Ending | None:
        """What follows from it; None when it was started again."""
        code, orderly = _told(self._plan.logs, code)
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None
        if self._signal is not None:
            finished = code == 0
            return Ending(0 if finished else 128 + self._stopped_by, self._signal, clean=orderly or finished)
        if code == 0:
            return Ending(0)
        self._tend_server()
        if self._server_failed_first():
            self._reporter.say(f"training ended with exit code {code} because its vLLM server was gone.")
            if not self._await_server():
                return Ending(128 + self._stopped_by, self._signal)
            self._server_lost = None
            self._reporter.say("training goes on from its newest checkpoint.")
            self._begin_trainer(RESUMED)
            return None
        if not orderly:  # otherwise what it said to its user is enough
            self._reporter.say(self._trainer_end(code))
        return Ending(code)

    def _server_failed_first(self) -> bool:
        if self._plan.server is None:
            return False
        if self._server_process is not None:
            return self._server_lost is not None and time.monotonic() - self._server_lost < _OUTAGE_SECONDS
        if answers(self._plan.server.health):
            return False
        self._server_up = False
        self._server_deadline = time.monotonic() + self._patience.server_timeout
        if self._server_tries == 0:
            return False
        self._server_tries -= 1
        return True

    def _trainer_end(self, code: int) -> str:
        how = f"was killed by {_signal_name(code)}" if code > 128 else f"ended with exit code {code}"
        assert self._trainer_tail is not None
        lines = self._trainer_tail.last_lines(_LAST_LINES)
        if self._plan.accelerate is None and lines and code <= 128:
            return f"training {how}; all that it said is in {self._trainer_tail.path}."
        text = "\n".join(f"  {line}" for line in lines) if lines else "  (nothing)"
        return f"training {how}. The end of {self._trainer_tail.path}:\n{text}"

    def _echo(self) -> None:
        if self._trainer_tail is not None and (text := self._trainer_tail.new_text()):
            self._reporter.echo(text)

    # -- hanging

    def _hangs(self) -> bool:
        limit = self._patience.step_timeout
        if limit is None or not self._server_up:
            return False
        return self._progress.seconds_since() > limit

    def _end_hanging(self) -> None:
        """Have stacks written, end training and its server, and start both again if there are tries left.

        Raises:
            LaunchError: there are none.
        """
        trainer, limit = self._trainer, self._patience.step_timeout
        assert trainer is not None
        trainer.dump()
        time.sleep(_DUMP_SECONDS)
        stacks = ", ".join(str(path) for path in sorted(self._plan.logs.glob("stacks-*.txt"))) or "no process could"
        text = (
            f"training made no progress for {limit:g} s (launch.step_timeout). Where it stands was written: {stacks}."
        )
        _end(trainer, _HUNG_STOP_SECONDS)
        self._trainer = None
        if self._hang_tries == 0:
            raise LaunchError(
                f"{text[0].upper()}{text[1:]} It was ended; it had been resumed {self._patience.hang_restarts} times "
                "before (launch.hang_restarts). The same command goes on from its newest checkpoint."
            )
        self._hang_tries -= 1
        self._reporter.say(f"{text} It is ended and resumed.")
        if self._server is not None:  # it may be what training waited for
            _end(self._server, _SERVER_STOP_SECONDS)
            self._server = None
            self._begin_server()
        if self._await_server():
            self._begin_trainer(RESUMED)
        else:
            raise LaunchError("The launcher was asked to stop while a run that had hung was being resumed.")

    # -- the end

    def _end_everything(self) -> None:
        self._reporter.waiting("", [])
        for managed in (self._trainer, self._server):
            if managed is not None:
                managed.stop()
        for managed in (self._trainer, self._server):
            if managed is not None:
                while managed.poll() is None:
                    if self._interrupted:
                        managed.kill()
                    time.sleep(_TICK)
                managed.close()
        self._echo()
        # What a guard that was killed has left behind is ours now.
        end_all(os.getpid(), self._patience.stop_timeout if self._trainer_process else _SERVER_STOP_SECONDS)


class _Progress:
    """When a run last got on: by the files that it writes, step by step."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._seen = 0.0
        self._at = time.monotonic()

    def restart(self) -> None:
        self._seen, self._at = self._newest(), time.monotonic()

    def seconds_since(self) -> float:
        newest = self._newest()
        if newest != self._seen:
            self._seen, self._at = newest, time.monotonic()
        return time.monotonic() - self._at

    def _newest(self) -> float:
        run = self._run
        paths = (run.root, run.metrics, run.completions, run.evaluation)
        return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def _told(logs: Path, code: int) -> tuple[int, bool]:
    """The exit code of training, and whether it ended by itself (with a message to its user where it failed).

    Launchers in between make one code of all that their processes end with; those wrote theirs down themselves.
    """
    told = []
    for path in logs.glob("finish-*.json"):
        try:
            content = json.loads(path.read_bytes())
            told.append((path.stat().st_mtime, int(content["code"]), bool(content["orderly"])))
        except (OSError, ValueError, KeyError, TypeError):  # being written, or of another program
            continue
    failed = [(own, orderly) for _, own, orderly in sorted(told) if own != 0]
    if code == 0 or not failed:
        return code, False
    return failed[0]


def _end(managed: Managed, seconds: float) -> None:
    """Ask a process to end, and kill it when it does not."""
    managed.stop()
    deadline = time.monotonic() + seconds
    while managed.poll() is None:
        if time.monotonic() > deadline:
            managed.kill()
        time.sleep(_TICK)
    managed.close()


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
