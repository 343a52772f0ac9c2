"""Finding a reward function by name: a registered one, `file.py:function`, or `package.module:function`."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from covey.errors import RewardError
from covey.rewards import library

RewardFunction = Callable[..., list[float | None]]

REGISTRY: dict[str, Callable[..., Any]] = {
    "exact_match": library.exact_match,
    "format": library.format_reward,
}
"""The names that `rewards.funcs` takes. TRL names metrics by `__name__`, so that is made equal to the name below."""

for _name, _function in REGISTRY.items():
    _function.__name__ = _name

_SUFFIX = "_reward"


def load(funcs: Sequence[str]) -> list[RewardFunction]:
    """The functions of `rewards.funcs`, in order.

    Raises:
        RewardError: one cannot be found or used, or two go by the same name, under which TRL would log both.
    """
    functions = [get_reward(name) for name in funcs]
    names = [function.__name__ for function in functions]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise RewardError(
                f"rewards.funcs: {funcs[names.index(name)]} and {funcs[position]} are both called {name}, so their "
                "metrics could not be told apart. Name each reward once, or rename a function."
            )
    return functions


def get_reward(name: str) -> RewardFunction:
    """The reward function that `name` stands for.

    Args:
        name: a registered name, with or without `_reward` at its end; or `file.py:function` or
            `package.module:function` for a function of your own.

    Raises:
        RewardError: there is no such function, or it does not take what a reward is given.
    """
    source, colon, attribute = name.rpartition(":")
    if colon:
        module = _import_file(Path(source), name) if source.endswith(".py") else _import_module(source, name)
        return _checked(_attribute(module, attribute, name), name)
    for known in (name, name.removesuffix(_SUFFIX)):
        if known in REGISTRY:
            return REGISTRY[known]
    near = difflib.get_close_matches(name.removesuffix(_SUFFIX), REGISTRY, n=1, cutoff=0.4)
    guess = f"Did you mean {near[0]}? " if near else ""
    raise RewardError(
        f"rewards.funcs: there is no reward called {name}. {guess}Covey has {', '.join(REGISTRY)}; a function of your "
        "own is named file.py:function or package.module:function."
    )


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


def _attribute(module: ModuleType, attribute: str, name: str) -> Any:
    if hasattr(module, attribute):
        return getattr(module, attribute)
    own = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
    shown = ", ".join(difflib.get_close_matches(attribute, own, n=5, cutoff=0.0)) or "none of its own"
    raise RewardError(
        f"rewards.funcs: {name}: {name.rpartition(':')[0]} has no function {attribute or '(none is named)'}; it has "
        f"{shown}."
    )


def _checked(function: Any, name: str) -> RewardFunction:
    """Refuse early what would fail at the first training step."""
    if not callable(function) or not hasattr(function, "__name__") or inspect.isclass(function):
        raise RewardError(f"rewards.funcs: {name} is not a function but of type {type(function).__name__}.")
    parameters = inspect.signature(function).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        raise RewardError(
            f"rewards.funcs: {name} must take **kwargs, because a reward is given prompts, completions and every "
            f"column of the data by keyword: def {function.__name__}(prompts, completions, **kwargs)."
        )
    checked: RewardFunction = function
    return checked
