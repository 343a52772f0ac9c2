"""Supervision of a plan's processes and of its vLLM server: start, health, restarts, stop requests, hangs, cleanup."""

from __future__ import annotations

import http.client
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from covey.config.secrets import redact
from covey.launch.machine import FINISHES, STACKS, LaunchError, ProgressWatch, how_it_ended
from covey.launch.nodes import ASKED, Nodes
from covey.launch.plan import SERVER, TRAINER, LaunchPlan, Process, Server
from covey.launch.process import LAST_LINES, TICK, ManagedProcess, Reaper, Tail, end_orphans
from covey.runlog.directory import RunDirectory
from covey.workers.signals import signal_handler

if TYPE_CHECKING:
    from rich.live import Live


_EVERY_SECONDS = 15.0
"""Interval of messages about a wait where standard error is not a terminal."""


class Reporter(Protocol):
    """Receives a supervisor's messages."""

    def say(self, text: str) -> None:
        """Report an event."""

    def waiting(self, text: str, lines: list[str]) -> None:
        """Show what is being waited for, with the last lines of its log. An empty text ends the display."""


class LaunchConsole:
    """Writes to standard error, which bears a closed terminal in every command, and to a log."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("a", encoding="utf-8", buffering=1)
        self._live: Live | None = None
        self._last_print = time.monotonic()

    def __enter__(self) -> LaunchConsole:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.waiting("", [])
        if error is not None:
            self.note(f"{type(error).__name__}: {error}")
        self._log.close()

    def say(self, text: str) -> None:
        """Print a message and log it."""
        self.note(text)
        self._print(f"· {text}\n")

    def note(self, text: str) -> None:
        """Log a message without printing it."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._log.write(f"{stamp} {redact(text.rstrip())}\n")

    def _print(self, text: str) -> None:
        sys.stderr.write(redact(text))
        sys.stderr.flush()

    def waiting(self, text: str, lines: list[str]) -> None:
        """Show what is being waited for and the last lines of its log; on a terminal, updated in place."""
        if sys.stderr.isatty():
            self._show(text, lines)
            return
        now = time.monotonic()
        if text and now - self._last_print > _EVERY_SECONDS:
            self._last_print = now
            self._print(f"· {text}{': ' + lines[-1] if lines else ''}\n")

    def _show(self, text: str, lines: list[str]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if text and self._live is None:
            self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=4)
            self._live.start()
        if self._live is None:
            return
        if text:
            self._live.update(Text("\n".join([f"· {text}", *(f"  {line[:200]}" for line in lines)])))
        else:
            self._live.stop()
            self._live = None


