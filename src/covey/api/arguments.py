"""The arguments of the functions of Python as words of a command line.

An object that a command would name, such as a reward function, goes by a name that leads to it while the program runs
(`covey.importing.give`).
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from covey.config.aliases.aliases import kind_of
from covey.config.compose.group_files import Roots
from covey.config.groups.dataset import DATA_FILES
from covey.errors import ConfigError
from covey.importing import give, name_of

Overrides = Sequence[str] | Mapping[str, Any]
"""Keys to set: as on a command line, `["model=starter", "training.max_steps=50"]`, or a mapping from keys (or
groups) to values, `{"model": "starter", "training.max_steps": 50}`."""

Part = str | Callable[..., Any]
"""A function or class of one's own, or the name of one."""

Parts = Part | Sequence[Part] | Mapping[str, Part]

ROWS = "_data"
"""The folder in `output_dir` for rows that were given as objects."""

_OF_OWN_DATA = ("dataset=none", "dataset.test_size=256", "dataset.task=null", "dataset.id=null")
"""The words for data that is no built-in task, whatever a recipe names; the one that follows names it."""
_SIMILAR = 0.75
"""From where on, of 1, an unknown name is taken for an argument misspelt."""
_OF_TRL = {
    "train_dataset": "data=rows, with held-out rows data={'train': …, 'test': …}",
    "eval_dataset": "data={'train': …, 'test': …}",
    "args": "keys, such as max_steps=50, learning_rate=1e-5",
    "peft_config": "keys, such as overrides={'model.lora.r': 16}",
    "processing_class": "the model alone: its tokenizer comes with it",
    "rollout_func": "overrides={'environment.rollout_func': function}",
    "optimizers": "keys, such as learning_rate=1e-5, optim='adamw_torch'",
}
"""Arguments of TRL's trainer whose values have no place in a config, and what stands for them."""


class ArgumentError(ConfigError, TypeError):
    """An argument of a function of Python that is of the wrong type."""


