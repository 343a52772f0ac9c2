"""Root mean square norms with a hand-written backward pass, for training on a CPU.

In transformers' norms every operation reads and writes memory, forward and backward. With a hand-written gradient that
keeps the normalised input there are fewer.
"""

from __future__ import annotations

import logging
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from covey.log_once import log_once

logger = logging.getLogger(__name__)

PLAIN = (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)
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
        if type(module) not in PLAIN:
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
