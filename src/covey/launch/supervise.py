"""Supervision of a plan's processes: restarts, stop requests, hangs, and cleanup."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from covey.launch.console import Reporter
from covey.launch.machine import LaunchError
from covey.launch.plan import SERVER, TRAINER, LaunchPlan
from covey.launch.process import LAST_LINES, TICK, ManagedProcess, Reaper, Tail, end_orphans
from covey.launch.progress import FINISHES, STACKS, ProgressWatch, how_it_ended
from covey.launch.serving import Serving
from covey.runlog.directory import RunDirectory
from covey.workers.signals import signal_handler

RESUMED = ("resume=auto", "overwrite=false")
"""Overrides of restarted training: it resumes from its newest complete checkpoint."""

_DUMP_SECONDS = 1.0
_HUNG_STOP_SECONDS = 10.0
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
        *,
        ended_elsewhere: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Prepare it; nothing is started.

        Args:
            node: the index of this node.
            limits: timeouts and numbers of restarts.
            reporter: receives messages.
            ended_elsewhere: for a node that only serves: the exit code of training once it has ended.
        """
        self._plan, self._limits, self._reporter = plan, limits, reporter
        self._ended_elsewhere = ended_elsewhere
        mine = {process.name: process for process in plan.on(node)}
        self._serving = Serving(plan, mine.get(SERVER), reporter, limits.server_timeout, limits.server_restarts)
        self._process = mine.get(TRAINER)
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
        with signal_handler(_STOPS, self._on_signal), Reaper(self._limits.stop_timeout):
            try:
                self._serving.start()
                if not self._serving.wait(self._stop_requested):
                    return self._stopped(clean=True)
                if self._process is None:
                    return self._serve()
                self._start_training()
                return self._watch()
            finally:
                self._end_everything()

    # -- stop requests

    def _stop_requested(self) -> bool:
        return self._signal is not None

    def _stopped(self, *, clean: bool) -> Ending:
        # Slurm's warning before the time limit ends a run like SIGTERM.
        number = signal.SIGTERM if self._signal == signal.SIGUSR1 else self._signal or signal.SIGTERM
        return Ending(128 + number, self._signal, clean)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signal == signal.SIGINT:
            self._interrupted = True
        if self._signal is None:
            self._signal, self._signal_at = number, time.monotonic()
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
            else:
                self._serving.check()
                limit = self._limits.step_timeout
                if limit is not None and self._serving.is_up and self._progress.seconds_since() > limit:
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
        if self._serving.explains_failure():
            self._reporter.say(f"training ended with exit code {code} because its vLLM server was gone.")
            return self._resume()
        if not orderly:  # otherwise training has printed the reason
            self._reporter.say(self._failure(code))
        return Ending(code)

    def _resume(self) -> Ending | None:
        """Restart training as soon as its server answers."""
        if not self._serving.wait(self._stop_requested):
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
        self._serving.restart()  # training may have waited for it
        self._resume()

    # -- a node that only serves, and cleanup

    def _serve(self) -> Ending:
        """Serve until training has ended on the other nodes, its last step after a stop request included."""
        give_up = float("inf")
        while not self._interrupted and time.monotonic() < give_up:
            code = self._ended_elsewhere()
            if code is not None and self._signal is None:
                return Ending(code)
            if code is not None:
                break
            if self._signal is None:
                self._serving.check()
            else:
                give_up = min(give_up, time.monotonic() + self._limits.stop_timeout)
            time.sleep(10 * TICK)
        return self._stopped(clean=True)

    def _end_everything(self) -> None:
        self._reporter.waiting("", [])
        self._serving.stop()
        if self._trainer is not None:
            self._trainer.end(self._limits.stop_timeout, at_once=lambda: self._interrupted)
            self._trainer = None
        self._serving.end()
        end_orphans(_ORPHAN_SECONDS)


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
