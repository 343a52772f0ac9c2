"""The thread that runs environments, one process per instance, and standalone tools, in a pool of processes."""

from __future__ import annotations

import logging
import pickle
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from covey.environments.workers.calls import EndedBy, EpisodeState, Member, ToolCall, ToolError
from covey.environments.workers.messages import MAX_ANSWER, Done, Request, read_answer
from covey.errors import CoveyError, EnvironmentSetupError
from covey.log_once import log_once
from covey.workers.channel import BadMessageError, Start
from covey.workers.fork_server import NoProcessError
from covey.workers.supervisor import LOAD_SECONDS, MOST_TRIES, Supervisor
from covey.workers.worker_process import WorkerProcess

_log = logging.getLogger("covey.environments")
MOST_TOOL_WORKERS = 64
"""Calls of standalone tools that may run at once; one that waits for the network needs no core."""
_RETRY_FORK_SECONDS = 0.05  # after the system could not start a process
_GIVE_UP_SECONDS = 10.0
_MIN_CHECK = 0.005
_EPISODE_KEY = "environment.episode_timeout"


class Worker(WorkerProcess):
    """A process, and what it does now.

    Attributes:
        member: whose instance it holds; None for one of standalone tools.
        made: whether the instance is there; or the tools that are loaded.
        call: that it works on.
        making: whether it still makes the instance, or loads the tool, for the call.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        super().__init__(pid, channel, MAX_ANSWER)
        self.member: Member | None = None
        self.made: set[Any] = set()
        self.call: ToolCall | None = None
        self.making = False
        self.ticket = 0
        self.limit = self.check_at = 0.0

    def key_for(self, call: ToolCall) -> Any:
        """What must be made before a call."""
        return ("tool", call.name) if call.member is None else call.member.key


class EnvironmentSupervisor(Supervisor[ToolCall | Member, Worker]):
    """Runs calls. A submitted `Member` is one that nobody uses any more: its process ends.

    Args:
        start: the start message for the fork server.
        load_timeout: seconds for making an instance or loading a tool.
    """

    HANDLE = Worker

    def __init__(self, start: Start, *, load_timeout: float = LOAD_SECONDS) -> None:
        self._load_timeout = load_timeout
        self._of: dict[Member, Worker] = {}
        self._queues: dict[Member | None, deque[ToolCall]] = {}  # calls that wait, by member; None: standalone tools
        self._last_words: dict[Member, str] = {}  # how a member's process ended
        self._tickets = 0
        self._no_process = ""  # why the last process could not be started
        super().__init__(start, "covey-environments")

    # -- calls come in

    def _take(self, item: ToolCall | Member) -> None:
        if isinstance(item, ToolCall):
            self._queues.setdefault(item.member, deque()).append(item)
            return
        self._fail(self._queues.pop(item, ()))
        self._last_words.pop(item, None)
        if (worker := self._of.get(item)) is not None:
            self._end(worker)

    def _assign(self) -> None:
        for member in list(self._queues):
            waiting = self._queues[member]
            while waiting and self._sent(waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._queues[member]

    def _sent(self, call: ToolCall) -> bool:
        """Send a call to its process, or settle it without one; False while it has to wait."""
        if call.episode is not None and call.action == "tool" and not self._may_go_on(call.episode, call):
            return True
        worker = self._worker_for(call)
        if worker is None and call.member is not None and not call.opens:
            cause = self._last_words.get(call.member, "has ended")
            tells = call.action in ("tool", "reward")
            self._settle_ended(call, "crashed", f"failed, because its process {cause}", log=tells)
            return True
        if worker is None:
            return self._given_up(call)
        if worker.call is not None:
            return False
        worker.call = call
        worker.making = worker.key_for(call) not in worker.made
        self._request(worker)
        return True

    def _may_go_on(self, episode: EpisodeState, call: ToolCall) -> bool:
        """Whether the call's episode goes on; else the call is settled."""
        if episode.outcome is None and episode.seconds < episode.limit:
            return True
        if episode.outcome is None:
            cause = f"was not called: its episode has taken {_within(episode.seconds, _EPISODE_KEY, episode.limit)}"
            self._settle_ended(call, "timed_out", cause)
        else:
            self._settle_ended(call, episode.outcome, "was not called: its episode has ended", log=False)
        return False

    def _worker_for(self, call: ToolCall) -> Worker | None:
        """The process of a call's member, or a free one for a standalone tool; a new one where it may start one."""
        if call.member is not None:
            found = self._of.get(call.member)
            return found if found is not None or not call.opens else self._new_worker(call.member)
        pool = [worker for worker in self._workers if worker.member is None]
        free = [worker for worker in pool if worker.call is None]
        if free:
            return next((worker for worker in free if worker.key_for(call) in worker.made), free[0])
        if len(pool) < MOST_TOOL_WORKERS and (new := self._new_worker(None)) is not None:
            return new
        return pool[0] if pool else None

    def _new_worker(self, member: Member | None) -> Worker | None:
        self._no_process = ""
        try:
            worker = self._fork()
        except NoProcessError as error:
            self._no_process = str(error)
            return None
        if worker is not None:
            worker.member = member
            if member is not None:
                self._of[member] = worker
        return worker

    def _given_up(self, call: ToolCall) -> bool:
        """Whether a call that has no process is settled: the system had some time to free one."""
        if not self._no_process:  # the fork server is not ready
            return False
        call.waits_since = call.waits_since or time.monotonic()
        if time.monotonic() - call.waits_since < _GIVE_UP_SECONDS:
            return False
        call.set_exception(
            EnvironmentSetupError(
                f"No process could be started for an environment or tool: {self._no_process}. {len(self._workers)} "
                "run, one for each episode of a batch. Free some memory or processes, or generate fewer completions at "
                "once (training.per_device_train_batch_size, training.gradient_accumulation_steps)."
            )
        )
        return True

    def _request(self, worker: Worker) -> None:
        """Have a worker do its call, or what must be made before it."""
        call = worker.call
        assert call is not None
        self._tickets += 1
        worker.ticket = self._tickets
        if worker.making:
            payload = pickle.dumps(worker.key_for(call))
            message = Request(worker.ticket, "make", "", payload)
            worker.limit = self._load_timeout
        else:
            message = Request(worker.ticket, call.action, call.name, call.payload)
            worker.limit = call.limit
            if call.episode is not None and call.action == "tool":
                worker.limit = min(call.limit, call.episode.limit - call.episode.seconds)
        worker.clock.restart()
        worker.check_at = time.monotonic() + worker.limit
        self._tell(worker, message)

    # -- answers

    def _handle(self, worker: Worker, message: Any) -> None:
        call = worker.call
        if call is None:
            raise BadMessageError("an unexpected message")
        answer = read_answer("make" if worker.making else call.action, message)
        if answer.ticket != worker.ticket:
            raise BadMessageError("an unexpected message")
        worker.clock.update()
        self._fork_servers_lost = 0
        if worker.making and isinstance(answer, Done):
            worker.making = False
            worker.made.add(worker.key_for(call))
            if call.action != "make":
                self._request(worker)
                return
        worker.call = None
        self._count(call, worker.clock.elapsed)
        if isinstance(answer, Done):
            call.set_result(answer.value)
            return
        if call.action == "tool" and not worker.making and not answer.lost:
            if answer.text == answer.description:  # no exception of the tool, but what it returned
                log_once(_log, "%s: %s failed: %s.", _where(call), call.title, answer.text)
            call.set_exception(ToolError(answer.text))
        elif call.action in ("make", "attribute", "attributes"):
            call.set_exception(ToolError(answer.description))
        else:
            if answer.lost and not worker.making:
                cause = f"failed: {answer.text}"
            else:
                what = "failed, because it could not be made:" if worker.making else "raised"
                cause = f"{what} {answer.description}"
            self._settle_ended(call, "crashed", cause, lost=answer.lost)
        if worker.making or answer.lost:
            self._last_words_of(worker, "had to be ended")
            self._end(worker)

    def _count(self, call: ToolCall, seconds: float) -> None:
        call.seconds = seconds
        if call.episode is not None:
            call.episode.seconds += seconds

    def _settle_ended(self, call: ToolCall, how: EndedBy, cause: str, *, lost: bool = False, log: bool = True) -> None:
        """The call ends its episode; the cause continues its name."""
        failure = f"{call.title} {cause}"
        call.ended = how
        if call.episode is not None and call.episode.outcome is None:
            call.episode.outcome = how
            call.episode.lost = lost or call.action in ("reset", "reward")
        if log:
            where = _where(call)
            counted = "timeouts" if how == "timed_out" else "crashes"
            text = "%s: %s. That episode ends; environment/%s counts how many do."
            log_once(_log, text, where, failure, counted, key=f"{where} {call.title} {how}")
        call.set_result({"error": failure})

    # -- deadlines and deaths

    def _wait(self) -> float | None:
        waits = [worker.check_at for worker in self._workers if worker.call is not None]
        if self._no_process and self._queues:
            waits.append(time.monotonic() + _RETRY_FORK_SECONDS)
        return max(0.0, min(waits) - time.monotonic()) if waits else None

    def _check(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker.call is not None and worker.check_at <= now]:
            worker.clock.update()
            left = worker.limit - worker.clock.elapsed
            worker.check_at = time.monotonic() + max(left, _MIN_CHECK)
            if left <= 0:
                self._time_out(worker)

    def _time_out(self, worker: Worker) -> None:
        call = worker.call
        assert call is not None
        worker.call = None
        self._count(call, worker.clock.elapsed)
        took = worker.clock.elapsed
        if worker.making:
            limit = f"{worker.limit:.3g} s"
            cause = f"failed: importing or constructing it took more than {limit}, as if it waited for a server"
        elif worker.limit < call.limit:
            assert call.episode is not None
            spent = _within(call.episode.seconds, _EPISODE_KEY, call.episode.limit)
            cause = f"had not returned when its episode had taken {spent}"
        else:
            cause = f"had not returned after {_within(took, 'environment.timeout', call.limit)}"
        self._settle_ended(call, "timed_out", cause, log=call.action != "make")
        self._last_words_of(worker, "was ended because a call took too long")
        self._end(worker)

    def _blame(self, worker: Worker, cause: str, at_once: bool) -> None:
        self._last_words_of(worker, cause)
        call, worker.call = worker.call, None
        if call is not None:
            worker.clock.update()
            self._count(call, worker.clock.elapsed)
            self._settle_ended(call, "crashed", f"failed, because its process {cause}")

    def _last_words_of(self, worker: Worker, cause: str) -> None:
        if worker.member is not None:
            self._last_words[worker.member] = cause

    def _dropped(self, worker: Worker) -> None:
        if worker.member is not None and self._of.get(worker.member) is worker:
            del self._of[worker.member]
        if worker.call is not None:
            self._fail([worker.call])

    def _fail(self, items: Sequence[ToolCall | Member]) -> None:
        for item in items:
            if isinstance(item, ToolCall) and not item.done():
                item.set_exception(self.failure or EnvironmentSetupError("The environments' processes were closed."))

    def _unfinished(self) -> list[ToolCall | Member]:
        return [call for queue in self._queues.values() for call in queue]

    def _useless(self) -> CoveyError:
        return EnvironmentSetupError(
            f"The processes of environments and tools ended {MOST_TRIES} times in a row before they did anything; what "
            "they wrote to the log says why."
        )


def _within(seconds: float, key: str, limit: float) -> str:
    return f"{seconds:.3g} s ({key}={limit:g})"


def _where(call: ToolCall) -> str:
    return "environment.tools" if call.member is None else call.member.where
