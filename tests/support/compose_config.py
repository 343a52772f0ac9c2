"""Composing a config from the words of a command line or the text of a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from covey.config import Composed, compose, split
from covey.config.compose.build import flatten


def from_words(*words: str, recipe: Path | None = None) -> Composed:
    found = split(words)
    return compose(found.overrides, recipe or found.recipe)


def from_yaml(text: str | dict[str, Any], name: str = "foreign.yaml", *words: str) -> Composed:
    """The config of a recipe file with this content, and overrides."""
    path = Path(name)
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return from_words(*words, recipe=path)


def value_of(composed: Composed, key: str) -> Any:
    found = flatten(composed.config)
    name = key.removeprefix("training.")
    value = found.get(key, getattr(composed.config.training, name, None) if name != key else None)
    return list(value) if isinstance(value, tuple) else value
