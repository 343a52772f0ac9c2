"""Weights through a folder: written here, and loaded by a worker extension in vLLM's own processes.

On GPUs, a server's weight transfer uses NCCL; there is none on a CPU. vLLM gets the class by name
(`--worker-extension-cls`) and mixes it into its worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from covey.rollout.engine import NamedWeights
from covey.rollout.vllm.engine import load_weights

WORKER = "covey.rollout.vllm.worker.FolderWeights"
"""The name of the worker extension."""

_FILE_BYTES = 1 << 30
"""Weights are written in files of about this size, which bounds the memory for copies."""


def write_folder(folder: Path, named: NamedWeights) -> int:
    """Write weights into a folder, for `FolderWeights`; returns the number of tensors."""
    part: dict[str, torch.Tensor] = {}
    held = files = tensors = 0
    for name, weights in named:
        # A copy: adapters are unmerged in the same memory before the file is written.
        part[name] = weights.detach().to("cpu", copy=True).contiguous()
        held += part[name].nbytes
        tensors += 1
        if held >= _FILE_BYTES:
            save_file(part, folder / f"{files:05d}.safetensors")
            part, held, files = {}, 0, files + 1
    if part:
        save_file(part, folder / f"{files:05d}.safetensors")
    return tensors


class FolderWeights:
    """Methods that a trainer calls on every worker by name, over HTTP (`/collective_rpc`)."""

    model_runner: Any

    def load_folder(self, folder: str) -> dict[str, int]:
        """Load every tensor of every `.safetensors` file in a folder; returns their number."""
        files = sorted(Path(folder).glob("*.safetensors"))
        count = 0

        def named() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal count
            for file in files:
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118  (not a mapping: it cannot be iterated itself)
                        count += 1
                        yield name, tensors.get_tensor(name)

        load_weights(self.model_runner, named())
        return {"tensors": count}
