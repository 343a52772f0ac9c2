"""Running a reward and checking what it returns, in a worker or in the trainer's own process.

`grade` and `call` are the boundary at which any exception of a reward is caught and turned into a result that says what
happened.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from covey.answers import Outcome
from covey.errors import CoveyError
from covey.runlog import names
from covey.workers import failures
from covey.workers.plain_data import NotPlainError, plain, writable

LOGS = ("log_extra", "log_metric")
"""TRL's logging callables; in a worker the calls are recorded, and replayed in the trainer."""
MAX_REWARD = 1e15
"""The largest absolute reward. In float32, in which training computes, squares of larger ones soon overflow."""


class SampleResult(NamedTuple):
    """The result of grading one sample."""

    value: float | None
    outcome: Outcome | None
    cause: str = ""  # of a crash or a timeout; else what the grader says about the grade
    refused: bool = False  # the grader cannot grade the row itself: a mistake in the data
    mode: str | None = None  # see `Graded`


class LogEntry(NamedTuple):
    """One call of `log_extra` or `log_metric`."""

    function: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of one call of a batch function.

    Attributes:
        values: one per completion, None for no reward; empty if the whole call failed.
        bad: rows with an invalid value, each with the reason.
        failure: why the whole call failed; empty if it did not.
        logged: what the function logged, in order, as plain data.
        unlogged: log calls that were rejected, each with the reason.
        trace: where it failed, in the lines of a traceback; empty if nothing was raised.
    """

    values: list[float | None] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    failure: str = ""
    logged: list[LogEntry] = field(default_factory=list)
    unlogged: list[str] = field(default_factory=list)
    trace: str = ""


def grade(sample: Callable[[str, Mapping[str, Any]], Any], text: str, row: Mapping[str, Any]) -> SampleResult:
    """Grade one completion. A grader that raises has crashed on it, except a `CoveyError`, which blames the row."""
    try:
        graded = sample(text, row)
        value = None if graded.value is None else float(graded.value)
        if value is not None and not abs(value) <= MAX_REWARD:  # catches NaN too
            return SampleResult(None, Outcome.CRASHED, f"it gave {value:g}{_too_large(value)}")
        return SampleResult(value, graded.outcome, graded.detail, mode=graded.mode)
    except CoveyError as error:
        return SampleResult(None, None, str(error), refused=True)
    except (Exception, SystemExit) as error:  # model output may make a grader raise anything
        return SampleResult(None, Outcome.CRASHED, describe(error))


def call(function: Callable[..., Any], kwargs: Mapping[str, Any], count: int) -> CallResult:
    """Call a batch function, wait for it if it is asynchronous, and check what it returns.

    Args:
        function: of TRL's signature.
        kwargs: its arguments; `log_extra` and `log_metric`, where present, are replaced by recorders.
        count: completions in the batch.
    """
    logged: list[LogEntry] = []
    unlogged: list[str] = []
    recorders = {name: _recorder(name, logged, unlogged) for name in LOGS if name in kwargs}
    try:
        returned = function(**{**kwargs, **recorders})
        if inspect.isawaitable(returned):
            returned = _awaited(returned)
    except (Exception, SystemExit) as error:  # the user's own code, which may raise anything
        return CallResult(failure=f"it raised {describe(error)}", trace=failures.trace_of(error))
    checked = check(returned, count)
    if not checked.failure:
        checked.logged.extend(_of_batch_size(logged, count, unlogged))
        checked.unlogged.extend(unlogged)
    return checked


def check(returned: Any, count: int) -> CallResult:
    """Check that `returned` is one finite number or None per completion, and turn the numbers into floats."""
    if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
        return CallResult(failure=f"it returned {_shown(returned)} instead of a list with one number per completion")
    items = list(returned)
    if len(items) != count:
        return CallResult(failure=f"it returned {len(items)} rewards for {count} completions")
    values: list[float | None] = []
    bad = []
    for row, item in enumerate(items):
        number = _number(item)
        if number is None and item is not None:
            bad.append((row, f"it returned {_shown(item)}, which is neither a finite number nor None"))
        elif number is not None and abs(number) > MAX_REWARD:
            bad.append((row, f"it returned {number:g}{_too_large(number)}"))
            number = None
        values.append(number)
    return CallResult(values, bad)


def describe(error: BaseException) -> str:
    """An exception of a reward in one line."""
    return failures.describe(error, "rewards.memory_mb")


def _number(item: Any) -> float | None:
    if item is None or isinstance(item, str | bytes) or not hasattr(item, "__float__"):
        return None
    try:
        number = float(item)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array or tensor of several numbers
        return None
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} (of type {type(value).__name__})"


def _too_large(number: float) -> str:
    return f", and a reward lies between -{MAX_REWARD:g} and {MAX_REWARD:g}" if math.isfinite(number) else ""


def _recorder(function: str, logged: list[LogEntry], unlogged: list[str]) -> Callable[[str, Any], None]:
    def record(name: str, value: Any) -> None:
        what = writable(str(name))
        try:
            kept: Any = plain(list(value)) if function == "log_extra" else float(value)
        except NotPlainError as error:
            unlogged.append(f"{function}({what!r}) got {error}, which is not plain data (numbers, strings, lists)")
            return
        if isinstance(kept, list) and what == names.MODE and not all(isinstance(one, str | None) for one in kept):
            unlogged.append(f"log_extra({what!r}) got {_shown(kept)}, and the mode of an answer is a text or None")
            return
        logged.append(LogEntry(function, what, kept))

    record.__name__ = function
    return record


def _of_batch_size(logged: Iterable[LogEntry], count: int, unlogged: list[str]) -> list[LogEntry]:
    """What was logged, without columns that do not have one value per completion."""
    logged = list(logged)
    lengths: Counter[str] = Counter()
    for entry in logged:
        if entry.function == "log_extra":
            lengths[entry.name] += len(entry.value)
    wrong = {name for name, length in lengths.items() if length != count}
    unlogged += [f"log_extra({name!r}) got {lengths[name]} values for {count} completions" for name in wrong]
    return [entry for entry in logged if entry.function != "log_extra" or entry.name not in wrong]


def _awaited(awaitable: Any) -> Any:
    """Its result. Where a loop runs in this thread already, as in a notebook, another thread waits for it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_result(awaitable))
    with ThreadPoolExecutor(max_workers=1) as other:
        return other.submit(asyncio.run, _result(awaitable)).result()


async def _result(awaitable: Any) -> Any:
    return await awaitable
