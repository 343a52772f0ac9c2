"""Keeping a plan's processes running, and ending all of them, whatever happens to one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from covey.launch.machine import LaunchError
from covey.launch.plan import SERVER, TRAINER, Plan
from covey.launch.process import LAST_LINES, TICK, Managed, Tail, Warden, end_strays
from covey.launch.progress import FINISHES, STACKS, Progress, how_it_ended
from covey.launch.serving import Serving
from covey.launch.tell import Reporter
from covey.runlog.directory import RunDirectory

RESUMED = ("resume=auto", "overwrite=false")
"""Overrides of training that is started again: it goes on from its newest whole checkpoint."""

_DUMP_SECONDS = 1.0
_HUNG_STOP_SECONDS = 10.0
_LEFT_SECONDS = 10.0
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the supervisor waits, and how often it tries again: the keys `launch.*` of the same names."""

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
    """Whether training ended because it was asked to (or had to be killed then), not for an error of its own."""


class Supervisor:
    """Runs the processes of one node."""

    def __init__(
        self,
        plan: Plan,
        node: int,
        patience: Patience,
        reporter: Reporter,
        *,
        ended_elsewhere: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Prepare it; nothing is started.

        Args:
            plan: what is started.
            node: which of its nodes this is.
            patience: timeouts and tries.
            reporter: what is told.
            ended_elsewhere: for a node that only serves: the exit code of training once it has ended.
        """
        self._plan, self._patience, self._reporter = plan, patience, reporter
        self._ended_elsewhere = ended_elsewhere
        mine = {process.name: process for process in plan.on(node)}
        self._serving = Serving(plan, mine.get(SERVER), reporter, patience.server_timeout, patience.server_restarts)
        self._process = mine.get(TRAINER)
        self._trainer: Managed | None = None
        self._tail = Tail(self._process.log) if self._process is not None else None
        self._progress = Progress(RunDirectory(plan.run))
        self._hang_tries = patience.hang_restarts
        self._signal: int | None = None
        self._interrupted = False

    def run(self) -> Ending:
        """Start everything, and wait for training to end; then nothing that was started is left.

        Raises:
            LaunchError: the server never answered, or died too often, or training hung too often.
        """
        with self._listening(), Warden(self._patience.stop_timeout):
            try:
                self._serving.begin()
                if not self._serving.wait(self._asked_to_stop):
                    return self._stopped(clean=True)
                if self._process is None:
                    return self._serve()
                self._begin_training()
                return self._watch()
            finally:
                self._end_everything()

    # -- asking to stop

    def _asked_to_stop(self) -> bool:
        return self._signal is not None

    def _stopped(self, *, clean: bool) -> Ending:
        # Slurm's warning ends a run as SIGTERM would.
        number = signal.SIGTERM if self._signal == signal.SIGUSR1 else self._signal or signal.SIGTERM
        return Ending(128 + number, self._signal, clean)

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

    # -- training

    def _begin_training(self, more: tuple[str, ...] = ()) -> None:
        process = self._process
        assert process is not None
        for file in self._plan.logs.glob(FINISHES):
            file.unlink(missing_ok=True)
        self._progress.restart()
        command = (*process.command, *more)
        seconds = self._patience.stop_timeout
        self._trainer = Managed(command, process.environment, process.log, seconds, shown=True)

    def _watch(self) -> Ending:
        """Wait for training to end, and see to it that it can."""
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
                    self._reporter.say(f"{signal.Signals(self._signal).name}: training ends with a checkpoint.")
                    trainer.stop()
            else:
                self._serving.tend()
                if self._hangs():
                    self._end_hanging(trainer)
            time.sleep(TICK)
        return self._stopped(clean=True)

    def _training_ended(self, code: int) -> Ending | None:
        """What follows from it; None when it was started again."""
        code, orderly = how_it_ended(self._plan.logs, code)
        if code == 0:
            return Ending(0, self._signal, clean=True)
        if self._signal is not None:
            return self._stopped(clean=code > 128)
        if self._serving.explains_failure():
            self._reporter.say(f"training ended with exit code {code} because its vLLM server was gone.")
            return self._go_on()
        if not orderly:  # otherwise what it said to its user is enough
            self._reporter.say(self._how(code))
        return Ending(code)

    def _go_on(self) -> Ending | None:
        """Start training again, as soon as its server answers."""
        if not self._serving.wait(self._asked_to_stop):
            return self._stopped(clean=True)
        self._reporter.say("training goes on from its newest checkpoint.")
        self._begin_training(RESUMED)
        return None

    def _how(self, code: int) -> str:
        """How training ended, and what it said last: what went by unseen, or would be buried."""
        assert self._tail is not None
        if code <= 128 and self._plan.accelerate is None and self._tail.last_lines(1):
            return f"training ended with exit code {code} (log: {self._tail.path})."
        how = f"was killed by {_signal_name(code)}" if code > 128 else f"ended with exit code {code}"
        return f"training {how}. The end of {self._tail.path}:\n{self._tail.quoted(LAST_LINES)}"

    def _hangs(self) -> bool:
        limit = self._patience.step_timeout
        return limit is not None and self._serving.is_up and self._progress.seconds_since() > limit

    def _end_hanging(self, trainer: Managed) -> None:
        """Have stacks written, end training and its server, and start both again if there are tries left.

        Raises:
            LaunchError: there are none.
        """
        trainer.dump()
        time.sleep(_DUMP_SECONDS)
        stacks = ", ".join(str(path) for path in sorted(self._plan.logs.glob(STACKS))) or "not written"
        text = (
            f"Training made no progress for {self._patience.step_timeout:g} s (launch.step_timeout). The stacks of its "
            f"threads: {stacks}."
        )
        trainer.end(_HUNG_STOP_SECONDS)
        self._trainer = None
        if self._hang_tries == 0:
            raise LaunchError(
                f"{text} It was ended, as launch.hang_restarts={self._patience.hang_restarts} allows no "
                "further try. The same command goes on from its newest checkpoint."
            )
        self._hang_tries -= 1
        self._reporter.say(f"{text} It was ended and is resumed.")
        self._serving.restart()  # it may be what training waited for
        self._go_on()

    # -- the node that only serves, and the end

    def _serve(self) -> Ending:
        """Go on until training has ended elsewhere. Asked to stop, as training is too, serve its last step."""
        give_up = float("inf")
        while not self._interrupted and time.monotonic() < give_up:
            code = self._ended_elsewhere()
            if code is not None and self._signal is None:
                return Ending(code)
            if code is not None:
                break
            if self._signal is None:
                self._serving.tend()
            else:
                give_up = min(give_up, time.monotonic() + self._patience.stop_timeout)
            time.sleep(10 * TICK)
        return self._stopped(clean=True)

    def _end_everything(self) -> None:
        self._reporter.waiting("", [])
        self._serving.stop()
        if self._trainer is not None:
            self._trainer.end(self._patience.stop_timeout, at_once=lambda: self._interrupted)
            self._trainer = None
        self._serving.end()
        end_strays(_LEFT_SECONDS)


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
