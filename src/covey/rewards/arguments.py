"""The arguments that a trainer passes to rewards, prepared for another process: plain values, and rows for graders."""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from covey.log_once import log_once
from covey.rewards.reward import Reward
from covey.rewards.workers.run_reward import LOGS

_log = logging.getLogger("covey.rewards")
_NOT_FOR_GRADERS = {"completion_ids", "environments", *LOGS}
_NOT_A_COLUMN = {"prompt", "completion", "completion_ids"}
_STATE = "trainer_state"
_LATEST_LOGS = 100


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
        arguments[_STATE] = plain_state(arguments[_STATE])
    return {"prompts": prompts, "completions": completions, **arguments}


def plain_state(state: Any) -> SimpleNamespace:
    """A copy of the trainer's state that needs no library: its plain values, with the last 100 log entries."""
    values = {name: value for name, value in vars(state).items() if not name.startswith("_")}
    if isinstance(values.get("log_history"), list):
        values["log_history"] = values["log_history"][-_LATEST_LOGS:]
    return SimpleNamespace(**{name: _plain(value) for name, value in values.items()})


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
