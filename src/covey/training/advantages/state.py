"""The state of an objective between generation batches, as checkpoints hold it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from covey.errors import ConfigError, TrainingError
from covey.objective.interface import adapted, reported

logger = logging.getLogger(__name__)


def in_use(objective: Any, **run: Any) -> Any:
    """The objective adapted to a run, see `Objective.for_run`; None if it leaves TRL's advantages.

    Raises:
        ConfigError: the run does not support it, or checkpoints could not store its state.
    """
    if objective is None:
        return None
    objective = adapted(objective, **run)
    try:
        state_of(objective)
    except TrainingError as error:
        raise ConfigError(str(error)) from error
    return None if getattr(objective, "keeps_trl_advantages", False) else objective


def state_of(objective: Any) -> Any:
    """A copy of the objective's state; None if it has none.

    Raises:
        TrainingError: it holds something else than tensors and plain data.
    """
    if not callable(getattr(objective, "state_dict", None)):
        return None
    with reported(objective, "state_dict", TrainingError):
        state = objective.state_dict()
    return _copied(state, f"state_dict() of the objective {type(objective).__name__}")


def restore_state(objective: Any, state: Any) -> None:
    """Give the objective the state that a checkpoint holds. Where only one of them has a state, a warning is logged.

    Raises:
        TrainingError: the objective does not take it.
    """
    has_state = callable(getattr(objective, "load_state_dict", None))
    if has_state and state is not None:
        with reported(objective, "load_state_dict", TrainingError):
            objective.load_state_dict(state)
    elif has_state:
        logger.warning(
            "The checkpoint holds no state of the objective %s, which starts anew.", type(objective).__name__
        )
    elif state is not None:
        logger.warning("The checkpoint holds the state of an objective, and this run's has none: it is dropped.")


def _copied(value: Any, where: str) -> Any:
    """The value, without references to the objective's own tensors and containers."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):  # NumPy's numbers derive from these, and cannot be loaded without pickle
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        return {_copied(key, where): _copied(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        inside = [_copied(inner, where) for inner in value]
        return tuple(inside) if isinstance(value, tuple) else inside
    raise TrainingError(
        f"{where} holds a value of the type {type(value).__name__}, which a checkpoint cannot store: only tensors, "
        "numbers, strings, None, and lists and mappings of these."
    )
