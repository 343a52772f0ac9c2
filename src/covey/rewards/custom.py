"""Reward functions of the user's own: importing them from a file or a module, and checking them before they are run."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from covey.errors import RewardError
from covey.rewards.reward import Reward, RewardFunction

_NOT_PASSED = {"prompt", "completion"}  # columns that TRL passes in its own way
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""What TRL passes to every reward, by keyword, beside the columns of the data."""


def find_custom(name: str) -> Reward:
    """The function that `file.py:function` or `package.module:function` stands for.

    Raises:
        RewardError: it cannot be imported, or cannot take what a reward is given.
    """
    source, _, attribute = name.rpartition(":")
    module = _import_file(Path(source), name) if source.endswith(".py") else _import_module(source, name)
    function = _function(module, attribute, name)
    _check_signature(function, name)
    return Reward(function.__name__, _also_solution(function))


def check_columns(function: RewardFunction, name: str, columns: Collection[str]) -> None:
    """Check that a reward can be called with the columns that the data has.

    Args:
        function: what `get_reward` gave.
        name: the name by which it was asked for.
        columns: names of the data's columns.

    Raises:
        RewardError: it needs a column that is not there, or does not take one that is.
    """
    columns = [column for column in columns if column not in _NOT_PASSED]
    parameters = inspect.signature(function).parameters.values()
    given = {*GIVEN, *columns} | ({"solution"} if "answer" in columns else set())
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in kinds]
    missing = [parameter for parameter in needed if parameter not in given]
    if missing:
        near = difflib.get_close_matches(missing[0], sorted(given), n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise RewardError(
            f"rewards.funcs: {name} needs {' and '.join(missing)}, but the data has no such column; it has "
            f"{', '.join(sorted(columns))}.{guess}"
        )
    unwanted = [column for column in columns if column not in {p.name for p in parameters}]
    if unwanted and not _takes_any(function):
        raise RewardError(_wants_kwargs(function, name, unwanted[0]))


def _import_file(file: Path, name: str) -> ModuleType:
    path = file.expanduser().resolve()
    if not path.is_file():
        near = difflib.get_close_matches(path.name, (p.name for p in path.parent.glob("*.py")), n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise RewardError(f"rewards.funcs: {name} names the file {path}, which does not exist.{guess}")
    key = f"covey_rewards_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if key in sys.modules:  # two functions of one file
        return sys.modules[key]
    _make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise RewardError(f"rewards.funcs: {name}: Python cannot load {path} as a module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code, which may raise anything
        del sys.modules[key]
        raise RewardError(_failed_import(name, error)) from error
    return module


def _import_module(module: str, name: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(module)
    except Exception as error:  # the user's own code, which may raise anything
        raise RewardError(_failed_import(name, error)) from error


def _make_importable(folder: Path) -> None:
    """Let the user's modules import their neighbours, as a script could; last, so that nothing else is shadowed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _failed_import(name: str, error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})" if trace else ""
    if isinstance(error, ImportError | SyntaxError):  # their text says it all; the last frame is Python's own
        where = ""
    cause = " ".join(str(error).split())
    return f"rewards.funcs: {name} cannot be imported: {type(error).__name__}: {cause}{where}."


def _function(module: ModuleType, attribute: str, name: str) -> RewardFunction:
    if not hasattr(module, attribute):
        own = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        shown = ", ".join(difflib.get_close_matches(attribute, own, n=5, cutoff=0.0)) or "none of its own"
        raise RewardError(
            f"rewards.funcs: {name}: {name.rpartition(':')[0]} has no function {attribute or '(none is named)'}; it "
            f"has {shown}."
        )
    function = getattr(module, attribute)
    if not callable(function) or not hasattr(function, "__name__") or inspect.isclass(function):
        raise RewardError(f"rewards.funcs: {name} is not a function but of type {type(function).__name__}.")
    found: RewardFunction = function
    return found


def _check_signature(function: RewardFunction, name: str) -> None:
    """Refuse early what would fail at the first training step, as far as it can be told without the data."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as error:  # some functions written in C
        raise RewardError(
            f"rewards.funcs: {name} does not say what it takes. Call it from a function of your own: "
            "def reward(prompts, completions, **kwargs)."
        ) from error
    for parameter in parameters.values():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise RewardError(
                f"rewards.funcs: {name} takes {parameter.name} by position only, but a reward is given everything by "
                f"keyword: def {function.__name__}(prompts, completions, **kwargs)."
            )
    refused = next((given for given in GIVEN if given not in parameters), None)
    if refused is not None and not _takes_any(function):
        raise RewardError(_wants_kwargs(function, name, refused))


def _takes_any(function: RewardFunction) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(function).parameters.values())


def _wants_kwargs(function: RewardFunction, name: str, refused: str) -> str:
    takes = [parameter for parameter in inspect.signature(function).parameters if parameter not in ("args", "kwargs")]
    return (
        f"rewards.funcs: {name} must take **kwargs, because a reward is given prompts, completions and every column of "
        f"the data by keyword, and it does not take {refused}: "
        f"def {function.__name__}({', '.join(takes or ['prompts', 'completions'])}, **kwargs)."
    )


def _also_solution(function: RewardFunction) -> RewardFunction:
    """Let a function that takes `solution`, as in TRL and open-r1, have `answer` where the data has no solution."""
    if "solution" not in inspect.signature(function).parameters:
        return function

    def columns(given: dict[str, Any]) -> dict[str, Any]:
        return {"solution": given["answer"], **given} if "answer" in given else given

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **given: Any) -> Any:
            return await function(*args, **columns(given))

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        return function(*args, **columns(given))

    return called
