"""Composing what a command line or a recipe says, for the tests of other tools' spellings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from covey.config import Composed, compose, split
from covey.config.build import flatten


def by_words(*words: str, recipe: Path | None = None) -> Composed:
    """What a command line comes to."""
    found = split(words)
    return compose(found.overrides, recipe or found.recipe)


def by_yaml(text: str | dict[str, Any], name: str = "foreign.yaml", *words: str) -> Composed:
    """What a recipe file comes to."""
    path = Path(name)
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return by_words(*words, recipe=path)


def value_of(composed: Composed, key: str) -> Any:
    found = flatten(composed.config)
    name = key.removeprefix("training.")
    value = found.get(key, getattr(composed.config.training, name, None) if name != key else None)
    return list(value) if isinstance(value, tuple) else value
