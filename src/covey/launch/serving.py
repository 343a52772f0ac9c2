"""Supervision of a run's vLLM server: start, health checks, restarts."""

from __future__ import annotations

import time
from collections.abc import Callable

from covey.launch.console import Reporter
from covey.launch.health import answers
from covey.launch.machine import LaunchError
from covey.launch.plan import LaunchPlan, Process
from covey.launch.process import LAST_LINES, TICK, ManagedProcess, Tail

_HEALTH_SECONDS = 0.5
_STOP_SECONDS = 10.0
_OUTAGE_SECONDS = 60.0
"""A failure of training this soon after a restart of the server is put down to the outage."""


class Serving:
    """Keeps a plan's server up. Without a server it always counts as up."""

    def __init__(
        self, plan: LaunchPlan, process: Process | None, reporter: Reporter, timeout: float, restarts: int
    ) -> None:
        """Prepare it; nothing is started.

        Args:
            process: the server's process where this node runs it; None where it runs elsewhere.
            reporter: receives messages.
            timeout: seconds until it must answer.
            restarts: how often it may be restarted.
        """
        self._server, self._process, self._reporter = plan.server, process, reporter
        self._timeout, self._restarts, self._restarts_left = timeout, restarts, restarts
        self._managed: ManagedProcess | None = None
        self._tail = Tail(process.log) if process is not None else None
        self._deadline = self._last_check = 0.0
        self._was_lost, self._up_since = False, 0.0
        self.is_up = self._server is None
        """Whether it has answered since its last start."""

    @property
    def is_local(self) -> bool:
        """Whether this node runs it."""
        return self._process is not None

    def start(self) -> None:
        """Start it, if this node runs it; either way its timeout begins now."""
        if self._server is None:
            return
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
            url = self._server.url if self._server else ""
            self._reporter.waiting(f"waiting for the vLLM server at {url} ({time.monotonic() - began:.0f} s)", lines)
            time.sleep(TICK)
        self._reporter.waiting("", [])
        return True

    def check_health(self) -> None:
        """While it is starting, check whether it answers. Raises a `LaunchError` if it timed out."""
        server, now = self._server, time.monotonic()
        if server is None or self.is_up or now < self._last_check + _HEALTH_SECONDS:
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
        if self._server is None:
            return False
        self.check()
        if self.is_local:
            if self.is_up and not answers(self._server.health, _STOP_SECONDS):
                self._restart_unresponsive()
            explains = self._was_lost and (not self.is_up or time.monotonic() - self._up_since < _OUTAGE_SECONDS)
            self._was_lost = False
            return explains
        if answers(self._server.health):
            return False
        self._use_restart("no longer answers")
        self.start()
        return True

    def _restart_unresponsive(self) -> None:
        """Restart a server that does not answer: it is exiting, or hangs and is killed."""
        deadline = time.monotonic() + _STOP_SECONDS
        while self._managed is not None and self._managed.poll() is None and time.monotonic() < deadline:
            time.sleep(TICK)
        if self._managed is not None and self._managed.poll() is None:
            self._managed.end(_STOP_SECONDS)
        self.check()

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
