"""The vLLM server of a run, as its launcher sees it: started, waited for, started again."""

from __future__ import annotations

import time
from collections.abc import Callable

from covey.launch.health import answers
from covey.launch.machine import LaunchError
from covey.launch.plan import Plan, Process
from covey.launch.process import LAST_LINES, TICK, Managed, Tail
from covey.launch.tell import Reporter

_HEALTH_SECONDS = 0.5
_STOP_SECONDS = 10.0
_OUTAGE_SECONDS = 60.0
"""Training that fails so soon after its server came back, failed because that was gone."""


class Serving:
    """Keeps the server of a plan up. A run without one counts as one whose server is always up."""

    def __init__(self, plan: Plan, process: Process | None, reporter: Reporter, timeout: float, restarts: int) -> None:
        """Prepare it; nothing is started.

        Args:
            plan: what is started.
            process: the server's process, where this node runs it; None where it runs elsewhere.
            reporter: what is told.
            timeout: seconds that it may take until it answers.
            restarts: how often it may be started again.
        """
        self._server, self._process, self._reporter = plan.server, process, reporter
        self._timeout, self._restarts, self._tries = timeout, restarts, restarts
        self._managed: Managed | None = None
        self._tail = Tail(process.log) if process is not None else None
        self._deadline = self._asked = 0.0
        self._was_lost, self._up_since = False, 0.0
        self.is_up = self._server is None
        """Whether it has answered since it was started."""

    @property
    def is_here(self) -> bool:
        """Whether this node runs it."""
        return self._process is not None

    def begin(self) -> None:
        """Start it, if this node runs it; in any case it must answer within its time from now on."""
        if self._server is None:
            return
        self.is_up = False
        self._deadline = time.monotonic() + self._timeout
        process = self._process
        if process is not None:
            self._tail = Tail(process.log)
            # Training that was asked to stop may need it to finish its step.
            self._managed = Managed(process.command, process.environment, process.log, _STOP_SECONDS, outlasts=True)
            self._reporter.say(f"vLLM server started, to answer at {self._server.url} (log: {process.log}).")

    def wait(self, stopped: Callable[[], bool]) -> bool:
        """Wait until it answers; False when the launcher was asked to stop before.

        Raises:
            LaunchError: it ended, or its time is over.
        """
        began = time.monotonic()
        while not self.is_up:
            if stopped():
                return False
            if self._managed is not None and (code := self._managed.poll()) is not None:
                raise LaunchError(f"The vLLM server ended with exit code {code} before it answered.{self._log_end()}")
            self.look()
            lines = self._tail.last_lines(5) if self._tail else []
            url = self._server.url if self._server else ""
            self._reporter.waiting(f"waiting for the vLLM server at {url} ({time.monotonic() - began:.0f} s)", lines)
            time.sleep(TICK)
        self._reporter.waiting("", [])
        return True

    def look(self) -> None:
        """Note whether it answers by now, if it is waited for.

        Raises:
            LaunchError: its time is over.
        """
        server, now = self._server, time.monotonic()
        if server is None or self.is_up or now < self._asked + _HEALTH_SECONDS:
            return
        self._asked = now
        if answers(server.health) and (self._managed is None or self._managed.poll() is None):
            self.is_up, self._up_since = True, now
            self._reporter.say(f"vLLM server at {server.url} answers.")
        elif now > self._deadline:
            raise LaunchError(
                f"The vLLM server at {server.url} did not answer within {self._timeout:g} s (launch.server_timeout)."
                f"{self._log_end()}"
            )

    def tend(self) -> None:
        """Start it again when it has died.

        Raises:
            LaunchError: it has died too often, or its time is over.
        """
        if self._managed is not None and (code := self._managed.poll()) is not None:
            self._was_lost = True
            self._managed.close()
            self._managed = None
            self._take_try(f"ended with exit code {code}")
            self.begin()
        self.look()

    def explains_failure(self) -> bool:
        """Whether training that has just failed did so because its server was gone. It is then waited for, once.

        Raises:
            LaunchError: the server was gone too often.
        """
        if self._server is None:
            return False
        self.tend()
        if self.is_here:
            if self.is_up and not answers(self._server.health, _STOP_SECONDS):
                self._await_end()
            explains = self._was_lost and (not self.is_up or time.monotonic() - self._up_since < _OUTAGE_SECONDS)
            self._was_lost = False
            return explains
        if answers(self._server.health):
            return False
        self._take_try("does not answer any more")
        self.begin()
        return True

    def _await_end(self) -> None:
        """Of a server that does not answer: it is ending just now, or hangs, and is then ended; start it again."""
        deadline = time.monotonic() + _STOP_SECONDS
        while self._managed is not None and self._managed.poll() is None and time.monotonic() < deadline:
            time.sleep(TICK)
        if self._managed is not None and self._managed.poll() is None:
            self._managed.end(_STOP_SECONDS)
        self.tend()

    def restart(self) -> None:
        """End it and start it again, if this node runs it."""
        if self._managed is not None:
            self._managed.end(_STOP_SECONDS)
            self._managed = None
            self.begin()

    def stop(self) -> None:
        """Ask it to end."""
        if self._managed is not None:
            self._managed.stop()

    def end(self) -> None:
        """End it, and wait until it has."""
        if self._managed is not None:
            self._managed.end(_STOP_SECONDS)
            self._managed = None

    def _take_try(self, what: str) -> None:
        if self._tries == 0:
            raise LaunchError(
                f"The vLLM server {what}, and had been started again {self._restarts} times before "
                f"(launch.server_restarts).{self._log_end()}"
            )
        self._tries -= 1
        self._reporter.say(f"the vLLM server {what}; it is started again, {self._tries} more times at most after this.")

    def _log_end(self) -> str:
        if self._tail is None:
            return " This launcher does not start it: see to it there, or leave its address out of the config."
        return f" The end of its log, {self._tail.path}:\n{self._tail.quoted(LAST_LINES)}"
