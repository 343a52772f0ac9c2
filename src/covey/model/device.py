"""Moves to a device, mixed precision, norms for training on a CPU, and modes of a model."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers import PretrainedConfig
from transformers.modeling_utils import set_zero3_state
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from covey.log_once import log_once

logger = logging.getLogger(__name__)


@contextmanager
def on_meta() -> Iterator[None]:
    """Models made here have shapes and no values. transformers partitions none of them, as it does with every new model
    of a process that trains with ZeRO-3."""
    with torch.device("meta"), set_zero3_state():
        yield


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


PLAIN_NORMS = (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)
"""Norms of the kind that is implemented here. Subclasses may differ, and are not taken."""


def rms_norm(x: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
    """`weight · x / √(mean(x²) + eps)` over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467, equation 4).

    Args:
        x: `[…, E]`.
        weight_E: the scale.
        eps: keeps the root above zero.
    """
    out: torch.Tensor = _RootMeanSquare.apply(x, weight_E, eps)  # type: ignore[no-untyped-call]
    return out


def use_own_norms(model: torch.nn.Module) -> None:
    """Compute a model's plain norms by `rms_norm` where they get float32 on a CPU; others on a CPU are logged once."""
    on_cpu = any(parameter.device.type == "cpu" for parameter in model.parameters())
    for module in model.modules():
        if type(module) not in PLAIN_NORMS:
            if on_cpu and type(module).__name__.endswith("RMSNorm"):
                _log_once(f"{type(module).__name__} is not supported")
        elif "forward" not in vars(module):
            module.forward = MethodType(_forward_of(type(module)), module)


def _log_once(reason: str) -> None:
    log_once(logger, "Norms are computed by transformers: %s.", reason, level=logging.INFO)


def _forward_of(kind: Any) -> Any:
    @wraps(kind.forward)
    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        kinds = {(type(one), one.dtype, one.device.type) for one in (hidden_states, weight.data)}
        if kinds != {(torch.Tensor, torch.float32, "cpu")} or torch.is_autocast_enabled("cpu"):
            if hidden_states.device.type == "cpu":
                _log_once("Covey's own are for unsharded float32 tensors without autocast")
            out: torch.Tensor = kind.forward(self, hidden_states)
            return out
        return rms_norm(hidden_states, weight, self.variance_epsilon)

    return forward


class _RootMeanSquare(torch.autograd.Function):
    """Keeps the normalised input: in transformers' norms every operation reads and writes memory, in both passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_E: torch.Tensor, eps: float) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, weight_E, scale)
        out: torch.Tensor = normed * weight_E
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normed, weight_E, scale = ctx.saved_tensors
        product = (grad * normed).flatten(0, -2)
        to_weight = product.sum(0) if ctx.needs_input_grad[1] else None
        to_x = None
        if ctx.needs_input_grad[0]:
            # scale · (w·g − n · mean(w·g·n)), with n the normalised input
            mean = torch.mv(product, weight_E).mul_(1 / len(weight_E)).view(scale.shape)
            to_x = (grad * weight_E).addcmul_(normed, mean, value=-1).mul_(scale)
        return to_x, to_weight, None


def base_model(model: Any) -> Any:
    """The transformers model inside one that PEFT may have wrapped."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def is_spread(model: Any) -> bool:
    """Whether accelerate has put the model's layers on several devices (`device_map="auto"`)."""
    return len({str(device) for device in (getattr(model, "hf_device_map", None) or {}).values()}) > 1


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Context manager: every module is in evaluation mode; on exit its own mode is restored."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def disable_dropout(model: torch.nn.Module) -> list[tuple[Any, dict[str, float]]]:
    """Set every dropout rate to 0: of dropout modules, and the numbers that modules, or their configs, hold for
    functional dropout and dropped layers. Routers with jitter, which may draw experts too, stay in evaluation mode.
    Returns the configs that were changed, with the rates that they had.
    """
    configs: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(config := getattr(module, "config", None), PretrainedConfig):
            configs[id(config)] = config
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if any("jitter" in name for name in vars(module)):
            module.eval().train = lambda *_: None  # type: ignore
        _zero_rates(module)
    return [(config, rates) for config in configs.values() if (rates := _zero_rates(config))]


def _zero_rates(owner: Any) -> dict[str, float]:
    rates = {name: value for name, value in vars(owner).items() if isinstance(value, float) and "drop" in name}
    for name in rates:
        setattr(owner, name, 0.0)
    return rates
