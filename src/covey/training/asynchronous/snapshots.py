"""The weights of a version, kept for as long as completions are written by it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

from covey.rollout.engine import InferenceEngine, NamedWeights
from covey.rollout.weight_folder import read_folder, write_folder


class Snapshot(Protocol):
    """The weights of one version."""

    def load(self, engine: InferenceEngine, version: int) -> None:
        """Give them to an engine. Called from the thread that has the engine, again if the engine has lost them."""

    def drop(self) -> None:
        """They are not needed any more."""


class FolderSnapshot:
    """Weights in a folder of safetensors files.

    Args:
        folder: replaced if it exists; its parent is created.
        weights: written at once.
    """

    def __init__(self, folder: Path, weights: NamedWeights) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        write_folder(folder, weights)

    def load(self, engine: InferenceEngine, version: int) -> None:
        """By the engine's `sync_folder(folder, version)` if it has one, else by `sync`."""
        from_folder: Any = getattr(engine, "sync_folder", None)
        if from_folder is not None:
            from_folder(self.folder, version)
        else:
            engine.sync(read_folder(self.folder), version)

    def drop(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
