"""The thread that sends tasks to workers, enforces deadlines, and replaces workers that die.

It alone owns the processes and the queue; other threads submit tasks and wait for futures.

A running task takes one of `workers` slots, by default one per core. A task that sleeps (a grader waiting for something
that never comes) needs no core, so another worker gets its slot; there are at most `MAX_EXTRA_WORKERS` such workers.
Hanging tasks thus wait in parallel while the cores do the rest. A task that spins on a core keeps its slot until its
deadline, since it may be about to finish. Once a task has hung, a spare worker is kept ready while there are tasks.
"""

from __future__ import annotations

import math
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence

from covey.errors import RewardError
from covey.rewards.workers.messages import SLOW_SECONDS, Begun, Call, CallDone, Grade, SampleDone, read_answer
from covey.rewards.workers.tasks import Task
from covey.workers.channel import BadMessageError, Start
from covey.workers.fork_server import NoProcessError
from covey.workers.supervisor import LOAD_SECONDS, MOST_TRIES, Supervisor
from covey.workers.worker_process import WorkerProcess

MAX_EXTRA_WORKERS = 128
"""The most workers beyond `workers`, while tasks sleep; each takes about ten megabytes."""
_CHUNK_SECONDS = 0.04  # of work in one chunk
_MOST_IN_CHUNK = 64
_RETRY_FORK_SECONDS = 0.01  # after the system could not start a process
# Seconds until the next check of a worker
_FIRST_CHECK = 0.003  # most samples are done by then
_NEXT_CHECK = 0.01
_CHECK_MAYBE_ASLEEP = 0.001  # it slept at one check: does it sleep at the next?
_CHECK_ASLEEP = 0.1
_CHECK_LOADING = 1.0
_MIN_CHECK = 0.0005


