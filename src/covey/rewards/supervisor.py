"""The thread that hands tasks to workers, watches their deadlines, and replaces the workers that are lost.

It alone owns the processes and the queue; other threads submit tasks and wait for futures.

How many workers: a task on a core takes a slot, and there are `workers` slots, one per core by default. A task that
sleeps (a grader waiting for something that never comes) uses no core, so its slot is lent to a further worker, up to
`MOST_LENT` of them. Thus hanging tasks wait side by side, while the cores go on with the rest. A task that hangs on a
core takes its slot until its deadline: nobody can tell it from one that is about to finish, and it shall get what it
was promised. Once a task has hung, a spare worker is kept ready for the next one while there is work. When that work is
done, the home learns what will make later workers faster.
"""

from __future__ import annotations

import math
import os
import queue
import selectors
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable

from covey.errors import RewardError
from covey.rewards.home import Home, HomeGoneError
from covey.rewards.member import Worker
from covey.rewards.messages import PATIENCE, Begun, Call, CallDone, Grade, SampleDone, Start, send
from covey.rewards.tasks import Task

MOST_LENT = 128
"""Further workers, at most, while tasks sleep: each takes some ten megabytes of its own."""
LOAD_SECONDS = 120.0
"""What importing a reward's module may take in a worker, on top of any deadline."""
_MOST_TRIES = 3  # workers in a row that may die before they began a task
_CHUNK_SECONDS = 0.04  # work that is sent to a worker at a time
_MOST_IN_CHUNK = 64
_SEND_SECONDS = 60.0
_NO_PROCESS_SECONDS = 0.01  # until the system is asked again for a process that it did not give


