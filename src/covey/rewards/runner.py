"""`RewardRunner`: the rewards of a run as functions for TRL's trainer, executed in worker processes."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from covey.answers import VALUE_GRADERS, Outcome, holds_gold_value
from covey.errors import RewardError
from covey.importing import is_given
from covey.log_once import log_once
from covey.rewards.findings import Findings, NoRewardCheck, RewardProblem
from covey.rewards.registry import MODE_GRADERS, find, refuse_equal_names
from covey.rewards.reward import (
    Graded,
    Reward,
    RewardFunction,
    RewardSettings,
    completion_text,
    gold_text,
    whole_answers,
)
from covey.rewards.workers.inline import InProcess
from covey.rewards.workers.pool import NotPortableError, WorkerPool, accepted
from covey.rewards.workers.run_reward import LOGS, CallResult, SampleResult
from covey.runlog import names
from covey.sandbox import log_isolation

if TYPE_CHECKING:
    from covey.config.groups.rewards import RewardsConfig


_log = logging.getLogger("covey.rewards")
_NOT_FOR_GRADERS = {"completion_ids", "environments", *LOGS}
_NOT_A_COLUMN = {"prompt", "completion", "completion_ids"}
_STATE = "trainer_state"
_LATEST_LOGS = 100
_MAX_BATCHES = 4  # submitted and not collected: more pile up only after interrupted calls


class RewardRunner:
    """Runs the rewards of a run: those given by name in worker processes, callables as they are.

    The first function that is called with a new batch submits the tasks of all named ones, which then run in parallel;
    each function waits for its own. `begin` submits a batch earlier still. Functions that need the grades of the same
    grader share them. Reward models, and functions that the program gave as objects in place of names, run in this
    process, once their results are asked for.

    Args:
        funcs: names, as `get_reward` takes them, and callables of TRL's signature.
        settings: parameters of the rewards.
        on_error: `stop` raises when a function fails, `skip` makes those rewards None.
        workers: see `WorkerPool`; 0 runs named functions in this process, without deadlines.
        timeout: seconds for grading one completion.
        batch_timeout: seconds for one call of a function that takes a whole batch.
        memory_mb: see `WorkerPool`.
        models: the reward models among `funcs`, by their names there; they run in this process.

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
        models: Mapping[str, RewardFunction] | None = None,
    ) -> None:
        self._settings = settings = settings or RewardSettings()
        self._rewards: dict[int, tuple[str, Reward]] = {}  # by position, with the name that workers find it by
        models = models or {}
        self.functions: list[RewardFunction] = []
        """The functions for the trainer, in the order of `funcs`; metrics are named by their `__name__`."""
        for position, func in enumerate(funcs):
            if isinstance(func, str):
                reward = find(func, settings)
                reward = replace(reward, batch=models[func]) if func in models else reward
                self._rewards[position] = (func if ":" in func else reward.name, reward)
                self.functions.append(self._function(position, reward))
            else:
                self.functions.append(func)
        self._here = {name for name, _ in self._rewards.values() if name in models or is_given(name)}
        own = [getattr(function, "__name__", repr(function)) for function in self.functions]
        refuse_equal_names([f if isinstance(f, str) else n for f, n in zip(funcs, own, strict=True)], own)
        graders = {_grader(name, reward) for name, reward in self._rewards.values()} - {""}
        self._graders = {name: frozenset(find(name, settings).reads) for name in graders}
        self._names = own
        self._findings = Findings(on_error)
        self._on_error = on_error
        self._no_reward_check = NoRewardCheck() if len(self._rewards) == len(funcs) else None
        self._batches: list[PendingBatch] = []
        self.prompt_prefix = ""
        """What the prompts end with for the model to continue, such as `<think>`: it is prepended to each completion,
        so that rewards see the whole answer."""
        self._lock = threading.Lock()
        self._inline = InProcess(dict(self._rewards.values()), partial(find, settings=settings))
        self.pool: WorkerPool | InProcess = self._inline
        if workers != 0:
            self.pool = WorkerPool(
                workers, settings, timeout, batch_timeout, memory_mb=memory_mb, preload=sorted(graders)
            )
        self._log_what_runs_here(funcs, workers)

    @classmethod
    def of(
        cls,
        config: RewardsConfig,
        *,
        max_completion_length: int | None,
        models: Mapping[str, RewardFunction] | None = None,
    ) -> Self:
        """The runner for `config.rewards` and `training.max_completion_length`."""
        return cls(
            config.funcs,
            RewardSettings.of(config, max_completion_length),
            on_error=config.on_error,
            workers=config.workers,
            timeout=config.timeout,
            batch_timeout=config.batch_timeout,
            memory_mb=config.memory_mb,
            models=models,
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

    def pool_of(self, name: str) -> WorkerPool | InProcess:
        """Where a function by name runs: in the workers, and what this program gave as an object in this process."""
        return self._inline if is_given(name) else self.pool

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()

    def grade(self, name: str, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Graded]:
        """Grade completions outside a training step, by any grader, given by name. Raises a `RewardError` if there is
        no such grader, or a row lacks a column that it needs."""
        return accepted(self.pool.submit_grading(name, completions, rows).result())

    def score(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> dict[str, list[Graded]]:
        """The rewards of completions outside a training step, by function, without outcomes. What the functions log is
        dropped, but for the modes of answers.

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
            values, _ = self._findings.settle(reward.name, values, problems, prompts)
            modes = logged_modes(batch.calls[position].result()[0]) if position in batch.calls else None
            found[reward.name] = [
                Graded(value, mode=mode) for value, mode in zip(values, modes or [None] * len(values), strict=True)
            ]
        return found

    def grade_batch(
        self, name: str, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[Graded]:
        """The values that a function of whole batches, given by name, has for completions; arguments as of `score`.

        Returns:
            Without an outcome; `Outcome.CRASHED` where the function failed and `on_error` is `skip`. With the modes
            that the function logged.

        Raises:
            RewardError: there is no such function; or it fails, and `on_error` is `stop`.
        """
        reward = find(name, self._settings)
        given, pool = {**columns, **dict.fromkeys(LOGS)}, self.pool_of(name)
        try:
            call = pool.submit_call(name, arguments_for_call(reward, False, prompts, completions, given))
        except NotPortableError:
            given = portable(given)
            call = pool.submit_call(name, arguments_for_call(reward, False, prompts, completions, given))
        (called,) = call.result()
        problems = call_problems(called)
        values, _ = self._findings.settle(name, called.values, problems, prompts, what="grader")
        failed = {problem.row for problem in problems}
        self._findings.warn_rejected(name, called.unlogged)
        modes = logged_modes(called) or [None] * len(values)
        return [
            Graded(value, Outcome.CRASHED if failed & {None, row} else None, mode=modes[row])
            for row, value in enumerate(values)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _function(self, position: int, reward: Reward) -> RewardFunction:
        def run(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
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
            return self._collect(batch, position, prompts, columns)

        run.__name__ = run.__qualname__ = reward.name
        run.__doc__ = reward.batch.__doc__
        run.runner = self  # type: ignore[attr-defined]  # for callers that can `begin` early
        return run

    def _submit(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> PendingBatch:
        try:
            return self._submit_all(prompts, completions, columns)
        except NotPortableError:
            return self._submit_all(prompts, completions, portable(columns))

    def _submit_all(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> PendingBatch:
        given, completions = completions, whole_answers(completions, prompts, self.prompt_prefix, self._settings.tags)
        batch = PendingBatch(given, completions)
        for position, (name, reward) in self._rewards.items():
            if not _grader(name, reward) and name not in self._here:  # calls first: they take longest
                arguments = arguments_for_call(reward, ":" not in name, prompts, completions, columns)
                batch.calls[position] = self.pool.submit_call(name, arguments)
                batch.time(name, batch.calls[position])
        graders = {name for name in self._graders if not self._graders[name].isdisjoint(columns)}
        if graders:
            texts = [completion_text(completion) for completion in completions]
            rows = rows_for_grading(prompts, columns)
            batch.grades = {name: self.pool.submit_grading(name, texts, rows) for name in sorted(graders)}
            for name, future in batch.grades.items():
                batch.time(name, future)
        return batch

    def _collect(
        self, batch: PendingBatch, position: int, prompts: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[float | None]:
        values, problems = self._results(batch, position, prompts, columns)
        values, failed = self._findings.settle(self._rewards[position][1].name, values, problems, prompts)
        own = self._rewards[position][1].name
        batch.failed[own] = failed
        rewarded = any(value is not None for value in values)
        if values and not rewarded and not failed:
            batch.silent.append(own)
        batch.rewarded |= rewarded
        if len(batch.collected) == len(self._rewards):
            if callable(log_metric := columns.get("log_metric")):
                self._log_metrics(batch, log_metric)
            for name in batch.silent if batch.rewarded else ():
                self._findings.warn_no_reward(name)
            if self._no_reward_check is not None and values:
                self._no_reward_check.add(batch.rewarded)
        return values

    def _log_metrics(self, batch: PendingBatch, log_metric: Callable[[str, float], None]) -> None:
        """Log what each function took and, if failures are skipped, how many completions it failed on."""
        for name, reward in self._rewards.values():
            log_metric(f"{names.REWARDS_TIME}/{reward.name}", batch.seconds.get(_grader(name, reward) or name, 0.0))
        if self._on_error == "skip":
            for name, failed in batch.failed.items():
                log_metric(f"{names.GRADER_ERRORS}/{name}", float(failed * _processes()))
            log_metric(names.GRADER_ERRORS, float(sum(batch.failed.values()) * _processes()))

    def _results(
        self, batch: PendingBatch, position: int, prompts: Sequence[Any], columns: Mapping[str, Any]
    ) -> tuple[list[float | None], list[RewardProblem]]:
        """The values of one function, and its problems; passes on what it logged."""
        name, reward = self._rewards[position]
        grader = _grader(name, reward)
        if name in self._here:
            start, given = time.monotonic(), arguments_for_call(reward, False, prompts, batch.completions, columns)
            batch.calls[position] = self._inline.submit_call(name, given)
            batch.seconds[name] = time.monotonic() - start
        if not grader:
            (called,) = batch.calls[position].result()
            self._log(batch, reward.name, called, columns)
            return called.values, call_problems(called)
        if grader not in batch.grades:
            column, *others = find(grader, self._settings).reads
            column += f" (or {', '.join(others)})" if others else ""
            return [], [RewardProblem(None, f"the data must have a column {column}")]
        results = batch.grades[grader].result()
        with self._lock:
            first = grader not in batch.reported
            first_grader = not batch.reported
            batch.reported.add(grader)
        log_extra = columns.get("log_extra")
        if first_grader and callable(log_extra):
            log_extra("outcome", [result.outcome and result.outcome.value for result in results])
        if first and callable(log_extra) and grader in MODE_GRADERS and names.MODE not in batch.columns:
            batch.columns[names.MODE] = grader
            log_extra(names.MODE, [one.mode if one.outcome is Outcome.RIGHT else None for one in results])
        if first and callable(log_extra) and any(detail(result) for result in results):
            log_extra(f"{grader}_tests", [detail(result) for result in results])
        if first:
            log_metric = columns.get("log_metric")
            self._findings.outcomes(grader, results, prompts, log_metric)
            if grader in VALUE_GRADERS and callable(log_metric):
                golds = map(gold_text, rows_for_grading(prompts, columns))
                graded = zip(results, map(completion_text, batch.completions), golds, strict=True)
                right = [(text, gold) for one, text, gold in graded if gold and one.outcome is Outcome.RIGHT]
                held = [found for text, gold in right if (found := holds_gold_value(text, gold)) is not None]
                if held:  # a sign of what the grader misses (`covey.answers.watch`)
                    log_metric(names.GOLD_VALUE_SHARE, sum(held) / len(held))
        return values_of(reward, prompts, batch.completions, results), grading_problems(results)

    def _log(self, batch: PendingBatch, reward: str, called: CallResult, columns: Mapping[str, Any]) -> None:
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
        named = zip(funcs, self._names, strict=True)
        here = [name for func, name in named if not isinstance(func, str) or is_given(func)]
        if here:
            message = "Rewards given as Python functions run in the process of the trainer, without deadlines: %s."
            _log.info(message, ", ".join(here))
        if "code" in self._graders:
            log_isolation()
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


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The columns of data rows that TRL passes to rewards, each with one value per row."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ()) if name not in _NOT_A_COLUMN}


def rows_for_grading(prompts: Sequence[Any], columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One data row per completion: its prompt and its value of every column."""
    count = len(prompts)
    usable = {
        name: values
        for name, values in columns.items()
        if name not in _NOT_FOR_GRADERS and isinstance(values, list | tuple) and len(values) == count
    }
    return [{"prompt": prompts[i], **{name: values[i] for name, values in usable.items()}} for i in range(count)]


def arguments_for_call(
    reward: Reward, registered: bool, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments of a batch function. A registered one gets only the columns that it names, to send less."""
    arguments = dict(columns)
    if registered:
        named = inspect.signature(reward.batch).parameters
        arguments = {name: value for name, value in columns.items() if name in named}
    for name in LOGS:
        if name in arguments:
            arguments[name] = None  # the worker inserts its recorder
    if _STATE in arguments:
        # A copy that needs no library: its plain values, with the last 100 log entries.
        values = {name: value for name, value in vars(arguments[_STATE]).items() if not name.startswith("_")}
        if isinstance(values.get("log_history"), list):
            values["log_history"] = values["log_history"][-_LATEST_LOGS:]
        arguments[_STATE] = SimpleNamespace(**{name: _plain(value) for name, value in values.items()})
    return {"prompts": prompts, "completions": completions, **arguments}


def _plain(value: Any) -> Any:
    """The value with objects replaced by None."""
    if value is None or isinstance(value, bool | str):
        return value
    for kind in (int, float):  # NumPy's too
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return None


def portable(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that can be sent to another process; a warning is logged once for each of the others."""
    kept = {}
    for name, values in columns.items():
        try:
            if name not in LOGS and name != _STATE:
                pickle.dumps(values)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            log_once(
                _log,
                "Rewards in worker processes do not get %s, which cannot be sent to another process (%s). A reward "
                "that needs it can be given as a Python function, which runs in this process.",
                *(name, error),
                key=f"column {name}",
            )
            continue
        kept[name] = values
    return kept


class PendingBatch:
    """One batch of completions whose rewards are being computed."""

    def __init__(self, given: Sequence[Any], completions: Sequence[Any]) -> None:
        self.given = given  # kept alive, because batches are found by the identity of this list
        self.completions = completions
        self.grades: dict[str, Future[list[SampleResult]]] = {}
        self.calls: dict[int, Future[list[CallResult]]] = {}
        self.collected: set[int] = set()
        self.reported: set[str] = set()
        self.columns: dict[str, str] = {}  # logged columns, each with the reward that logged it
        self.failed: dict[str, int] = {}  # completions without a reward because of a failure, by function
        self.begun = time.monotonic()
        self.seconds: dict[str, float] = {}  # until results were there, by function or grader
        self.silent: list[str] = []  # functions that gave no completion a reward, and did not fail
        self.rewarded = False  # whether any function gave any completion a reward

    def time(self, name: str, future: Future[Any]) -> None:
        """Measure how long the results of a function or grader take."""
        future.add_done_callback(lambda _: self.seconds.update({name: time.monotonic() - self.begun}))


def detail(result: SampleResult) -> str:
    """What a grader says about a grade; the cause of a failure is logged already."""
    return "" if result.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT) or result.refused else result.cause


def logged_modes(called: CallResult) -> list[str | None] | None:
    """The modes that a function of whole batches logged; None if it logged none."""
    return next((entry.value for entry in called.logged if entry[:2] == ("log_extra", names.MODE)), None)


def values_of(
    reward: Reward, prompts: Sequence[Any], completions: Sequence[Any], results: Sequence[SampleResult]
) -> list[float | None]:
    """The rewards that follow from grades."""
    if reward.from_grades is None:
        return [result.value for result in results]
    return reward.from_grades(prompts, completions, [Graded(result.value, result.outcome) for result in results])


def call_problems(called: CallResult) -> list[RewardProblem]:
    """The rows without a valid value; or one problem if the call failed."""
    if called.failure:
        return [RewardProblem(None, called.failure, called.trace)]
    return [RewardProblem(*bad) for bad in called.bad]


def grading_problems(results: Sequence[SampleResult]) -> list[RewardProblem]:
    """Rows that the grader refused; or one problem if it crashed on all rows, which is not the completions' fault."""
    problems = [RewardProblem(row, result.cause) for row, result in enumerate(results) if result.refused]
    if not problems and results and all(result.outcome is Outcome.CRASHED for result in results):
        return [RewardProblem(None, f"it crashed on every completion of the batch; on the first: {results[0].cause}")]
    return problems
