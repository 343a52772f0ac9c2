"""`RewardRunner`: the rewards of a run as functions for TRL's trainer, executed in worker processes."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from covey.answers import Outcome
from covey.errors import RewardError
from covey.rewards.arguments import arguments_for_call, portable, rows_for_grading
from covey.rewards.findings import Findings, RewardProblem
from covey.rewards.no_reward_check import NoRewardCheck
from covey.rewards.registry import find, refuse_equal_names
from covey.rewards.reward import Graded, Reward, RewardFunction, completion_text, with_prefix
from covey.rewards.settings import RewardSettings
from covey.rewards.workers.inline import InProcess
from covey.rewards.workers.pool import NotPortableError, WorkerPool, accepted
from covey.rewards.workers.run_reward import LOGS, CallResult, SampleResult

if TYPE_CHECKING:
    from covey.config.groups.rewards import RewardsConfig

_log = logging.getLogger("covey.rewards")
_MAX_BATCHES = 4  # submitted and not collected: more pile up only after interrupted calls


class _Batch:
    """One batch of completions whose rewards are being computed."""

    def __init__(self, given: Sequence[Any], prefix: str) -> None:
        self.given = given  # kept alive, because batches are found by the identity of this list
        self.completions = [with_prefix(completion, prefix) for completion in given] if prefix else given
        self.grades: dict[str, Future[list[SampleResult]]] = {}
        self.calls: dict[int, Future[list[CallResult]]] = {}
        self.collected: set[int] = set()
        self.reported: set[str] = set()
        self.columns: dict[str, str] = {}  # logged columns, each with the reward that logged it
        self.failed = 0  # rewards missing because a function failed
        self.rewarded = False  # whether any function gave any completion a reward


class RewardRunner:
    """Runs the rewards of a run: those given by name in worker processes, callables as they are.

    The first function that is called with a new batch submits the tasks of all named ones, which then run in parallel;
    each function waits for its own. `begin` submits a batch earlier still. Functions that need the grades of the same
    grader share them.

    Args:
        funcs: names, as `get_reward` takes them, and callables of TRL's signature.
        settings: parameters of the rewards.
        on_error: `stop` raises when a function fails, `skip` makes those rewards None.
        workers: see `WorkerPool`; 0 runs named functions in this process, without deadlines.
        timeout: seconds for grading one completion.
        batch_timeout: seconds for one call of a function that takes a whole batch.
        memory_mb: see `WorkerPool`.

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
        memory_mb: int | None = 4096,
    ) -> None:
        self._settings = settings = settings or RewardSettings()
        self._rewards: dict[int, tuple[str, Reward]] = {}  # by position, with the name that workers find it by
        self.functions: list[RewardFunction] = []
        """The functions for the trainer, in the order of `funcs`; metrics are named by their `__name__`."""
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
        self._names = names
        self._findings = Findings(on_error)
        self._on_error = on_error
        self._no_reward_check = NoRewardCheck() if len(self._rewards) == len(funcs) else None
        self._batches: list[_Batch] = []
        self.prompt_prefix = ""
        """What the prompts end with for the model to continue, such as `<think>`: it is prepended to each completion,
        so that rewards see the whole answer."""
        self._lock = threading.Lock()
        self.pool: WorkerPool | InProcess
        if workers == 0:
            self.pool = InProcess(dict(self._rewards.values()), partial(find, settings=settings))
        else:
            self.pool = WorkerPool(
                workers, settings, timeout, batch_timeout, memory_mb=memory_mb, preload=sorted(graders)
            )
        self._log_what_runs_here(funcs, workers)

    @classmethod
    def of(cls, config: RewardsConfig, *, max_completion_length: int | None) -> Self:
        """The runner for `config.rewards` and `training.max_completion_length`."""
        return cls(
            config.funcs,
            RewardSettings.of(config, max_completion_length),
            on_error=config.on_error,
            workers=config.workers,
            timeout=config.timeout,
            batch_timeout=config.batch_timeout,
            memory_mb=config.memory_mb,
        )

    def start(self, output: Path | None = None) -> None:
        """Start the worker processes, in the background.

        Args:
            output: the file to append what rewards print to; None: standard error.
        """
        if self._rewards:
            self.pool.start(output)

    def takes(self, argument: str) -> bool:
        """Whether a function given by name has this argument by its name."""
        return any(argument in inspect.signature(reward.batch).parameters for _, reward in self._rewards.values())

    def begin(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> None:
        """Submit a batch early; `functions` must be called later with these arguments.

        Does nothing without workers. Errors in the batch are raised when a function is called.
        """
        if not self._rewards or isinstance(self.pool, InProcess):
            return
        with self._lock:
            try:
                batch = self._submit(prompts, completions, columns)
            except RewardError:  # raised again when a function is called
                return
            self._batches = [*self._batches[1 - _MAX_BATCHES :], batch]

    def drop(self, completions: Sequence[Any]) -> None:
        """Drop a batch that was begun and will not be collected, and cancel its queued tasks."""
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
        """Grade completions outside a training step, by any grader, given by name.

        Raises:
            RewardError: there is no such grader, or a row lacks a column that it needs.
        """
        return accepted(self.pool.submit_grading(name, completions, rows).result())

    @property
    def notify(self) -> Callable[[str], None] | None:
        """Shows the user a line, in addition to the log; may be set."""
        return self._findings.notify

    @notify.setter
    def notify(self, show: Callable[[str], None] | None) -> None:
        self._findings.notify = show

    def score(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> dict[str, list[float | None]]:
        """The rewards of completions outside a training step, by function. What the functions log is dropped.

        Args:
            prompts: one per completion.
            completions: texts or conversations, as in training.
            columns: further arguments of the functions, besides those for logging.

        Raises:
            RewardError: a function fails, and `on_error` is `stop`.
        """
        columns = {**columns, **dict.fromkeys(LOGS)}
        batch = self._submit(prompts, completions, columns)
        found = {}
        for position, (_, reward) in self._rewards.items():
            values, problems = self._results(batch, position, prompts, columns)
            found[reward.name], _ = self._findings.settle(reward.name, values, problems, prompts)
        return found

    def grade_batch(
        self, name: str, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[Graded]:
        """The values that a function of whole batches, given by name, has for completions; arguments as of `score`.

        Returns:
            Without an outcome; `Outcome.CRASHED` where the function failed and `on_error` is `skip`.

        Raises:
            RewardError: there is no such function; or it fails, and `on_error` is `stop`.
        """
        reward = find(name, self._settings)
        given = {**columns, **dict.fromkeys(LOGS)}
        try:
            call = self.pool.submit_call(name, arguments_for_call(reward, False, prompts, completions, given))
        except NotPortableError:
            given = portable(given)
            call = self.pool.submit_call(name, arguments_for_call(reward, False, prompts, completions, given))
        (called,) = call.result()
        problems = _call_problems(called)
        values, _ = self._findings.settle(name, called.values, problems, prompts, what="grader")
        failed = {problem.row for problem in problems}
        return [Graded(value, Outcome.CRASHED if failed & {None, row} else None) for row, value in enumerate(values)]

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
        run.runner = self  # type: ignore[attr-defined]  # for callers that can `begin` early
        return run

    def _batch_for(
        self, position: int, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> _Batch:
        """The batch of these very completions; submitted if it is not there or this function has collected it."""
        with self._lock:
            for batch in self._batches:
                if batch.given is completions and position not in batch.collected:
                    break
            else:
                batch = self._submit(prompts, completions, columns)
                self._batches = [*self._batches[1 - _MAX_BATCHES :], batch]
            batch.collected.add(position)
            if len(batch.collected) == len(self._rewards):
                self._batches.remove(batch)
            return batch

    def _submit(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> _Batch:
        try:
            return self._submit_all(prompts, completions, columns)
        except NotPortableError:
            return self._submit_all(prompts, completions, portable(columns))

    def _submit_all(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> _Batch:
        batch = _Batch(completions, self.prompt_prefix)
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
        values, problems = self._results(batch, position, prompts, columns)
        values, failed = self._findings.settle(self._rewards[position][1].name, values, problems, prompts)
        batch.failed += failed
        batch.rewarded |= any(value is not None for value in values)
        if len(batch.collected) == len(self._rewards):
            log_metric = columns.get("log_metric")
            if self._on_error == "skip" and callable(log_metric):
                log_metric("grader/errors", float(batch.failed * _processes()))
            if self._no_reward_check is not None and values:
                self._no_reward_check.add(batch.rewarded, self._findings.notify)
        return values

    def _results(
        self, batch: _Batch, position: int, prompts: Sequence[Any], columns: Mapping[str, Any]
    ) -> tuple[list[float | None], list[RewardProblem]]:
        """The values of one function, and its problems; passes on what it logged."""
        name, reward = self._rewards[position]
        grader = _grader(name, reward)
        if not grader:
            (called,) = batch.calls[position].result()
            self._log(batch, reward.name, called, columns)
            return called.values, _call_problems(called)
        if grader not in batch.grades:
            return [], [RewardProblem(None, "the data must have a column answer (or solution) with the gold answers")]
        results = batch.grades[grader].result()
        with self._lock:
            first = grader not in batch.reported
            first_grader = not batch.reported
            batch.reported.add(grader)
        if first_grader and callable(log_extra := columns.get("log_extra")):
            log_extra("outcome", [result.outcome and result.outcome.value for result in results])
        if first:
            self._findings.outcomes(grader, results, prompts, columns.get("log_metric"))
        return _values(reward, prompts, batch.completions, results), _grading_problems(results)

    def _log(self, batch: _Batch, reward: str, called: CallResult, columns: Mapping[str, Any]) -> None:
        """Pass on what a function logged, under names that are not taken."""
        self._findings.warn_rejected(reward, called.unlogged)
        for entry in called.logged:
            if callable(columns.get(entry.function)):
                others = [column for column, owner in batch.columns.items() if owner != reward]
                name = self._findings.log_name(entry, reward, others, self._names)
                if entry.function == "log_extra":
                    batch.columns[name] = reward
                columns[entry.function](name, entry.value)

    def _log_what_runs_here(self, funcs: Sequence[str | RewardFunction], workers: int | None) -> None:
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


def _processes() -> int:
    """Processes of the run. TRL logs the mean over them, so a count is multiplied by this."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _grader(name: str, reward: Reward) -> str:
    """The grader whose grades a reward uses: another one or itself; empty for a function of whole batches."""
    return reward.graded_by or (name if reward.sample is not None else "")


def _values(
    reward: Reward, prompts: Sequence[Any], completions: Sequence[Any], results: Sequence[SampleResult]
) -> list[float | None]:
    if reward.from_grades is None:
        return [result.value for result in results]
    return reward.from_grades(prompts, completions, [Graded(result.value, result.outcome) for result in results])


def _call_problems(called: CallResult) -> list[RewardProblem]:
    return [RewardProblem(None, called.failure)] if called.failure else [RewardProblem(*bad) for bad in called.bad]


def _grading_problems(results: Sequence[SampleResult]) -> list[RewardProblem]:
    """Rows that the grader refused; or one problem if it crashed on all rows, which is not the completions' fault."""
    problems = [RewardProblem(row, result.cause) for row, result in enumerate(results) if result.refused]
    if not problems and results and all(result.outcome is Outcome.CRASHED for result in results):
        return [RewardProblem(None, f"it crashed on every completion of the batch; on the first: {results[0].cause}")]
    return problems