def answers(url: str, timeout: float = 2.0) -> bool:
    """Whether a GET of this URL returns 200. Proxies are ignored: the server is one of ours."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError):
        return False


_HEALTH_SECONDS = 0.5
_STOP_SECONDS = 10.0
_OUTAGE_SECONDS = 60.0
"""A failure of training this soon after a restart of the server is put down to the outage."""


class Serving:
    """Keeps a server up."""

    def __init__(
        self, server: Server, process: Process | None, reporter: Reporter, timeout: float, restarts: int
    ) -> None:
        """Prepare it; nothing is started.

        Args:
            server: where it answers.
            process: the server's process where this node runs it; None where it runs elsewhere.
            reporter: receives messages.
            timeout: seconds until it must answer.
            restarts: how often it may be restarted.
        """
        self._server, self._process, self._reporter = server, process, reporter
        self._timeout, self._restarts, self._restarts_left = timeout, restarts, restarts
        self._managed: ManagedProcess | None = None
        self._tail = Tail(process.log) if process is not None else None
        self._deadline = self._last_check = 0.0
        self._was_lost, self._up_since = False, 0.0
        self.is_up = False
        """Whether it has answered since its last start."""

    @property
    def is_local(self) -> bool:
        """Whether this node runs it."""
        return self._process is not None

    def start(self) -> None:
        """Start it, if this node runs it; either way its timeout begins now."""
        self.is_up = False
        self._deadline = time.monotonic() + self._timeout
        process = self._process
        if process is not None:
            self._tail = Tail(process.log)
            # Training that is stopping may need it to finish its step.
            self._managed = ManagedProcess(
                process.command, process.environment, process.log, _STOP_SECONDS, ignore_sigterm=True
            )
            self._reporter.say(f"vLLM server started at {self._server.url} (log: {process.log}).")

    def wait(self, stopped: Callable[[], bool]) -> bool:
        """Wait until it answers; False when the launcher was asked to stop before that. Raises a `LaunchError` if it
        ended, or timed out."""
        began = time.monotonic()
        while not self.is_up:
            if stopped():
                return False
            if self._managed is not None and (code := self._managed.poll()) is not None:
                raise LaunchError(f"The vLLM server ended with exit code {code} before it answered.{self._log_end()}")
            self.check_health()
            lines = self._tail.last_lines(5) if self._tail else []
            self._reporter.waiting(
                f"waiting for the vLLM server at {self._server.url} ({time.monotonic() - began:.0f} s)", lines
            )
            time.sleep(TICK)
        self._reporter.waiting("", [])
        return True

    def check_health(self) -> None:
        """While it is starting, check whether it answers. Raises a `LaunchError` if it timed out."""
        server, now = self._server, time.monotonic()
        if self.is_up or now < self._last_check + _HEALTH_SECONDS:
            return
        self._last_check = now
        if answers(server.health) and (self._managed is None or self._managed.poll() is None):
            self.is_up, self._up_since = True, now
            self._reporter.say(f"vLLM server at {server.url} answers.")
        elif now > self._deadline:
            raise LaunchError(
                f"The vLLM server at {server.url} did not answer within {self._timeout:g} s (launch.server_timeout)."
                f"{self._log_end()}"
            )

    def check(self) -> None:
        """Restart it if it has died. Raises a `LaunchError` if it has died too often, or timed out."""
        if self._managed is not None and (code := self._managed.poll()) is not None:
            self._was_lost = True
            self._managed.close()
            self._managed = None
            self._use_restart(f"ended with exit code {code}")
            self.start()
        self.check_health()

    def explains_failure(self) -> bool:
        """Whether training has just failed because its server was gone. Raises a `LaunchError` if the server was gone
        too often."""
        self.check()
        if self.is_local:
            if self.is_up and not answers(self._server.health, _STOP_SECONDS):  # it is exiting, or hangs and is killed
                deadline = time.monotonic() + _STOP_SECONDS
                while self._managed is not None and self._managed.poll() is None and time.monotonic() < deadline:
                    time.sleep(TICK)
                if self._managed is not None and self._managed.poll() is None:
                    self._managed.end(_STOP_SECONDS)
                self.check()
            explains = self._was_lost and (not self.is_up or time.monotonic() - self._up_since < _OUTAGE_SECONDS)
            self._was_lost = False
            return explains
        if answers(self._server.health):
            return False
        self._use_restart("no longer answers")
        self.start()
        return True

    def restart(self) -> None:
        """Restart it, if this node runs it."""
        if self._managed is not None:
            self._managed.end(_STOP_SECONDS)
            self._managed = None
            self.start()

    def stop(self) -> None:
        """Send it the stop signal."""
        if self._managed is not None:
            self._managed.stop()

    def end(self) -> None:
        """Stop it and wait for its end."""
        if self._managed is not None:
            self._managed.end(_STOP_SECONDS)
            self._managed = None

    def _use_restart(self, what: str) -> None:
        if self._restarts_left == 0:
            raise LaunchError(
                f"The vLLM server {what} after {self._restarts} restarts (launch.server_restarts).{self._log_end()}"
            )
        self._restarts_left -= 1
        self._reporter.say(f"the vLLM server {what}; restarting it ({self._restarts_left} restarts left).")

    def _log_end(self) -> str:
        if self._tail is None:
            return " This launcher did not start it: check it where it runs, or remove its address from the config."
        return f" The end of its log, {self._tail.path}:\n{self._tail.quoted(LAST_LINES)}"


RESUMED = ("resume=auto", "overwrite=false")
"""Overrides of restarted training: it resumes from its newest complete checkpoint."""

_DUMP_SECONDS = 1.0
_HUNG_STOP_SECONDS, _LOST_STOP_SECONDS = 10.0, 5.0
_ORPHAN_SECONDS = 10.0
_STOPS = (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
"""Stop requests, the most specific first: a SIGTERM may accompany each of the others. Signals that are sent together
arrive in any order, so the first in this list counts."""
_SENT_TOGETHER = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts and numbers of restarts: the keys `launch.*` of the same names."""

    server_timeout: float = 600.0
    server_restarts: int = 3
    step_timeout: float | None = 3600.0
    hang_restarts: int = 1
    stop_timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a plan ended."""

    code: int
    """The exit code of training; 128 plus the signal's number when the launcher was asked to stop."""
    signal: int | None = None
    """The signal that requested the stop."""
    clean: bool = False
    """Whether training ended on request (killed if it did not stop in time), not by an error of its own."""


