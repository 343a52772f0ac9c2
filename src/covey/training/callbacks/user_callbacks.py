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
    """Instantiate classes; take objects as they are.

    Args:
        names: `early_stopping`, `file.py:Class` or `package.module:Class`, each a `transformers.TrainerCallback`.
        settings: for early stopping.

    Raises:
        ConfigError: there is no such class, it is not a callback, or it needs arguments.
    """
    settings = settings or EvaluationConfig()
    return [_early_stopping(settings) if name == EARLY_STOPPING else _load(name) for name in names]


def _early_stopping(settings: EvaluationConfig) -> TrainerCallback:
    from covey.training.callbacks.early_stopping import EarlyStopping

    return EarlyStopping(settings.early_stopping_patience, settings.early_stopping_threshold)


def _load(name: str) -> TrainerCallback:
    if ":" not in name:
        raise ConfigError(
            f"callbacks: there is no callback called {name}. Covey has {EARLY_STOPPING}; name your own as "
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
        raise ConfigError(f"callbacks: {name} is not a transformers.TrainerCallback, but {kind}.")
    return found
