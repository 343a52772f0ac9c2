"""Inside a vLLM server's worker on the CPU: takes new weights out of a folder.

Servers on GPUs get their weights over NCCL, through vLLM's own weight transfer, which there is none of on a CPU. Given
to vLLM by name (`--worker-extension-cls`), which mixes the class into its worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from covey.rollout.vllm_engine import load_weights


class FolderWeights:
    """Methods that a trainer calls on every worker by name, over HTTP (`/collective_rpc`)."""

    model_runner: Any

    def load_folder(self, folder: str) -> dict[str, int]:
        """Load every tensor of every `.safetensors` file in a folder; says how many there were."""
        files = sorted(Path(folder).glob("*.safetensors"))
        count = 0

        def named() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal count
            for file in files:
                with safe_open(file, framework="pt") as opened:
                    for name in opened.keys():  # noqa: SIM118  (no mapping: it cannot be iterated itself)
                        count += 1
                        yield name, opened.get_tensor(name)

        load_weights(self.model_runner, named())
        return {"tensors": count}
