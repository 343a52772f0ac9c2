"""Weights from a folder, loaded by a worker extension in vLLM's own processes.

On GPUs, a server's weight transfer uses NCCL; there is none on a CPU. vLLM gets the class by name
(`--worker-extension-cls`) and mixes it into its worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from covey.rollout.vllm.engine import load_weights
from covey.rollout.weight_folder import read_folder

WORKER = "covey.rollout.vllm.worker.FolderWeights"
"""The name of the worker extension."""


class FolderWeights:
    """Methods that a trainer calls on every worker by name, over HTTP (`/collective_rpc`)."""

    model_runner: Any

    def load_folder(self, folder: str) -> dict[str, int]:
        """Load the weights of a folder (`covey.rollout.weight_folder`); returns the number of tensors."""
        count = 0

        def named() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal count
            for one in read_folder(Path(folder)):
                count += 1
                yield one

        load_weights(self.model_runner, named())
        return {"tensors": count}
