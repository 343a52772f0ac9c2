"""Numbers on their way to a device, and mixed precision over many forwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def on_device(numbers: Any, device: torch.device) -> torch.Tensor:
    """Numbers as a tensor on a device; on a GPU from pinned memory, so that nothing waits for the device."""
    found = torch.as_tensor(numbers, dtype=torch.long)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found.to(device)


def for_products(states: torch.Tensor) -> torch.Tensor:
    """In the dtype that products are computed in."""
    kind = states.device.type
    return states.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else states


def has_bfloat16() -> bool:
    """Whether the GPU computes in bfloat16 itself. NVIDIA's do from compute capability 8 on; older ones emulate it."""
    return torch.version.hip is not None or torch.cuda.get_device_capability() >= (8, 0)


def half_precision(bf16: bool | None, fp16: bool, dtype: str | None) -> str | None:
    """The 16-bit numbers of mixed precision on a GPU: `bf16`, `fp16`, or None.

    Args:
        bf16: `training.bf16`; None, as in TRL, means bfloat16 unless `fp16` is set. Where the GPU only emulates it,
            float32 weights compute in float16, whose loss scaling needs them, and others in their own dtype.
        fp16: `training.fp16`.
        dtype: `model.dtype`.
    """
    if fp16 or bf16 is not None:
        return "fp16" if fp16 else "bf16" if bf16 else None
    if not torch.cuda.is_available() or has_bfloat16():
        return "bf16"
    return "fp16" if dtype in (None, "float32") else None


def autocast_dtype(device: torch.device, bf16: bool | None, fp16: bool, dtype: str | None) -> torch.dtype | None:
    """The dtype of mixed precision on this device; None on a CPU, or without it. See `half_precision`."""
    kind = None if device.type == "cpu" else half_precision(bf16, fp16, dtype)
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind or "")


def device_memory(device: torch.device) -> int:
    """Bytes of memory of a GPU, or of this machine."""
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else main_memory()


def main_memory() -> int:
    """Bytes of main memory that this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(name, encoding="ascii") as file:  # noqa: PTH123  a kernel file
                limit = file.read().strip()
        except OSError:
            continue
        if limit.isdigit():
            total = min(total, int(limit))
    return total


@contextmanager
def casting_once(model: Any, dtype: torch.dtype | None) -> Iterator[None]:
    """Context manager: mixed precision around many forwards, so that a weight is cast once and not in each of them.

    Autocast keeps the casts of float32 weights that require gradients; meanwhile frozen ones are taken for such.

    Args:
        model: not sharded: the casts of gathered weights would pile up.
        dtype: of the casts; None changes nothing.
    """
    if dtype is None:
        yield
        return
    frozen = [p for p in model.parameters() if p.dtype == torch.float32 and p.is_leaf and not p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.no_grad(), torch.autocast(model.device.type, dtype=dtype):
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
