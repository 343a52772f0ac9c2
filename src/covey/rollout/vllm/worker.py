"""A worker extension for vLLM servers on the CPU: loads new weights from a folder.

On GPUs, vLLM's own weight transfer uses NCCL; there is none on a CPU. vLLM gets the class by name
(`--worker-extension-cls`) and mixes it into its worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from covey.rollout.vllm.engine import load_weights


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
