"""The tasks of the library reasoning-gym: their problems, and their own scorers. The library is imported when needed.

Some of its tasks walk over sets of strings while they make a problem, so the same seed gives other problems in a
process with another seed of string hashes. `draw` therefore makes them in a process where that seed is fixed.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from covey.errors import DataError, one_line

EXTRA = "reasoning-gym"
OWN_KEYS = ("seed", "size")
"""Fields of every task's settings that Covey sets itself."""


def make_task(task: str, settings: Mapping[str, Any], key: str, *, seed: int = 0, size: int = 1) -> Any:
    """The library's data set of one task.

    Args:
        task: its name, such as `chain_sum`.
        settings: fields of the task's configuration.
        key: the config key that names the task, for messages.
        seed: of the problems.

    Raises:
        DataError: the library is not installed, or has no such task, or the task does not take these settings.
    """
    try:
        import reasoning_gym
        from reasoning_gym.composite import DatasetSpec
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise DataError(
            f"{key}: the task {task} is of the library reasoning-gym, which is not installed here ({error}). Install "
            f"it: pip install 'covey[{EXTRA}]'."
        ) from error
    if task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS, n=3)
        guess = f"Did you mean {' or '.join(near)}?" if near else f"It has {', '.join(sorted(DATASETS))}."
        raise DataError(f"{key}: reasoning-gym has no task {task}. {guess}")
    taken = [name for name in OWN_KEYS if name in settings]
    if taken:
        raise DataError(f"{key}: {taken[0]} is not a setting of the task {task}: the run's own seed and sizes count.")
    try:
        parts = settings.get("datasets") if task == "composite" else None  # several tasks as one
        specs = {} if parts is None else {"datasets": [DatasetSpec(**{"weight": 1, "config": {}, **p}) for p in parts]}
        return reasoning_gym.create_dataset(task, seed=seed, size=size, **{**settings, **specs})
    except Exception as error:  # each task checks its settings in its own way, mostly by assertions
        fields = [name for name in DATASETS[task][1].__dataclass_fields__ if name not in OWN_KEYS]
        raise DataError(
            f"{key}: the task {task} of reasoning-gym does not take the settings {dict(settings)}: {one_line(error)}. "
            f"It has the settings {', '.join(fields)}."
        ) from error


def draw(task: str, settings: Mapping[str, Any], seed: int, size: int, key: str) -> list[tuple[str, str | None, str]]:
    """The problems of a task, the same for the same arguments in every process.

    Returns:
        For each its question, its answer (None where the task has none, and only scores), and the text that `score`
        takes.

    Raises:
        DataError: see `make_task`; or a problem could not be made.
    """
    make_task(task, settings, key)
    request = json.dumps([task, dict(settings), seed, size])
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import _print_problems; _print_problems()"],
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        input=request,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"its process ended with exit code {done.returncode}"])[-1]
        raise DataError(
            f"{key}: the task {task} of reasoning-gym could not make {size} problems with the settings "
            f"{dict(settings)}: {reason}"
        )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def problem(task: str, settings: Mapping[str, Any], seed: int, key: str) -> tuple[str, str | None, str]:
    """One problem, made in this process; see `draw`."""
    return _problem(task, settings, make_task(task, settings, key, seed=seed)[0])


def score(answer: str | None, text: str) -> float:
    """What the task's own scorer gives an answer: 1 for a right one, some tasks part of it for a nearly right one.

    An answer on which the scorer fails, as some do on text that they cannot read, is worth 0. Some scorers evaluate
    the answer as Python: call this in a worker.

    Args:
        text: the problem, from `draw` or `problem`.

    Raises:
        DataError: `text` is no such problem, or the library is not installed.
    """
    try:
        task, settings, entry = json.loads(text, object_hook=_decoded)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"The column {COLUMN} does not hold a problem as dataset=reasoning_gym makes them, but {str(text)[:80]!r}."
        ) from error
    scorer = _scorer(task, json.dumps(settings))
    if answer is None:
        return 0.0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about answers that a scorer evaluates
            return float(scorer.score_answer(answer, entry))
    except Exception:  # an answer in a form that the scorer does not expect
        return 0.0


@lru_cache(maxsize=64)
def _scorer(task: str, settings: str) -> Any:
    return make_task(task, json.loads(settings), f"the column {COLUMN}")


COLUMN = "reasoning_gym"
"""The column of the rows that holds what `score` takes."""


def _print_problems() -> None:
    """The process that `draw` starts: problems as lines of JSON."""
    task, settings, seed, size = json.load(sys.stdin)
    made = make_task(task, settings, "dataset.task", seed=seed, size=size)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the library prints
    with output:
        for i in range(size):
            print(json.dumps(_problem(task, settings, made[i])), file=output)


def _problem(task: str, settings: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[str, str | None, str]:
    text = json.dumps(_encoded([task, dict(settings), dict(entry)]))
    return entry["question"], entry["answer"], text


_TUPLE, _MAPPING = "__tuple__", "__mapping__"


def _encoded(value: Any) -> Any:
    """A value for JSON, with tuples and with mappings whose keys are no text marked as such: scorers compare types."""
    if isinstance(value, tuple):
        return {_TUPLE: [_encoded(item) for item in value]}
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(name, str) for name in value):
            return {name: _encoded(item) for name, item in value.items()}
        return {_MAPPING: [[_encoded(name), _encoded(item)] for name, item in value.items()]}
    return value


def _decoded(value: dict[str, Any]) -> Any:
    """The reverse of `_encoded`, for one object, whose inner ones are decoded already."""
    if value.keys() == {_TUPLE}:
        return tuple(value[_TUPLE])
    if value.keys() == {_MAPPING}:
        return dict(value[_MAPPING])
    return value
