"""`WorkerPool`: runs graders and batch functions by name, in processes that can be killed."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from covey.errors import RewardError
from covey.rewards.reward import Graded, Reward, RewardSettings
from covey.rewards.workers.run_reward import CallResult, SampleResult
from covey.rewards.workers.supervisor import WorkerSupervisor
from covey.rewards.workers.tasks import Job, ResultCache, Task
from covey.workers.channel import Start
from covey.workers.owned import Owned, Owner

FINDER = "covey.rewards.registry:find"
_WORK = "covey.rewards.workers.worker:RewardWork"
_MOST_WORKERS = 16


class NotPortableError(RewardError):
    """Something for a worker process cannot be pickled."""


def accepted(results: Sequence[SampleResult]) -> list[Graded]:
    """The grades. Raises a `RewardError` if the grader refused a row."""
    for result in results:
        if result.refused:
            raise RewardError(result.cause)
    return [Graded(result.value, result.outcome, mode=result.mode) for result in results]


def default_workers() -> int:
    """Workers of one training process: its share of the cores of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = cores // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return max(1, min(share, _MOST_WORKERS))


class WorkerPool(Owner):
    """Runs graders and reward functions, by name, in worker processes.

    Started by the first task or by `start()`, thread-safe, closed by `close()`, the end of a `with` block, or the end
    of the program. After a fork of this process the child gets a pool of its own.

    Args:
        workers: tasks that may use a core at once; None: one per core. While tasks sleep there are more workers (see
            `supervisor.py`).
        settings: parameters of the rewards.
        timeout: seconds for grading one sample, from its start in a worker; waiting for a core does not count.
        batch_timeout: the same, for one call of a batch function.
        memory_mb: MiB that a worker may allocate once a reward is loaded (on Linux); a grader that needs more crashes
            on that sample. None: no limit.
        cache_size: grading results to keep; 0 grades every sample, even equal ones of a batch.
        preload: rewards to load before the first worker is forked.
        finder: `module:function` that turns a name and the settings into a `Reward`, here and in the workers.
    """

    def __init__(
        self,
        workers: int | None,
        settings: RewardSettings,
        timeout: float = 5.0,
        batch_timeout: float = 60.0,
        *,
        memory_mb: int | None = 4096,
        cache_size: int = 100_000,
        preload: Sequence[str] = (),
        finder: str = FINDER,
    ) -> None:
        self.workers = default_workers() if workers is None else workers
        self._settings = settings
        self._timeout = timeout
        self._batch_timeout = batch_timeout
        self._memory = None if memory_mb is None else memory_mb << 20
        self._preload = tuple(preload)
        self._output: str | None = None
        self._finder = finder
        self._found: dict[str, Reward] = {}
        self._cache = ResultCache(cache_size)
        self._cache_size = cache_size
        self._from_cache = 0
        self._supervisor = Owned(
            self._start_supervisor, RewardError("The reward workers were closed: make a new pool.")
        )

    def start(self, output: Path | None = None) -> None:
        """Start the processes, in the background.

        Args:
            output: the file to append what rewards print to; None: standard error.
        """
        self._output = None if output is None else str(output.resolve())
        self._supervisor.running().submit([])

    def grade(self, name: str, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Graded]:
        """Grade completions, each under a deadline of its own.

        Args:
            name: a grader's name.
            completions: texts.
            rows: the data row of each text: `answer`, `prompt`, and other columns that the grader reads.

        Raises:
            RewardError: there is no such grader, or a row lacks a column that it needs.
        """
        return accepted(self.submit_grading(name, completions, rows).result())

    def submit_grading(
        self, name: str, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> Future[list[SampleResult]]:
        """As `grade`, without waiting; the results also hold causes, and the rows that the grader refused."""
        reward = self._find(name)
        if reward.sample is None:
            raise RewardError(f"{name} does not grade single completions: call it on whole batches.")
        job = Job(len(completions))
        tasks = []
        for index, (text, row) in enumerate(zip(completions, rows, strict=True)):
            key = reward.cache_key(text, row) if reward.cache_key and self._cache_size else None
            known = self._cache.get(key)
            if known is not None:
                self._from_cache += 1
                job.put(index, known)
                continue
            payload = _pickled((text, row), f"Row {index} for {name}")
            limit = self._timeout if reward.seconds is None else reward.seconds(row)
            busy = reward.seconds is not None
            tasks.append(Task(name, payload, limit, is_call=False, busy=busy, key=key, waiting=[(job, index)]))
        if tasks:
            self._supervisor.running().submit(tasks)
        return job.future

    def submit_call(self, name: str, kwargs: Mapping[str, Any]) -> Future[list[CallResult]]:
        """Call a batch function, with `prompts`, `completions` and the columns, without waiting.

        The single result also contains what failed and what was logged.
        """
        job = Job(1)
        payload = _pickled(dict(kwargs), f"An argument of {name}")
        size = len(kwargs["completions"])
        task = Task(name, payload, self._batch_timeout, is_call=True, size=size, waiting=[(job, 0)])
        self._supervisor.running().submit([task])
        return job.future

    @property
    def counts(self) -> Counter[str]:
        """Counts so far: `graded`, `calls`, `from_cache`, `timed_out`, `crashed` (workers)."""
        supervisor = self._supervisor.current
        counts = Counter(supervisor.counts if supervisor else {})
        counts["from_cache"] += self._from_cache
        return counts

    def _find(self, name: str) -> Reward:
        if name not in self._found:
            module, _, function = self._finder.partition(":")
            self._found[name] = getattr(importlib.import_module(module), function)(name, self._settings)
        return self._found[name]

    def _start_supervisor(self) -> WorkerSupervisor:
        arguments = (self._settings, self._finder, self._preload, self._memory)
        start = Start(_WORK, arguments, list(sys.path), self._output)
        return WorkerSupervisor(start, self.workers, self._finished)

    def _finished(self, task: Task, result: Any) -> None:
        if not task.is_call:
            self._cache.put(task.key, result)
        for job, index in task.waiting:
            job.put(index, result)


def _pickled(value: Any, what: str) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise NotPortableError(
            f"{what} cannot be sent to a worker process: {error}. Leave such columns out of the data, or give the "
            "reward as a Python function, which runs in the process of the trainer."
        ) from error
