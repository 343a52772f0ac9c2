"""`RewardRunner`: the rewards of a run, as functions that TRL's trainer calls, executed where they cannot hurt it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from covey.answers import Outcome
from covey.errors import RewardError
from covey.rewards.arguments import PortableColumns, arguments_for_call, rows_for_grading
from covey.rewards.findings import Findings, Problem
from covey.rewards.inline import InProcess
from covey.rewards.judging import Called, Sampled
from covey.rewards.pool import NotPortableError, WorkerPool
from covey.rewards.registry import find, refuse_equal_names
from covey.rewards.reward import Graded, Reward, RewardFunction, completion_text, with_opening
from covey.rewards.settings import RewardSettings

if TYPE_CHECKING:
    from covey.config.schema import RewardsConfig

_log = logging.getLogger("covey.rewards")
_MOST_BATCHES = 4  # that are submitted and not collected: more only pile up when calls were broken off


class _Batch:
    """One batch of completions whose rewards are being computed."""

    def __init__(self, given: Sequence[Any], opened: str) -> None:
        self.given = given  # held on to, so that no other list can have its identity
        self.completions = [with_opening(completion, opened) for completion in given] if opened else given
        self.grades: dict[str, Future[list[Sampled]]] = {}
        self.calls: dict[int, Future[list[Called]]] = {}
        self.collected: set[int] = set()
        self.reported: set[str] = set()


class RewardRunner:
    """Runs the rewards of a run: those given by name in worker processes, callables as they are.

    The first function that is called with a new batch submits the work of all named ones, so that they run side by
    side; each then waits for its own. `begin` submits it earlier still. Functions that need the same grader's grades
    share them.

    Args:
        funcs: names, as `get_reward` takes them, and callables of TRL's signature.
        settings: parameters of the rewards.
        on_error: `stop` raises when a function fails, `skip` leaves those rewards out (None).
        workers: see `WorkerPool`; 0 runs named functions in this process too, without deadlines.
        timeout: seconds for grading one completion.
        batch_timeout: seconds for one call of a function that takes a whole batch.

    Raises:
        RewardError: a function cannot be found or used, or two have the same name.
    """

    def __init__(
        self,
        funcs: Sequence[str | RewardFunction],
        settings: RewardSettings | None = None,
        *,
        on_error: str = "stop",
        workers: int | None = None,
        timeout: float = 5.0,
        batch_timeout: float = 60.0,
    ) -> None:
        settings = settings or RewardSettings()
        self._rewards: dict[int, tuple[str, Reward]] = {}  # by position: what the workers call it, and what it is
        self.functions: list[RewardFunction] = []
        """The functions to hand to the trainer, in the order of `funcs`, each with the `__name__` for its metrics."""
        for position, func in enumerate(funcs):
            if isinstance(func, str):
                reward = find(func, settings)
                self._rewards[position] = (func if ":" in func else reward.name, reward)
                self.functions.append(self._function(position, reward))
            else:
                self.functions.append(func)
        names = [getattr(function, "__name__", repr(function)) for function in self.functions]
        refuse_equal_names([f if isinstance(f, str) else n for f, n in zip(funcs, names, strict=True)], names)
        graders = {_grader(name, reward) for name, reward in self._rewards.values()} - {""}
        self._findings = Findings(on_error)
        self._portable = PortableColumns()
        self._batches: list[_Batch] = []
        self.opened = ""
        """What the prompts open for the model, such as `<think>`: it is put in front of every completion before that is
        scored, so that rewards see the whole answer."""
        self._lock = threading.Lock()
        self.pool: WorkerPool | InProcess
        if workers == 0:
            self.pool = InProcess(dict(self._rewards.values()), partial(find, settings=settings))
        else:
            self.pool = WorkerPool(workers, settings, timeout, batch_timeout, preload=sorted(graders))
        self._say_what_runs_here(funcs, workers)

    @classmethod
    def of(cls, config: RewardsConfig, *, max_completion_length: int | None) -> Self:
        """The runner of a run, from its config (`config.rewards`) and `training.max_completion_length`."""
        return cls(
            config.funcs,
            RewardSettings.of(config, max_completion_length),
            on_error=config.on_error,
            workers=config.workers,
            timeout=config.timeout,
            batch_timeout=config.batch_timeout,
        )

    def start(self, output: Path | None = None) -> None:
        """Begin to start the worker processes, in the background, while something else is done.

        Args:
            output: the file to which what rewards print there is added; None lets it go to standard error.
        """
        if self._rewards:
            self.pool.start(output)

    def begin(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> None:
        """Have the workers begin with a batch for whose rewards `functions` will be called later, with these arguments.

        Without workers nothing happens. What is wrong with the batch is said when a function is called.
        """
        if not self._rewards or isinstance(self.pool, InProcess):
            return
        with self._lock:
            try:
                batch = self._submit(prompts, completions, columns)
            except RewardError:  # the function that is called will meet it again, and raise it
                return
            self._batches = [*self._batches[1 - _MOST_BATCHES :], batch]

    def drop(self, completions: Sequence[Any]) -> None:
        """Let go of a batch that was begun and whose rewards nobody collects; what waits in the queue is not done."""
        with self._lock:
            dropped = [batch for batch in self._batches if batch.given is completions]
            self._batches = [batch for batch in self._batches if batch.given is not completions]
        for batch in dropped:
            futures: list[Future[Any]] = [*batch.grades.values(), *batch.calls.values()]
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()

    def grade(self, name: str, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Graded]:
        """Grade completions outside a training step, by the name of a grader, whether or not it is a reward of the run.

        Raises:
            RewardError: there is no such grader, or it cannot grade a row for want of a column.
        """
        results = self.pool.submit_grading(name, completions, rows).result()
        refused = next((result for result in results if result.refused), None)
        if refused is not None:
            raise RewardError(refused.cause)
        return [Graded(result.value, result.outcome) for result in results]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _function(self, position: int, reward: Reward) -> RewardFunction:
        def run(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
            batch = self._batch_for(position, prompts, completions, columns)
            return self._collect(batch, position, prompts, columns)

        run.__name__ = run.__qualname__ = reward.name
        run.__doc__ = reward.batch.__doc__
        run.runner = self  # type: ignore[attr-defined]  # for those who can `begin` early
        return run

    def _batch_for(
        self, position: int, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> _Batch:
        """The batch that holds these very completions, submitted anew unless this function's part still waits there."""
        with self._lock:
            for batch in self._batches:
                if batch.given is completions and position not in batch.collected:
                    break
            else:
                batch = self._submit(prompts, completions, columns)
                self._batches = [*self._batches[1 - _MOST_BATCHES :], batch]
            batch.collected.add(position)
            if len(batch.collected) == len(self._rewards):
                self._batches.remove(batch)
            return batch

    def _submit(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> _Batch:
        try:
            return self._submit_all(prompts, completions, columns)
        except NotPortableError:
            return self._submit_all(prompts, completions, self._portable.of(columns))

    def _submit_all(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> _Batch:
        batch = _Batch(completions, self.opened)
        completions = batch.completions
        for position, (name, reward) in self._rewards.items():
            if not _grader(name, reward):  # calls first: they take longest
                arguments = arguments_for_call(reward, ":" not in name, prompts, completions, columns)
                batch.calls[position] = self.pool.submit_call(name, arguments)
        graders = {_grader(name, reward) for name, reward in self._rewards.values()} - {""}
        if graders and ("answer" in columns or "solution" in columns):
            texts = [completion_text(completion) for completion in completions]
            rows = rows_for_grading(prompts, columns)
            batch.grades = {name: self.pool.submit_grading(name, texts, rows) for name in sorted(graders)}
        return batch

    def _collect(
        self, batch: _Batch, position: int, prompts: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[float | None]:
        name, reward = self._rewards[position]
        log_metric = columns.get("log_metric")
        grader = _grader(name, reward)
        if not grader:
            (called,) = batch.calls[position].result()
            problems = [Problem(None, called.failure)] if called.failure else [Problem(*bad) for bad in called.bad]
            for entry in called.logged:
                if callable(columns.get(entry.function)):
                    columns[entry.function](entry.name, entry.value)
            return self._findings.settle(reward.name, called.values, problems, prompts, log_metric)
        if grader not in batch.grades:
            cause = "the data must have a column answer (or solution) with the gold answers"
            return self._findings.settle(reward.name, [], [Problem(None, cause)], prompts, log_metric)
        results = batch.grades[grader].result()
        with self._lock:
            first = grader not in batch.reported
            foremost = not batch.reported
            batch.reported.add(grader)
        if foremost and callable(log_extra := columns.get("log_extra")):
            log_extra("outcome", [result.outcome and result.outcome.value for result in results])
        if first:
            self._findings.outcomes(grader, results, prompts, log_metric)
        values = _values(reward, prompts, batch.completions, results)
        return self._findings.settle(reward.name, values, _grading_problems(results), prompts, log_metric)

    def _say_what_runs_here(self, funcs: Sequence[str | RewardFunction], workers: int | None) -> None:
        here = [func.__name__ for func in funcs if not isinstance(func, str) and hasattr(func, "__name__")]
        if here:
            _log.info(
                "Rewards given as Python functions run in the process of the trainer, without deadlines: %s.",
                ", ".join(here),
            )
        if workers == 0 and self._rewards:
            _log.info(
                "rewards.workers=0: all rewards run in the process of the trainer, without deadlines: one that hangs "
                "stops the training."
            )


def _grader(name: str, reward: Reward) -> str:
    """The grader whose grades a reward is made of: another one, or itself; empty for a function of whole batches."""
    return reward.graded_by or (name if reward.sample is not None else "")


def _values(
    reward: Reward, prompts: Sequence[Any], completions: Sequence[Any], results: Sequence[Sampled]
) -> list[float | None]:
    if reward.from_grades is None:
        return [result.value for result in results]
    return reward.from_grades(prompts, completions, [Graded(result.value, result.outcome) for result in results])


def _grading_problems(results: Sequence[Sampled]) -> list[Problem]:
    """Rows that the grader refused; or that it crashed on all of them, which is no fault of the completions."""
    problems = [Problem(row, result.cause) for row, result in enumerate(results) if result.refused]
    if not problems and results and all(result.outcome is Outcome.CRASHED for result in results):
        return [Problem(None, f"it crashed on every completion of the batch; on the first: {results[0].cause}")]
    return problems