class WorkerHandle(WorkerProcess):
    """A worker process and its tasks.

    Attributes:
        chunk: tasks that were sent and are not answered; the first one is running.
        began: whether the reward is loaded, so that time counts.
        since: when the chunk was sent.
        check_at: when to check on it again, by the monotonic clock.
        loaded: rewards that it has loaded.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        super().__init__(pid, channel)
        self.chunk: deque[Task] = deque()
        self.began = False
        self.since = self.check_at = 0.0
        self.loaded: set[str] = set()

    @property
    def asleep(self) -> bool:
        """Whether its task sleeps, so that its core is free for others."""
        return bool(self.chunk) and self.began and self.clock.asleep and not self.chunk[0].busy

    @property
    def elapsed(self) -> float:
        """The time of the running task in seconds, at the last check."""
        return self.clock.elapsed

    def mark_sent(self) -> None:
        """A chunk was sent; the reward may have to be loaded first."""
        self.began = False
        self.since = time.monotonic()
        self.check_at = self.since + _CHECK_LOADING

    def mark_started(self) -> None:
        """The first task of the chunk has started."""
        self.began = True
        self.clock.restart()
        self.check_at = time.monotonic() + min(_FIRST_CHECK, self.chunk[0].limit) if self.chunk else 0.0

    def check(self) -> None:
        """Update the time, and set when to check again: no later than the deadline."""
        if not self.began:
            self.check_at = time.monotonic() + _CHECK_LOADING
            return
        clock = self.clock
        clock.update()
        wait = _CHECK_ASLEEP if clock.asleep else _CHECK_MAYBE_ASLEEP if clock.asleep_now else _NEXT_CHECK
        left = self.chunk[0].limit - clock.elapsed
        self.check_at = time.monotonic() + max(_MIN_CHECK, min(wait, left))


class WorkerSupervisor(Supervisor[Task, WorkerHandle]):
    """Runs tasks in worker processes.

    Args:
        start: the start message for the fork server.
        workers: slots (see above).
        finished: called in this thread with each task and its result.
    """

    HANDLE = WorkerHandle

    def __init__(self, start: Start, workers: int, finished: Callable[[Task, object], None]) -> None:
        self._slots = workers
        self._finished = finished
        self._spare_wanted = False  # a task has hung since the queue was last empty
        self._queue: deque[Task] = deque()
        self._by_key: dict[Hashable, Task] = {}
        self._tasks: dict[int, Task] = {}  # unfinished ones, by ticket
        self._tickets = 0
        self._seconds: dict[str, float] = {}  # moving average per sample, by reward
        self.counts: Counter[str] = Counter()
        super().__init__(start, "covey-rewards")

    def _wait(self) -> float | None:
        next_check = min((worker.check_at for worker in self._workers if worker.chunk), default=None)
        if next_check is not None:
            return max(0.0, next_check - time.monotonic())
        return _RETRY_FORK_SECONDS if self._queue else None

    def _take(self, task: Task) -> None:
        twin = self._by_key.get(task.key) if task.key is not None else None
        if twin is not None:  # an equal task is queued or running
            self.counts["from_cache"] += len(task.waiting)
            twin.waiting += task.waiting
            return
        self._tickets += 1
        task.ticket = self._tickets
        self._tasks[task.ticket] = task
        if task.key is not None:
            self._by_key[task.key] = task
        if task.is_call:
            self._queue.appendleft(task)  # it cannot be split later
        else:
            self._queue.append(task)

    def _handle(self, worker: WorkerHandle, message: object) -> None:
        if not worker.chunk:
            raise BadMessageError("an unexpected message")
        match read_answer(message):
            case Begun() if not worker.began:
                worker.mark_started()
                worker.loaded.add(worker.chunk[0].name)
            case SampleDone(ticket, result, more, seconds) if worker.began:
                task = self._answered(worker, ticket, result)
                usual = self._seconds.get(task.name, seconds)
                self._seconds[task.name] = 0.9 * usual + 0.1 * min(seconds, SLOW_SECONDS)
                if not more:  # the chunk is done, or the worker dropped the rest of it after a slow sample
                    self._requeue_all(worker)
            case CallDone(ticket, result):
                self._answered(worker, ticket, result)
            case _:
                raise BadMessageError("an unexpected message")

    def _answered(self, worker: WorkerHandle, ticket: int, result: object) -> Task:
        task = worker.chunk[0]
        if task.ticket != ticket or not task.accepts(result):
            raise BadMessageError("an unexpected message")
        worker.chunk.popleft()
        worker.mark_started()  # the next one, if there is one
        self._fork_servers_lost = 0
        self._finish(task, result)
        return task

    def _finish(self, task: Task, result: object) -> None:
        if task.done:  # it was requeued, and two workers have finished it
            return
        self._remove(task)
        self.counts["calls" if task.is_call else "graded"] += 1
        self._finished(task, result)

    def _is_obsolete(self, task: Task) -> bool:
        """Whether a queued task is done, or no job waits for it any more."""
        if not task.done and not task.wanted:
            self._remove(task)
        return task.done

    def _remove(self, task: Task) -> None:
        task.done = True
        del self._tasks[task.ticket]
        if task.key is not None:
            del self._by_key[task.key]

    def _check(self) -> None:
        """Check long-running tasks: requeue the tasks behind them, and kill those past their deadline."""
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker.chunk and worker.check_at <= now]:
            first = worker.chunk[0]
            worker.check()
            if not worker.began:
                if now - worker.since > LOAD_SECONDS:
                    cause = f"was still importing {first.name} after {LOAD_SECONDS:g} s"
                    self._finish(first, first.crashed(cause))
                    self._end(worker)
            elif worker.elapsed >= first.limit:
                self.counts["timed_out"] += 1
                self._spare_wanted = True
                self._finish(first, first.timed_out(worker.elapsed))
                self._end(worker)
            elif worker.asleep or worker.elapsed >= SLOW_SECONDS:
                self._spare_wanted |= worker.asleep
                self._requeue_tasks(worker, list(worker.chunk)[1:])

    def _has_begun(self, worker: WorkerHandle) -> bool:
        return worker.began

    def _blame(self, worker: WorkerHandle, cause: str, at_once: bool) -> None:
        if worker.chunk:
            first = worker.chunk[0]
            first.tries += 1
            if at_once or first.tries >= MOST_TRIES:
                self.counts["crashed"] += 1
                self._finish(first, first.crashed(cause if at_once else f"{cause}, several times"))

    def _dropped(self, worker: WorkerHandle) -> None:
        self._requeue_all(worker)

    def _requeue_all(self, worker: WorkerHandle) -> None:
        """Requeue all tasks that the worker still holds, and empty its chunk."""
        self._requeue_tasks(worker, list(worker.chunk))
        worker.chunk.clear()

    def _requeue_tasks(self, worker: WorkerHandle, tasks: list[Task]) -> None:
        """Requeue tasks in order, except those that another worker already has."""
        for task in reversed(tasks):
            if not task.done and task.holder is worker:
                task.holder = None
                self._queue.appendleft(task)

    def _assign(self) -> None:
        active = sum(bool(worker.chunk) and not worker.asleep for worker in self._workers)
        while self._queue and active < self._slots:
            if self._is_obsolete(self._queue[0]):
                self._queue.popleft()
                continue
            name, idle = self._queue[0].name, [worker for worker in self._workers if not worker.chunk]
            free = next((worker for worker in idle if name in worker.loaded), idle[0]) if idle else self._new_worker()
            if free is None:
                return
            self._send(free)
            active += 1
        if self._queue:
            if self._spare_wanted and all(worker.chunk for worker in self._workers):
                self._spare_wanted = self._new_worker() is not None
            return
        self._spare_wanted = False
        idle = [worker for worker in self._workers if not worker.chunk]
        for worker in idle[self._slots :]:
            self._end(worker)

    def _new_worker(self) -> WorkerHandle | None:
        """Fork a worker; None if the maximum is reached or the system has no process left."""
        if len(self._workers) >= self._slots + MAX_EXTRA_WORKERS:
            return None
        try:
            return self._fork()
        except NoProcessError as error:
            if self._workers:
                return None  # the existing workers continue
            raise RewardError(
                f"No process could be started for the rewards: {error}. Free some memory or processes, or set "
                "rewards.workers to a smaller number; rewards.workers=0 runs rewards in the process of the trainer, "
                "without deadlines."
            ) from error

    def _send(self, worker: WorkerHandle) -> None:
        task = self._queue.popleft()
        worker.chunk.append(task)
        usual = self._seconds.get(task.name, _CHUNK_SECONDS)
        size = 1 if task.is_call else min(_MOST_IN_CHUNK, int(_CHUNK_SECONDS / max(usual, 1e-6)))
        size = min(size, math.ceil(len(self._queue) / (2 * self._slots)))  # the last tasks are spread over the workers
        while len(worker.chunk) < size and self._queue and self._queue[0].name == task.name:
            following = self._queue.popleft()
            if not self._is_obsolete(following):
                worker.chunk.append(following)
        for one in worker.chunk:
            one.holder = worker
        worker.mark_sent()
        samples = [(one.ticket, one.payload) for one in worker.chunk]
        work = Call(task.ticket, task.name, task.payload) if task.is_call else Grade(task.name, samples)
        self._tell(worker, work)

    def _useless(self) -> RewardError:
        return RewardError(
            f"The reward workers ended {self._fork_servers_lost} times in a row before they finished a task; what "
            "they wrote to the log says why. rewards.workers=0 runs rewards in the process of the trainer, without "
            "deadlines."
        )

    def _unfinished(self) -> list[Task]:
        return list(self._tasks.values())

    def _fail(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            for job, _ in task.waiting:
                job.fail(self.failure or RewardError("The reward workers were closed."))
