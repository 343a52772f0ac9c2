"""Root mean square norms with a gradient written out, for learning on a CPU.

As transformers writes it, every operation of a norm goes over memory, forth and back. Written out, with the normalised
input kept, these are fewer.
"""

from __future__ import annotations

import logging
from functools import cache, wraps
from types import MethodType
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

logger = logging.getLogger(__name__)

PLAIN = (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)
"""Norms of the one kind that is written out here. Children of these classes may do something else."""


def rms_norm(x: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """`weight · x / √(mean(x²) + eps)` over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467, equation 4).

    Args:
        x: `[…, D]`.
        weight_D: one weight for each place.
        eps: keeps the root above zero.
    """
    out: torch.Tensor = _RootMeanSquare.apply(x, weight_D, eps)  # type: ignore[no-untyped-call]
    return out


def write_out_norms(model: torch.nn.Module) -> None:
    """Have a model's plain norms computed by `rms_norm`, where they get float32 on a CPU.

    Where others are computed on a CPU, a line in the log says so once.
    """
    on_cpu = any(parameter.device.type == "cpu" for parameter in model.parameters())
    for module in model.modules():
        if type(module) not in PLAIN:
            if on_cpu and type(module).__name__.endswith("RMSNorm"):
                _say_once(f"{type(module).__name__} is not written out")
        elif "forward" not in vars(module):
            module.forward = MethodType(_forward_of(type(module)), module)


@cache
def _say_once(reason: str) -> None:
    logger.info("Norms are computed as transformers does: %s.", reason)


def _forward_of(kind: Any) -> Any:
    @wraps(kind.forward)
    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        kinds = {(type(one), one.dtype, one.device.type) for one in (hidden_states, weight.data)}
        if kinds != {(torch.Tensor, torch.float32, "cpu")} or torch.is_autocast_enabled("cpu"):
            if hidden_states.device.type == "cpu":
                _say_once("what is written out is for whole tensors in float32 without autocast")
            out: torch.Tensor = kind.forward(self, hidden_states)
            return out
        return rms_norm(hidden_states, weight, self.variance_epsilon)

    return forward


class _RootMeanSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, weight_D, scale)
        out: torch.Tensor = normed * weight_D
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normed, weight_D, scale = ctx.saved_tensors
        product = (grad * normed).flatten(0, -2)
        to_weight = product.sum(0) if ctx.needs_input_grad[1] else None
        to_x = None
        if ctx.needs_input_grad[0]:
            # scale · (w·g − n · mean(w·g·n)), with n the normalised input
            mean = torch.mv(product, weight_D).mul_(1 / len(weight_D)).view(scale.shape)
            to_x = (grad * weight_D).addcmul_(normed, mean, value=-1).mul_(scale)
        return to_x, to_weight, None
