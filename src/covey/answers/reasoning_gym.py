"""The tasks of the library reasoning-gym: their problems, and their own scorers. The library is imported when needed.

Some of its tasks walk over sets of strings while they make a problem, so the same seed gives other problems in a
process with another seed of string hashes. `draw` therefore makes them in a process where that seed is fixed.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import difflib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from covey.advice import install
from covey.errors import DataError, one_line
from covey.sandbox import Limits, Program, run

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
            f"it: {install(EXTRA)}."
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


def scoring_task(task: str, settings: Mapping[str, Any], key: str) -> Any:
    """As `make_task`; also raises a `DataError` if the scorer takes any text for a right answer."""
    made = make_task(task, settings, key)
    for name, part in (made.datasets if task == "composite" else {task: made}).items():
        try:
            with contextlib.redirect_stdout(sys.stderr):  # some tasks print
                takes_any = all(part.score_answer(text, part[0]) >= 1 for text in ("no idea", "xyzzy", "[17]", "0"))
        except Exception:  # it makes no problem, which `draw` says, or does not take this text
            takes_any = False
        if takes_any:
            raise DataError(
                f"{key}: the scorer of reasoning-gym's task {name} takes any text for a right answer. Use another task."
            )
    return made


def draw(task: str, settings: Mapping[str, Any], seed: int, size: int, key: str) -> list[tuple[str, str | None, str]]:
    """The problems of a task, the same for the same arguments in every process.

    Returns:
        For each its question, its answer (None where the task has none, and only scores), and the text that `score`
        takes.

    Raises:
        DataError: see `scoring_task`; or a problem could not be made.
    """
    scoring_task(task, settings, key)
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

    An answer on which the scorer fails, as some do on text that they cannot read, is worth 0, and so is a number that
    is not finite. Scorers that evaluate the answer run in a sandbox, where they have `SECONDS` of time, and what is no
    plain data or formula is empty text to them.

    Args:
        text: the problem, from `draw` or `problem`.

    Raises:
        DataError: `text` is no such problem, or the library is not installed, or the sandbox does not start.
    """
    try:
        task, settings, entry = json.loads(text, object_hook=_decoded)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"The column {COLUMN} does not hold a problem as dataset=reasoning_gym makes them, but {str(text)[:80]!r}."
        ) from error
    scorer = _scorer(task, json.dumps(settings))
    if answer is None or (answer != entry["answer"] and _NOT_FINITE.fullmatch(answer)):
        return 0.0
    if _evaluator(scorer, entry) is None:
        return _own_score(scorer, answer, entry)
    with _LOCK:
        for _ in range(2):
            channel = _sandbox(os.getpid())  # a forked process starts its own
            try:
                channel.settimeout(STARTING + SECONDS)
                channel.sendall(json.dumps([answer, text]).encode() + b"\n")
                return float(channel.recv(64))
            except (OSError, ValueError):  # it has ended: by this answer, if it does so again
                channel.close()
                _sandbox.cache_clear()
    return 0.0


@lru_cache(maxsize=64)
def _scorer(task: str, settings: str) -> Any:
    return scoring_task(task, json.loads(settings), f"the column {COLUMN}")


def _own_score(scorer: Any, answer: str, entry: Mapping[str, Any]) -> float:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about answers that a scorer evaluates
            value = float(scorer.score_answer(answer, entry))
    except Exception:  # an answer in a form that the scorer does not expect
        return 0.0
    return value if math.isfinite(value) else 0.0


_NOT_FINITE = re.compile(  # numbers and marks only, and one is infinite or no number
    r"(?=.*(?:nan|inf|e\+?0*[3-9]\d\d|e\+?0*\d{4}|\d{309}))(?:nan|inf(?:inity)?|[eij]|[^a-z])*", re.DOTALL | re.I
)
_FORMULA = re.compile(  # of SymPy: without what does the task (`Integral`, `expand`) or evaluates text (`S`, `N`)
    r"(?:[\s.,+*/()-]|\d++(?:[eE][+-]?\d++)?|\b(?:a?(?:sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|cbrt|root|[Aa]bs|sign"
    r"|erf|pi|Rational|[A-MPRT-Za-z]\d*)\b)*+",
    re.ASCII,
)


def _evaluator(scorer: Any, entry: Mapping[str, Any]) -> str | None:
    """What the scorer of a problem calls to evaluate the answer; None if it does not."""
    part = getattr(scorer, "datasets", {}).get(entry["metadata"].get("source_dataset"), scorer)
    evaluators = {"eval", "exec", "parse_expr", "sympify", "parse_latex"}
    return max(evaluators.intersection(part.score_answer.__code__.co_names), default=None)


def _harmless(answer: str, gold: str | None, evaluator: str | None) -> bool:
    """Whether an answer is the expected one, or for Python data or no expression at all, or else a formula."""
    if evaluator != "eval" or answer == gold:
        return answer == gold or _FORMULA.fullmatch(answer) is not None
    try:
        ast.literal_eval(answer.strip())
    except Exception as error:  # of any kind, by the answer's depth or length too
        return isinstance(error, SyntaxError)
    return True


_LOCK = threading.Lock()
STARTING, SECONDS = 30, 5
"""The most seconds in which the sandbox starts and loads the library, and in which it scores an answer."""


@lru_cache(maxsize=1)
def _sandbox(process: int) -> socket.socket:
    """A channel to `_serve` in a sandbox. Raises a `DataError` if that does not start."""
    paths = [str(Path(__file__).parents[2]), *(path for path in sys.path if path.endswith("-packages"))]
    ours, theirs = socket.socketpair()
    start = f"import sys\nsys.path += {paths}\nfrom {__name__} import _serve\n_serve({theirs.fileno()})"
    errors: list[str] = []

    def keep_running() -> None:
        with theirs:
            (ended,) = run(Program.of(start), limits=Limits(1e6, 4096, wall=1e6), paths=paths, keep=theirs.fileno())
            errors.extend(ended.stderr.decode("utf-8", "replace").splitlines())

    threading.Thread(target=keep_running, daemon=True).start()
    ours.settimeout(STARTING)
    with contextlib.suppress(TimeoutError):
        if ours.recv(1):
            atexit.register(ours.close)
            return ours
    raise DataError(
        f"The sandbox of reasoning-gym's scorers does not start ({''.join(errors[-1:])}). Its programs, which may have "
        f"a user of their own, must be able to read {', '.join(paths)}."
    )


def _serve(descriptor: int) -> None:
    """The sandbox's program: scores each answer in a new process, so that none changes how others are scored."""
    channel = socket.socket(fileno=descriptor)
    make_task("chain_sum", {}, "")  # loads the library
    channel.sendall(b"\n")
    known = ""
    for line in channel.makefile("r"):
        answer, text = json.loads(line)
        if text != known:
            known, (task, settings, entry) = text, json.loads(text, object_hook=_decoded)
            scorer = _scorer(task, json.dumps(settings))
            _own_score(scorer, entry["answer"], entry)  # fills SymPy's caches for the processes
        read, write = os.pipe()
        if not os.fork():
            signal.alarm(SECONDS)
            os.close(descriptor)
            shown = answer if _harmless(answer, entry["answer"], _evaluator(scorer, entry)) else ""
            os.write(write, str(_own_score(scorer, shown, entry)).encode())
            os._exit(0)
        os.close(write)
        found = os.read(read, 64)
        os.close(read)
        os.wait()
        channel.sendall(str(float(found or 0)).encode())


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
