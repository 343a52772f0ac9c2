"""The reference model in checkpoints, once training has moved it (`training.sync_ref_model`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers.integrations import is_fsdp_managed_module

from covey.errors import RunDirectoryError

logger = logging.getLogger(__name__)


class MovedReference:
    """A trainer's reference model. Checkpoints hold its weights if it moves, or has moved in the run they resume.

    Args:
        model: the reference model; None without one. Where it is sharded, every process has a file of its shards.
        moves: whether training moves it.
        process_index: of this process.
        processes: how many there are.
    """

    def __init__(self, model: Any, *, moves: bool, process_index: int, processes: int) -> None:
        self._model = model
        self._moves = moves and model is not None
        self._index = process_index
        weights = [] if model is None else list(model.parameters())
        shards = any(isinstance(one, DTensor) or hasattr(one, "ds_tensor") for one in weights)
        self._files = processes if shards or is_fsdp_managed_module(model) else 1

    def save(self, checkpoint: Path) -> None:
        """Write its weights into a checkpoint, if they are no longer those that training started from."""
        if self._moves and self._index < self._files:
            held = {name: _own(one).cpu() for name, one in self._model.named_parameters()}
            torch.save(held, checkpoint / f"reference_{self._index}.pt")

    def load(self, checkpoint: Path) -> None:
        """Take the weights that a checkpoint holds.

        Raises:
            RunDirectoryError: they are sharded over another number of processes.
        """
        written = len(list(checkpoint.glob("reference_*.pt")))
        if self._model is None or not written:
            if self._moves:
                text = "%s holds no reference model that has moved: training.sync_ref_model=true begins anew with it."
                logger.warning(text, checkpoint)
            return
        if written != self._files:
            raise RunDirectoryError(
                f"The reference model in {checkpoint} is in {written} parts, and this run needs {self._files}: resume "
                "it with as many processes, and the same sharding, as then."
            )
        self._moves = True
        file = checkpoint / f"reference_{self._index if self._files > 1 else 0}.pt"
        stored = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        with torch.no_grad():
            for name, one in self._model.named_parameters():
                _own(one).copy_(stored[name])


def _own(weight: Any) -> torch.Tensor:
    """What this process holds of a weight."""
    held = getattr(weight, "ds_tensor", weight)  # of DeepSpeed's ZeRO-3
    return (held.to_local() if isinstance(held, DTensor) else held).detach()
