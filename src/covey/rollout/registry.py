"""Engines by name, and the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from covey.config.groups.rollout import ENGINES
from covey.errors import ConfigError, CoveyError, one_line
from covey.importing import import_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.rollout.engine import InferenceEngine

PARTS = ("generate", "sync", "close", "version", "capabilities")
"""What `InferenceEngine` consists of."""


def make_engine(
    name: str, key: str, *, model_name: str, tokenizer: PreTrainedTokenizerBase, **options: Any
) -> InferenceEngine:
    """An engine with a model's weights.

    Args:
        name: one of `ENGINES`, or `file.py:Class` or `package.module:Class`.
        key: the config key that named it, for messages.
        model_name: a folder or hub id with whole weights: adapters are merged.
        tokenizer: of the model.
        options: `dtype` (None: the engine's choice), `revision` (None: the newest), `trust_remote_code`, and
            `batch_size`, completions at a time.

    Raises:
        ConfigError: there is no such class, it is not an engine, or it cannot be made.
        EngineError: it does not take the model.
    """
    kind = import_object(ENGINES.get(name, name), key, ConfigError)
    try:
        engine: InferenceEngine = kind(model_name=model_name, tokenizer=tokenizer, **options)
    except CoveyError:
        raise
    except Exception as error:  # the user's own code, which may raise anything
        raise ConfigError(f"{key}={name} cannot be made: {type(error).__name__}: {one_line(error)}") from error
    missing = [part for part in PARTS if not hasattr(engine, part)]
    if missing:
        raise ConfigError(
            f"{key}={name} is not an inference engine: it has no {', '.join(missing)}. See docs/adding_an_engine.md."
        )
    return engine
