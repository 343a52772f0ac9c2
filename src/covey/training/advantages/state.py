"""The state of an objective between generation batches, as checkpoints hold it."""

from __future__ import annotations

import logging
from typing import Any

from covey.errors import ConfigError, TrainingError
from covey.objective.interface import adapted, reported
from covey.objective.plain import UnstorableError, plain_copy

logger = logging.getLogger(__name__)


def in_use(objective: Any, **run: Any) -> Any:
    """The objective adapted to a run, see `Objective.for_run`; None without one. Raises a `ConfigError` if the run does
    not support it, or checkpoints could not store its state."""
    if objective is None:
        return None
    objective = adapted(objective, **run)
    try:
        state_of(objective)
    except TrainingError as error:
        raise ConfigError(str(error)) from error
    return objective


def state_of(objective: Any) -> Any:
    """A copy of the objective's state; None if it has none. Raises a `TrainingError` if it holds something else than
    tensors and plain data."""
    if not callable(getattr(objective, "state_dict", None)):
        return None
    with reported(objective, "state_dict", TrainingError):
        state = objective.state_dict()
    try:
        return plain_copy(state, f"state_dict() of the objective {type(objective).__name__}", tensors=True)
    except UnstorableError as problem:
        raise TrainingError(
            f"{problem}, which a checkpoint cannot store: only tensors, numbers, strings, None, and lists and mappings "
            "of these."
        ) from None


def restore_state(objective: Any, state: Any) -> None:
    """Give the objective the state that a checkpoint holds. Where only one of them has a state, a warning is logged.
    Raises a `TrainingError` if the objective does not take it."""
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
