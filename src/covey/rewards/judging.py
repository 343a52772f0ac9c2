"""Running a reward and judging what came back, the same in a worker and in the trainer's own process.

Nothing here knows of processes. The two functions are the named boundary at which whatever a reward raises is caught
and turned into a result that says what happened.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from covey.answers import Outcome
from covey.errors import CoveyError

LOGS = ("log_extra", "log_metric")
"""TRL's callables by which a reward logs; in a worker they are recorded, and replayed in the trainer."""


class Sampled(NamedTuple):
    """What became of one sample."""

    value: float | None
    outcome: Outcome | None
    cause: str = ""  # of a crash or an overrun
    refused: bool = False  # the grader says that the row itself cannot be graded: a user's mistake


class Logged(NamedTuple):
    """One call of `log_extra` or `log_metric`."""

    function: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Called:
    """What became of one call of a batch function.

    Attributes:
        values: one per completion; None where there is none. Empty if the call as a whole failed.
        bad: rows whose value is no reward, each with the reason.
        failure: why the call as a whole failed; empty if it did not.
        logged: what the function logged, in order.
    """

    values: list[float | None] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    failure: str = ""
    logged: list[Logged] = field(default_factory=list)


def grade(sample: Callable[[str, Mapping[str, Any]], Any], text: str, row: Mapping[str, Any]) -> Sampled:
    """Grade one completion; a grader that raises has crashed on it, except for an error that blames the row."""
    try:
        graded = sample(text, row)
        value = None if graded.value is None else float(graded.value)
        if value is not None and not math.isfinite(value):
            return Sampled(None, Outcome.CRASHED, f"it gave {value}")
        return Sampled(value, graded.outcome)
    except CoveyError as error:
        return Sampled(None, None, str(error), refused=True)
    except (Exception, SystemExit) as error:  # hostile text may make a grader raise anything
        return Sampled(None, Outcome.CRASHED, describe(error))


def call(function: Callable[..., Any], kwargs: Mapping[str, Any], count: int) -> Called:
    """Call a batch function, wait for it if it is asynchronous, and check what it returns.

    Args:
        function: of TRL's signature.
        kwargs: its arguments; `log_extra` and `log_metric`, where present, are replaced by recorders.
        count: completions in the batch.
    """
    logged: list[Logged] = []
    recorders = {name: _recorder(name, logged) for name in LOGS if name in kwargs}
    try:
        returned = function(**{**kwargs, **recorders})
        if inspect.isawaitable(returned):
            returned = asyncio.run(_result(returned))
    except (Exception, SystemExit) as error:  # the user's own code, which may raise anything
        return Called(failure=f"it raised {describe(error)}")
    return check(returned, count, logged)


def check(returned: Any, count: int, logged: list[Logged] | None = None) -> Called:
    """Check that `returned` is one finite number or None per completion, and turn the numbers into floats."""
    if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
        return Called(failure=f"it returned {_shown(returned)} instead of a list with one number per completion")
    items = list(returned)
    if len(items) != count:
        return Called(failure=f"it returned {len(items)} rewards for {count} completions")
    values: list[float | None] = []
    bad = []
    for row, item in enumerate(items):
        number = _number(item)
        if number is None and item is not None:
            bad.append((row, f"it returned {_shown(item)}, which is neither a finite number nor None"))
        values.append(number)
    return Called(values, bad, "", logged or [])


def describe(error: BaseException) -> str:
    """An exception in a few words: type, message, and the file and line where it was raised."""
    text = " ".join(str(error).split())
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    return f"{type(error).__name__}{': ' + text[:300] if text else ''}{where}"


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


def _recorder(function: str, logged: list[Logged]) -> Callable[[str, Any], None]:
    def record(name: str, value: Any) -> None:
        logged.append(Logged(function, name, list(value) if function == "log_extra" else float(value)))

    record.__name__ = function
    return record


async def _result(awaitable: Any) -> Any:
    return await awaitable
