"""Trainer callbacks by name: Covey's own, and the user's."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from transformers import TrainerCallback

from covey.config import EvaluationConfig
from covey.config.schema import EARLY_STOPPING
from covey.errors import ConfigError
from covey.importing import import_object


def load_callbacks(names: Sequence[str], settings: EvaluationConfig | None = None) -> list[TrainerCallback]:
    """Make one object of every class, or take the object itself.

    Args:
        names: `early_stopping`, `file.py:Class` or `package.module:Class`, each a `transformers.TrainerCallback`.
        settings: how early stopping goes by evaluations.

    Raises:
        ConfigError: there is no such class, it is no callback, or it cannot be made without arguments.
    """
    settings = settings or EvaluationConfig()
    return [_early_stopping(settings) if name == EARLY_STOPPING else _load(name) for name in names]


def _early_stopping(settings: EvaluationConfig) -> TrainerCallback:
    from covey.training.early_stopping import EarlyStopping

    return EarlyStopping(settings.early_stopping_patience, settings.early_stopping_threshold)


def _load(name: str) -> TrainerCallback:
    if ":" not in name:
        raise ConfigError(
            f"callbacks: there is no callback called {name}. There is {EARLY_STOPPING}; name one of your own as "
            "file.py:Class or package.module:Class."
        )
    found = import_object(name, "callbacks", ConfigError)
    if inspect.isclass(found) and issubclass(found, TrainerCallback):
        try:
            return found()
        except TypeError as error:
            raise ConfigError(f"callbacks: {name} cannot be made without arguments: {error}.") from error
    if not isinstance(found, TrainerCallback):
        kind = found.__name__ if inspect.isclass(found) else type(found).__name__
        raise ConfigError(f"callbacks: {name} is no transformers.TrainerCallback, but {kind}.")
    return found
