"""Hashes by which evaluations of the same problems, and of the same weights, are recognised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.evaluation.target import Target

_BLOCK = 1 << 20


def digest(items: Iterable[Any]) -> str:
    """A hash of the items in their order; equal for lists and tuples."""
    found = hashlib.sha256()
    for item in items:
        found.update(json.dumps(item, ensure_ascii=True).encode() + b"\n")
    return found.hexdigest()


def weights_fingerprint(target: Target, model: Any) -> str:
    """A fingerprint of the weights: a hash of the files, or the commit of a hub model."""
    folder = target.adapter or (Path(target.source) if Path(target.source).is_dir() else None)
    if folder is None:
        config = getattr(model, "config", None)  # another engine has no model here
        return str(getattr(config, "_commit_hash", None) or target.source)
    hashed = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                hashed.update(block)
    return hashed.hexdigest()
