"""Custom reward functions: importing them from a file or module, and checking their signatures."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Collection
from typing import Any

from covey.config.groups.dataset import RENAMED, name_in_file
from covey.errors import RewardError
from covey.importing import import_object
from covey.rewards.reward import Reward, RewardFunction

_NOT_PASSED = {"prompt", "completion"}  # columns that TRL passes in its own way
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""What TRL passes to every reward, by keyword, in addition to the data's columns."""


def find_custom(name: str, key: str = "rewards.funcs") -> Reward:
    """The function `file.py:function` or `package.module:function`.

    Args:
        name: the function's.
        key: the config key that names it, for messages.

    Raises:
        RewardError: it cannot be imported, or does not accept the arguments of a reward.
    """
    function = _function(name, key)
    _check_signature(function, name, key)
    return Reward(function.__name__, _also_solution(function))


def check_columns(
    function: RewardFunction, name: str, columns: Collection[str], *, key: str = "rewards.funcs", rows: str = "the data"
) -> None:
    """Check that a reward, or a grader like it, can be called with the columns that the data has.

    Args:
        function: from `get_reward`.
        name: its name in the config.
        columns: names of the data's columns.
        key: the config key that names it, for messages.
        rows: which rows have these columns, for messages.

    Raises:
        RewardError: it needs a column that the data lacks, or does not accept one that it has.
    """
    columns = [column for column in columns if column not in _NOT_PASSED]
    parameters = inspect.signature(function).parameters.values()
    given = {*GIVEN, *columns} | ({"solution"} if "answer" in columns else set())
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in kinds]
    missing = [parameter for parameter in needed if parameter not in given]
    if missing:
        near = difflib.get_close_matches(missing[0], sorted(n for n in given if n == name_in_file(n)), n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        if (other := f"{RENAMED}{missing[0]}") in columns:
            what = f"a reward gets that column of {rows} as {other}, because TRL uses its name"
        else:
            there = sorted(set(map(name_in_file, columns)))
            what = f"{rows} has no such column; it has {', '.join(there) or 'none besides the prompts'}"
        raise RewardError(f"{key}: {name} needs {' and '.join(missing)}, but {what}.{guess}")
    unwanted = [column for column in columns if column not in {p.name for p in parameters}]
    if unwanted and not _takes_any(function):
        raise RewardError(_wants_kwargs(function, name, key, name_in_file(unwanted[0])))


def _function(name: str, key: str) -> RewardFunction:
    function = import_object(name, key, RewardError)
    if not callable(function) or not hasattr(function, "__name__") or inspect.isclass(function):
        raise RewardError(f"{key}: {name} is not a function but of type {type(function).__name__}.")
    found: RewardFunction = function
    return found


def _check_signature(function: RewardFunction, name: str, key: str) -> None:
    """Refuse early what would fail at the first training step, as far as is known without the data."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as error:  # some functions written in C
        raise RewardError(
            f"{key}: {name} has no signature to inspect. Call it from a function of your own: "
            "def reward(prompts, completions, **kwargs)."
        ) from error
    for parameter in parameters.values():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise RewardError(
                f"{key}: {name} takes {parameter.name} by position only, but a reward gets everything by "
                f"keyword: def {function.__name__}(prompts, completions, **kwargs)."
            )
    refused = next((given for given in GIVEN if given not in parameters), None)
    if refused is not None and not _takes_any(function):
        raise RewardError(_wants_kwargs(function, name, key, refused))


def _takes_any(function: RewardFunction) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(function).parameters.values())


def _wants_kwargs(function: RewardFunction, name: str, key: str, refused: str) -> str:
    takes = [parameter for parameter in inspect.signature(function).parameters if parameter not in ("args", "kwargs")]
    return (
        f"{key}: {name} must take **kwargs, because a reward gets prompts, completions and every column of "
        f"the data by keyword, and it does not take {refused}: "
        f"def {function.__name__}({', '.join(takes or ['prompts', 'completions'])}, **kwargs)."
    )


def _also_solution(function: RewardFunction) -> RewardFunction:
    """Pass `answer` as `solution`, which TRL's and open-r1's functions take, where the data has no solution."""
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
