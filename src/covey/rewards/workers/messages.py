"""The messages between the trainer and its reward workers: those that `workers/channel.py` frames and reads."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from covey.answers import Outcome
from covey.rewards.workers.run_reward import LOGS, CallResult, LogEntry, SampleResult
from covey.workers.channel import BadMessageError

SLOW_SECONDS = 0.1
"""Seconds after which a sample counts as slow: the tasks queued behind it in its worker go to other workers."""


class Grade(NamedTuple):
    """Grade samples in order; each is a ticket and a pickled `(text, row)`."""

    name: str
    samples: list[tuple[int, bytes]]


class Call(NamedTuple):
    """Call a function on a whole batch; `kwargs` are pickled."""

    ticket: int
    name: str
    kwargs: bytes


class Begun(NamedTuple):
    """The function is loaded and the first task begins: deadlines count from here."""


class SampleDone(NamedTuple):
    """One sample is graded; `more`: whether the worker continues with the next one of its chunk."""

    ticket: int
    result: SampleResult
    more: bool
    seconds: float


class CallDone(NamedTuple):
    """A call has returned or failed."""

    ticket: int
    result: CallResult


Answer = Begun | SampleDone | CallDone


def listed(message: Answer) -> list[Any]:
    """A message of a worker, for JSON."""
    match message:
        case SampleDone(ticket, (value, outcome, cause, refused, mode), more, seconds):
            return ["sample", ticket, value, outcome and outcome.value, cause, refused, mode, more, seconds]
        case CallDone(ticket, called):
            return [
                "call",
                ticket,
                called.values,
                called.bad,
                called.failure,
                called.logged,
                called.unlogged,
                called.trace,
            ]
    return ["begun"]


def read_answer(message: Any) -> Answer:
    """Check a worker's message, which was JSON. Raises a `BadMessageError` if it is not one."""
    try:
        match message:
            case ["begun"]:
                return Begun()
            case ["sample", int(ticket), value, outcome, str(cause), bool(refused), mode, bool(more), float(seconds)]:
                found = None if outcome is None else Outcome(outcome)
                result = SampleResult(_reward(value), found, cause, refused, _mode(mode))
                return SampleDone(ticket, result, more, seconds)
            case ["call", int(ticket), list(values), list(bad), str(failure), list(logged), list(unlogged), str(trace)]:
                called = CallResult(
                    [_reward(value) for value in values],
                    [(int(row), str(why)) for row, why in bad],
                    failure,
                    [_entry(*entry) for entry in logged],
                    [str(text) for text in unlogged],
                    trace,
                )
                return CallDone(ticket, called)
    except (ValueError, TypeError):
        pass
    raise BadMessageError("something that is not a message")


def _reward(value: Any) -> float | None:
    if value is None or (type(value) is float and math.isfinite(value)):
        return value
    raise ValueError("not a reward")


def _mode(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError("not a mode")


def _entry(function: Any, name: Any, value: Any) -> LogEntry:
    kind = {"log_extra": list, "log_metric": float}
    if function not in LOGS or not isinstance(name, str) or not isinstance(value, kind[function]):
        raise ValueError("not a log entry")
    return LogEntry(function, name, value)