class Words:
    """Collects words, and names the objects among their values.

    Args:
        function: whose arguments these are, for messages.
    """

    def __init__(self, function: str) -> None:
        self._function = function
        self._given: dict[str, Any] = {}

    def of(self, overrides: Overrides, argument: str = "overrides") -> list[str]:
        """Overrides as words.

        Raises:
            ArgumentError: they are something else, or a value is no value of a config.
        """
        if isinstance(overrides, Mapping):
            for name in overrides:
                if name in _OF_TRL:
                    raise ArgumentError(f"{self._function} has no argument {name}: give {_OF_TRL[name]}.")
            return [f"{key}={self.value(value, str(key))}" for key, value in overrides.items()]
        if isinstance(overrides, str) or not isinstance(overrides, Sequence):
            is_what = "is a string" if isinstance(overrides, str) else f"is of type {type(overrides).__name__}"
            raise ArgumentError(
                f"{self._function}: {argument}={_short(overrides)} {is_what}: give a list of strings, as "
                "['training.max_steps=50'], or a mapping from keys to values, as {'training.max_steps': 50}."
            )
        for word in overrides:
            if not isinstance(word, str):
                raise ArgumentError(
                    f"{self._function}: {argument} holds {_short(word)}, of type {type(word).__name__}: a list of "
                    "overrides holds strings, as ['training.max_steps=50']."
                )
        return list(overrides)

    def keys(
        self, keys: Mapping[str, Any], function: Callable[..., Any], config_dirs: Sequence[str | Path]
    ) -> list[str]:
        """Free keyword arguments as words.

        Raises:
            ArgumentError: see `of`; or one is no key, but close to an argument of the function.
        """
        arguments = list(inspect.signature(function).parameters)
        for name in keys:
            near = difflib.get_close_matches(name, arguments, n=1, cutoff=_SIMILAR)
            if near and kind_of(name) is None and not Roots.of(config_dirs).options(name):
                raise ArgumentError(f"{self._function} has no argument {name}. Did you mean {near[0]}?")
        return self.of(keys)

    def value(self, value: Any, key: str) -> str:
        """A value in Hydra's override grammar, with texts quoted; of a function or class its name."""
        value = value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value  # NumPy's numbers
        if value is None:
            return "null"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int | float):
            return repr(value)
        if isinstance(value, Mapping):
            inside = (f"{name}:{self.value(inner, f'{key}.{name}')}" for name, inner in value.items())
            return "{" + ",".join(inside) + "}"
        if isinstance(value, list | tuple | set | range):
            return "[" + ",".join(self.value(inner, key) for inner in value) + "]"
        return _quoted(self._text(value, key))

    def parts(
        self, rewards: Parts | None, environments: Part | Mapping[str, Any] | None, tools: Sequence[Part] | None
    ) -> list[str]:
        """The words for rewards, environments and tools, where they are given."""
        words = [] if rewards is None else self._rewards(rewards)
        words += [] if environments is None else self.of({"environment.factory": environments})
        if isinstance(tools, str) or callable(tools):
            tools = [tools]
        return words + ([] if tools is None else self.of({"environment.tools": tools}))

    def sources(self, model: str | Path | None, data: Any, config_dirs: Sequence[str | Path]) -> list[str]:
        """The words for the model and the data, where they are given; rows are to take the place of their path."""
        words = [] if data is None else self._data(data, Roots.of(config_dirs).options("dataset"))
        if model is None:
            return words
        if not isinstance(model, str | os.PathLike):
            raise ArgumentError(
                f"{self._function}: model is of type {type(model).__name__}: give its name on the hub, or its folder."
            )
        name = os.fspath(model)
        option = name in Roots.of(config_dirs).options("model")
        return [*words, f"{'model' if option else 'model.name'}={_quoted(name)}"]

    def _rewards(self, rewards: Parts) -> list[str]:
        if isinstance(rewards, str) or callable(rewards):
            rewards = [rewards]
        if isinstance(rewards, Mapping):
            rewards = [one if isinstance(one, str) else _named(one, name) for name, one in rewards.items()]
        if not isinstance(rewards, Sequence) or not all(isinstance(one, str) or callable(one) for one in rewards):
            raise ArgumentError(
                f"{self._function}: rewards={_short(rewards)}: give functions, or names of rewards such as "
                "'exact_match', in a list."
            )
        for one in rewards:
            if hasattr(one, "forward") and hasattr(one, "parameters"):
                raise ArgumentError(
                    f"{self._function}: rewards holds a {type(one).__name__}, which is a model: name it, as "
                    "'model:FOLDER' or 'model:OWNER/NAME'."
                )
        return [f"rewards.funcs={self.value(list(rewards), 'rewards')}"]

    def _data(self, data: Any, options: Sequence[str]) -> list[str]:
        """An option of the group, a file or folder, or a dataset on the hub; a path that is replaced for rows."""
        if is_rows(data):
            return [*_OF_OWN_DATA, f"dataset.path={ROWS}"]
        name = os.fspath(data)
        if name in options:
            return [f"dataset={_quoted(name)}"]
        local = name.lower().endswith(DATA_FILES) or Path(name).expanduser().exists() or "://" in name
        if not local and isinstance(data, str) and "/" not in name:
            raise ConfigError(
                f"{self._function}: data={name!r} is neither a file nor one of {', '.join(options)}. Give rows, a "
                "file, a dataset on the hub as 'owner/name', or one of these."
            )
        return [*_OF_OWN_DATA, f"dataset.{'path' if local else 'id'}={_quoted(name)}"]

    def _text(self, value: Any, key: str) -> str:
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if callable(value) and not isinstance(value, str):
            return self._name(value)
        text = str(value)
        if not isinstance(value, str) and " at 0x" in text:
            raise ArgumentError(
                f"{self._function}: {key} is of type {type(value).__name__}: a value is text, a number, a list or a "
                "mapping of these, or a function or class."
            )
        return text

    def _name(self, thing: Callable[..., Any]) -> str:
        """The name under which a config has this object; another for each of two that would have the same."""
        thing = (
            thing if hasattr(thing, "__name__") else _named(thing, name_of(thing).rpartition(".")[2].rpartition(":")[2])
        )
        name = first = name_of(thing)
        while self._given.setdefault(name, thing) is not thing:
            name = f"{first}-{len(self._given)}"
        give(name, thing)
        return name


def is_rows(data: Any) -> bool:
    """Whether data was given as rows, and not by a name."""
    return data is not None and not isinstance(data, str | os.PathLike)


def _named(thing: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of this name that calls another one: the metrics of a reward are called by it."""

    @functools.wraps(thing, assigned=("__doc__",), updated=())
    def function(*args: Any, **kwargs: Any) -> Any:
        return thing(*args, **kwargs)

    function.__module__ = name_of(thing).rpartition(":")[0]
    function.__name__ = function.__qualname__ = name
    return function


def _quoted(text: str) -> str:
    text = text.replace("\\'", "\\\\'")  # within quotes a backslash means itself, but not before a quote
    text = text + "\\" if text.endswith("\\") else text
    return "'" + text.replace("'", "\\'") + "'"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:59] + "…"
