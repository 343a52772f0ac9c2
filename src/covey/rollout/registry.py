"""Engines by name, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from covey.config.groups.rollout import ENGINES
from covey.errors import ConfigError
from covey.importing import import_object, user_errors
from covey.model.loading import has_reasoning_tokens
from covey.rollout.engine import Capabilities

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.rollout.engine import InferenceEngine

METHODS = ("generate", "sync", "close")
PARTS = (*METHODS, "version", "capabilities")
"""What `InferenceEngine` consists of."""


def engine_class(name: str, key: str) -> Callable[..., InferenceEngine]:
    """The class of an engine.

    Args:
        name: one of `ENGINES`, or `file.py:Class` or `package.module:Class`.
        key: the config key that named it, for messages.

    Raises:
        ConfigError: there is none.
    """
    found: Callable[..., InferenceEngine] = import_object(ENGINES.get(name, name), key, ConfigError)
    return found


def make_engine(
    name: str, key: str, *, model_name: str, tokenizer: PreTrainedTokenizerBase, **options: Any
) -> InferenceEngine:
    """An engine with a model's weights.

    Args:
        name: see `engine_class`.
        key: see `engine_class`.
        model_name: a folder or hub id with whole weights: adapters are merged.
        options: `dtype` (None: the engine's choice), `revision` (None: the newest), `trust_remote_code`, and
            `batch_size`, completions at a time.

    Raises:
        ConfigError: there is no such class, it is not an engine, or it cannot be made.
        EngineError: it does not take the model.
    """
    kind = engine_class(name, key)
    with user_errors(f"{key}={name} cannot be made", ConfigError):
        engine = kind(model_name=model_name, tokenizer=tokenizer, **options)
    check_engine(engine, f"{key}={name}")
    check_reasoning(engine, has_reasoning_tokens(model_name))
    return engine


def check_engine(engine: Any, what: str) -> None:
    """Check that this is an inference engine.

    Args:
        what: it is, for messages.

    Raises:
        ConfigError: it lacks a part, or its `capabilities` are of another type.
    """
    more = "See docs/adding_an_engine.md."
    if inspect.isclass(engine):
        raise ConfigError(f"{what} is not an inference engine: it is a class, not an instance of one. {more}")
    with user_errors(f"{what} is not an inference engine", ConfigError):  # a property may raise anything
        missing = [part for part in PARTS if not hasattr(engine, part)]
        missing += [f"method {part}" for part in METHODS if not callable(getattr(engine, part, print))]
        can = getattr(engine, "capabilities", None)
    if missing:
        raise ConfigError(f"{what} is not an inference engine: it has no {', '.join(missing)}. {more}")
    if not isinstance(can, Capabilities):
        raise ConfigError(
            f"{what} is not an inference engine: its capabilities must be a covey.rollout.Capabilities, not of type "
            f"{type(can).__name__}. {more}"
        )


def check_reasoning(engine: InferenceEngine, needed: bool) -> None:
    """Raise a `ConfigError` unless the engine masks the model's reasoning vocabulary, if it has one."""
    if needed and not engine.capabilities.reasoning_vocab:
        raise ConfigError(
            f"The model has a reasoning vocabulary, and the engine {type(engine).__name__} does not say that it "
            "restricts these tokens to thinking (Capabilities.reasoning_vocab): use another engine, or add "
            "covey.rollout.thinking.ThinkingMask to it."
        )