class Supervisor:
    """Runs tasks in worker processes.

    Args:
        start: what workers are told.
        workers: slots, see above.
        finished: called in this thread with every task and its result.
    """

    def __init__(self, start: Start, workers: int, finished: Callable[[Task, object], None]) -> None:
        self._start = start
        self._slots = workers
        self._finished = finished
        self._intake: queue.SimpleQueue[list[Task] | None] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._home: Home | None = None
        self._homes_lost = 0
        self._workers: list[Worker] = []
        self._spare_wanted = False  # a task has hung since the queue was last empty
        self._has_lost = False  # a worker, to a task
        self._queue: deque[Task] = deque()
        self._by_key: dict[Hashable, Task] = {}
        self._tasks: dict[int, Task] = {}  # by ticket: all that are not done
        self._tickets = 0
        self._seconds: dict[str, float] = {}  # a sample's usual time, by reward
        self._closing = self._ended = False
        self._lock = threading.Lock()
        self.failure: BaseException | None = None
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="covey-rewards", daemon=True)
        self._thread.start()

    # -- for any thread

    def submit(self, tasks: list[Task]) -> None:
        """Queue tasks; an empty list has the home started."""
        with self._lock:
            if not self._ended:
                self._intake.put(tasks)
                self._wake.send(b"x")
                return
        self._fail(tasks)

    def close(self) -> None:
        """End all workers and the thread; tasks that are not done fail."""
        with self._lock:
            if not self._ended:
                self._intake.put(None)
                self._wake.send(b"x")
        self._thread.join()

    def forget(self) -> None:
        """In a fork of the trainer, which has neither the thread nor the workers: let go of the sockets."""
        for worker in self._workers:
            worker.close()
        if self._home is not None:
            self._home.forget()

    @property
    def pids(self) -> list[int]:
        """The processes there are: the home first, then the workers."""
        return ([self._home.pid] if self._home else []) + [worker.pid for worker in self._workers]

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:  # handed to those who wait, in `WorkerPool`
            self.failure = error
        finally:
            with self._lock:
                self._ended = True
            self._end_all()
            self._fail(list(self._tasks.values()))
            while not self._intake.empty():
                self._fail(self._intake.get() or [])

    def _turn(self) -> None:
        next_look = min((worker.look_at for worker in self._workers if worker.chunk), default=None)
        if next_look is not None:
            wait: float | None = max(0.0, next_look - time.monotonic())
        else:
            wait = _NO_PROCESS_SECONDS if self._queue else None
        try:
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    self._take_in()
                else:
                    self._read(key.data)
            self._look()
            if not self._closing:
                self._hand_out()
        except HomeGoneError:
            self._replace_home()

    def _take_in(self) -> None:
        self._woken.recv(4096)
        while not self._intake.empty():
            tasks = self._intake.get()
            if tasks is None:
                self._closing = True
                return
            for task in tasks:
                twin = self._by_key.get(task.key) if task.key is not None else None
                if twin is not None:  # the same question is being answered
                    self.counts["from_cache"] += len(task.waiting)
                    twin.waiting += task.waiting
                    continue
                self._tickets += 1
                task.ticket = self._tickets
                self._tasks[task.ticket] = task
                if task.key is not None:
                    self._by_key[task.key] = task
                if task.is_call:
                    self._queue.appendleft(task)  # it cannot be shared out later
                else:
                    self._queue.append(task)
            if not tasks:
                self._home = self._home or Home(self._start)

    def _read(self, worker: Worker) -> None:
        for message in worker.inbox.messages():
            match message:
                case Begun():
                    worker.begins()
                    worker.loaded.add(worker.chunk[0].name)
                case SampleDone(ticket, result, more, seconds):
                    task = self._answered(worker, ticket, result)
                    usual = self._seconds.get(task.name, seconds)
                    self._seconds[task.name] = 0.9 * usual + 0.1 * min(seconds, PATIENCE)
                    if not more:  # it is done with its chunk, or dropped the rest of it after a slow sample
                        self._requeue(worker)
                case CallDone(ticket, result):
                    self._answered(worker, ticket, result)
        if worker.inbox.closed:
            self._lose(worker)

    def _answered(self, worker: Worker, ticket: int, result: object) -> Task:
        task = worker.chunk.popleft()
        assert task.ticket == ticket, "workers answer in order"
        worker.begins()  # with the next one, if there is one
        self._homes_lost = 0
        self._finish(task, result)
        return task

    def _finish(self, task: Task, result: object) -> None:
        if task.done:  # it was taken to another worker, and this one was through with it all the same
            return
        self._strike_off(task)
        self.counts["calls" if task.is_call else "graded"] += 1
        self._finished(task, result)

    def _needless(self, task: Task) -> bool:
        """Whether a task in the queue is done, or nobody waits for it any more."""
        if not task.done and not task.wanted:
            self._strike_off(task)
        return task.done

    def _strike_off(self, task: Task) -> None:
        task.done = True
        del self._tasks[task.ticket]
        if task.key is not None:
            del self._by_key[task.key]

    def _look(self) -> None:
        """Watch the work that takes long: free what waits behind it, and end it at its deadline."""
        now = time.monotonic()
        for worker in [worker for worker in self._workers if worker.chunk and worker.look_at <= now]:
            first = worker.chunk[0]
            worker.look()
            if not worker.began:
                if now - worker.since > LOAD_SECONDS:
                    cause = f"was still importing {first.name} after {LOAD_SECONDS:g} s"
                    self._finish(first, first.crashed(cause))
                    self._end(worker)
            elif worker.elapsed >= first.limit:
                self.counts["timed_out"] += 1
                self._spare_wanted = self._has_lost = True
                self._finish(first, first.overran(worker.elapsed))
                self._end(worker)
            elif worker.asleep or worker.elapsed >= PATIENCE:
                self._spare_wanted |= worker.asleep
                self._give_away(worker, list(worker.chunk)[1:])

    def _lose(self, worker: Worker) -> None:
        """A worker died by itself: its first task is to blame, unless it had not begun."""
        assert self._home is not None
        self._has_lost = True
        status = self._home.end(worker.pid)
        self._blame(worker, _ended(status), at_once=worker.began)
        self._drop(worker)

    def _blame(self, worker: Worker, cause: str, at_once: bool) -> None:
        if worker.chunk:
            first = worker.chunk[0]
            first.tries += 1
            if at_once or first.tries >= _MOST_TRIES:
                self.counts["crashed"] += 1
                self._finish(first, first.crashed(cause))

    def _end(self, worker: Worker) -> None:
        """Kill a worker; what it had not answered goes to others."""
        assert self._home is not None
        worker.stop()
        self._home.kill(worker.pid)
        self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker.channel)
        worker.close()
        self._requeue(worker)

    def _requeue(self, worker: Worker) -> None:
        """Give what the worker still holds to others, for good."""
        self._give_away(worker, list(worker.chunk))
        worker.chunk.clear()

    def _give_away(self, worker: Worker, tasks: list[Task]) -> None:
        """Queue tasks again, in their order; not those that another worker was given already."""
        for task in reversed(tasks):
            if not task.done and task.holder is worker:
                task.holder = None
                self._queue.appendleft(task)

    def _hand_out(self) -> None:
        active = sum(bool(worker.chunk) and not worker.asleep for worker in self._workers)
        while self._queue and active < self._slots:
            if self._needless(self._queue[0]):
                self._queue.popleft()
                continue
            worker = self._free_worker(self._queue[0].name)
            if worker is None:
                return
            self._send(worker)
            active += 1
        if self._queue:
            if self._spare_wanted and all(worker.chunk for worker in self._workers):
                self._spare_wanted = self._new_worker() is not None
            return
        self._spare_wanted = False
        idle = [worker for worker in self._workers if not worker.chunk]
        for worker in idle[self._slots :]:
            self._end(worker)
        if self._has_lost and self._home is not None and len(idle) == len(self._workers):
            self._home.learn()

    def _free_worker(self, name: str) -> Worker | None:
        idle = [worker for worker in self._workers if not worker.chunk]
        if idle:
            return next((worker for worker in idle if name in worker.loaded), idle[0])
        return self._new_worker()

    def _new_worker(self) -> Worker | None:
        """One more worker; None if there are as many as there may be."""
        if len(self._workers) >= self._slots + MOST_LENT:
            return None
        self._home = self._home or Home(self._start)
        try:
            pid, channel = self._home.fork()
        except RewardError:
            if not self._workers:
                raise
            return None  # those that are there go on
        channel.settimeout(_SEND_SECONDS)
        worker = Worker(pid, channel)
        self._workers.append(worker)
        self._selector.register(channel, selectors.EVENT_READ, worker)
        return worker

    def _send(self, worker: Worker) -> None:
        task = self._queue.popleft()
        worker.chunk.append(task)
        usual = self._seconds.get(task.name, _CHUNK_SECONDS)
        size = 1 if task.is_call else min(_MOST_IN_CHUNK, int(_CHUNK_SECONDS / max(usual, 1e-6)))
        size = min(size, math.ceil(len(self._queue) / (2 * self._slots)))  # the last ones are shared out
        while len(worker.chunk) < size and self._queue and self._queue[0].name == task.name:
            following = self._queue.popleft()
            if not self._needless(following):
                worker.chunk.append(following)
        for one in worker.chunk:
            one.holder = worker
        worker.sent()
        work = (
            Call(task.ticket, task.name, task.payload)
            if task.is_call
            else Grade(task.name, [(one.ticket, one.payload) for one in worker.chunk])
        )
        try:
            send(worker.channel, work)
        except OSError:  # it has died, which the next read tells
            return

    def _replace_home(self) -> None:
        """The home was killed (by the system, for memory, say), and all workers with it: begin again with a new one."""
        self._homes_lost += 1
        for worker in list(self._workers):
            self._blame(worker, "was ended from outside, several times", at_once=False)
            self._drop(worker)
        if self._home is not None:
            self._home.close()
            self._home = None
        if self._homes_lost >= _MOST_TRIES:
            raise RewardError(
                f"The reward workers ended {self._homes_lost} times in a row before they could do anything; what they "
                "wrote to the log says why. rewards.workers=0 runs rewards in the process of the trainer, without "
                "deadlines."
            )

    def _fail(self, tasks: list[Task]) -> None:
        for task in tasks:
            for job, _ in task.waiting:
                job.fail(self.failure or RewardError("The reward workers were closed."))

    def _end_all(self) -> None:
        for worker in list(self._workers):
            self._drop(worker)
        if self._home is not None:
            self._home.close()
        self._selector.close()
        self._wake.close()
        self._woken.close()


def _ended(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by the signal {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
