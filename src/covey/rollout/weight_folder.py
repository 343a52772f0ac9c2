"""Weights through a folder of safetensors files: what vLLM's workers on a CPU and the rollout process read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from covey.rollout.engine import NamedWeights

_FILE_BYTES = 1 << 30
"""Weights are written in files of about this size, which bounds the memory for copies."""


def write_folder(folder: Path, named: NamedWeights) -> int:
    """Write weights into a folder, for `read_folder`; returns the number of tensors."""
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


def read_folder(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights in the `.safetensors` files of a folder, one by one, with their names."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping: it cannot be iterated itself)
                yield name, tensors.get_tensor(name)