class Supervisor:
    """Runs the processes of one node."""

    def __init__(
        self,
        plan: LaunchPlan,
        node: int,
        limits: Limits,
        reporter: Reporter,
        nodes: Nodes,
    ) -> None:
        """Prepare it; nothing is started.

        Args:
            node: the index of this node.
            limits: timeouts and numbers of restarts.
            reporter: receives messages.
            nodes: the others of the run.
        """
        self._plan, self._limits, self._reporter, self._nodes = plan, limits, reporter, nodes
        mine = {(process.name, process.number): process for process in plan.on(node)}
        self._servings = [
            Serving(server, mine.get((SERVER, number)), reporter, limits.server_timeout, limits.server_restarts)
            for number, server in enumerate(plan.servers)
        ]
        self._process = mine.get((TRAINER, 0))
        self._trainer: ManagedProcess | None = None
        self._tail = Tail(self._process.log) if self._process is not None else None
        self._progress = ProgressWatch(RunDirectory(plan.run))
        self._hang_restarts_left = limits.hang_restarts
        self._signal: int | None = None
        self._signal_at = 0.0
        self._interrupted = False

    def run(self) -> Ending:
        """Start all processes, wait for training to end, and end what is left. Raises a `LaunchError` if the server did
        not answer in time or died too often, or training hung too often."""
        with signal_handler(_STOPS, self._on_signal), Reaper(self._limits.stop_timeout, self._nodes.beat):
            try:
                self._each(Serving.start)
                if not self._servers_answer():
                    return self._stopped(clean=True)
                if self._process is None:
                    return self._serve()
                self._start_training()
                return self._watch()
            finally:
                self._reporter.waiting("", [])
                self._each(Serving.stop)
                if self._trainer is not None:
                    self._trainer.end(self._limits.stop_timeout, at_once=lambda: self._interrupted)
                    self._trainer = None
                self._each(Serving.end)
                end_orphans(_ORPHAN_SECONDS)

    def _each(self, call: Callable[[Serving], Any]) -> list[Any]:
        return [call(one) for one in self._servings]

    def _servers_answer(self) -> bool:
        """Wait until all servers answer; see `Serving.wait`."""
        return all(one.wait(self._stop_requested) for one in self._servings)

    # -- stop requests

    def _stop_requested(self) -> bool:
        """Whether this launcher or another node's was asked to stop. Raises a `LaunchError` if a node is gone."""
        if self._signal is None and (problem := self._nodes.problem()):
            if not self._nodes.orderly:
                raise LaunchError(f"{problem} To resume, on each node with its rank: {self._plan.resume}")
            return True
        return self._signal is not None

    def _asked(self) -> int | None:
        return self._signal  # which may come at any time

    def _stopped(self, *, clean: bool) -> Ending:
        # Slurm's warning before the time limit ends a run like SIGTERM.
        number = signal.SIGTERM if self._signal == signal.SIGUSR1 else self._signal or signal.SIGTERM
        return Ending(128 + number, self._signal, clean)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signal == signal.SIGINT:
            self._interrupted = True
        if self._signal is None:
            self._signal, self._signal_at = number, time.monotonic()
            self._nodes.tell(ASKED, 128 + number)
        elif time.monotonic() - self._signal_at < _SENT_TOGETHER:
            self._signal = min(self._signal, number, key=_STOPS.index)

    # -- training

    def _start_training(self, overrides: tuple[str, ...] = ()) -> None:
        process = self._process
        assert process is not None
        for file in self._plan.logs.glob(FINISHES):
            file.unlink(missing_ok=True)
        self._progress.restart()
        command = (*process.command, *overrides)
        seconds = self._limits.stop_timeout
        self._trainer = ManagedProcess(command, process.environment, process.log, seconds, shown=True)

    def _watch(self) -> Ending:
        """Wait for training to end; handle stop requests, hangs and restarts of the server."""
        stopping = False
        while (trainer := self._trainer) is not None:
            code = trainer.poll()
            if code is not None:
                trainer.close()
                self._trainer = None
                ending = self._training_ended(code)
                if ending is not None:
                    return ending
            elif self._interrupted:
                trainer.kill()
            elif self._signal is not None:
                if not stopping:
                    stopping = True
                    self._reporter.say(f"{signal.Signals(self._signal).name}: training stops with a checkpoint.")
                    trainer.stop()
            elif problem := self._nodes.problem():
                self._reporter.say(
                    f"{problem} Training ends here too. To resume, on each node with its rank: {self._plan.resume}"
                )
                trainer.end(self._limits.stop_timeout if self._nodes.orderly else _LOST_STOP_SECONDS)
                self._trainer = None
                code, orderly = how_it_ended(self._plan.logs, trainer.poll() or 1)[0], self._nodes.orderly
                return Ending(code if orderly or 0 < code < 128 else 1, self._asked(), orderly)
            else:
                self._each(Serving.check)
                limit = self._limits.step_timeout
                if (
                    limit is not None
                    and all(one.is_up for one in self._servings)
                    and self._progress.seconds_since() > limit
                ):
                    self._end_hanging(trainer)
            time.sleep(TICK)
        return self._stopped(clean=True)

    def _training_ended(self, code: int) -> Ending | None:
        """How the run ends; None when training was restarted."""
        code, orderly = how_it_ended(self._plan.logs, code)
        if code == 0:
            return Ending(0, self._signal, clean=True)
        if self._signal is not None:
            return self._stopped(clean=code > 128)
        if orderly and code > 128:
            return Ending(code, clean=True)  # a process of another node was asked to stop
        if any(self._each(Serving.explains_failure)):
            self._reporter.say(f"training ended with exit code {code} because its vLLM server was gone.")
            return self._resume()
        if not orderly:  # otherwise training has printed the reason
            self._reporter.say(self._failure(code))
        return Ending(code)

    def _resume(self) -> Ending | None:
        """Restart training as soon as its server answers."""
        if not self._servers_answer():
            return self._stopped(clean=True)
        self._reporter.say("training resumes from its newest checkpoint.")
        self._start_training(RESUMED)
        return None

    def _failure(self, code: int) -> str:
        """How training ended, with the end of its log where that was not on the screen."""
        assert self._tail is not None
        if code <= 128 and self._plan.accelerate is None and self._tail.last_lines(1):
            return f"training ended with exit code {code} (log: {self._tail.path})."
        how = f"was killed by {_signal_name(code)}" if code > 128 else f"ended with exit code {code}"
        return f"training {how}. The end of {self._tail.path}:\n{self._tail.quoted(LAST_LINES)}"

    def _end_hanging(self, trainer: ManagedProcess) -> None:
        """Dump the stacks, end training and its server, and restart both; a `LaunchError` without restarts left."""
        trainer.dump()
        time.sleep(_DUMP_SECONDS)
        stacks = ", ".join(str(path) for path in sorted(self._plan.logs.glob(STACKS))) or "not written"
        text = (
            f"Training made no progress for {self._limits.step_timeout:g} s (launch.step_timeout). Stacks of its "
            f"threads: {stacks}."
        )
        trainer.end(_HUNG_STOP_SECONDS)
        self._trainer = None
        if self._hang_restarts_left == 0:
            raise LaunchError(
                f"{text} It was ended: launch.hang_restarts={self._limits.hang_restarts} allows no further restart. "
                f"To resume from its newest checkpoint: {self._plan.resume}"
            )
        self._hang_restarts_left -= 1
        self._reporter.say(f"{text} It was ended and is restarted.")
        self._each(Serving.restart)  # training may have waited for it
        self._resume()

    # -- a node that only serves, and cleanup

    def _serve(self) -> Ending:
        """Serve until training has ended on the other nodes, its last step after a stop request included."""
        give_up = float("inf")
        while not self._interrupted and time.monotonic() < give_up:
            code = self._nodes.first_ended()
            if code is not None and self._signal is None:
                return Ending(code)
            if code is not None:
                break
            if not self._stop_requested():
                self._each(Serving.check)
            else:
                give_up = min(give_up, time.monotonic() + self._limits.stop_timeout)
            time.sleep(10 * TICK)
        return self._stopped(clean=True)


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
