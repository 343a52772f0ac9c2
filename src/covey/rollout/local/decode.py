"""A decoding step of a plain decoder on a CPU, from packed weights rather than through its modules.

With a small model and a handful of rows, much of a step is module overhead and waiting for weights. Here the weights
are packed as oneDNN reads them fastest, queries, keys and values come from one product, and activations and residual
additions are fused into the products. The packed weights are copies that live as long as one call of `sample`, or for
as long as its caller says that the weights do not change; the model itself is not changed. Other models decode through
their modules, with `column_major` weights.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.nn.functional import embedding, pad
from torch.nn.modules import module as torch_modules
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM
from transformers.activations import SiLUActivation

from covey.log_once import log_once
from covey.model.device import base_model
from covey.rollout.local.cache import SharedPromptCache

logger = logging.getLogger(__name__)

PLAIN = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
"""Models of the one architecture that is implemented here. Subclasses may differ, and are not taken."""

PACKED_FOR = 16
"""Rows that the weights are packed for; measured to be the fastest layout from 2 to 64 rows."""

ROW_MULTIPLE = 8
"""Rows are padded to a multiple of this: oneDNN compiles and keeps a kernel of about 0.25 MB for each number of rows,
and a batch whose completions end one at a time has every number."""

TOLERANCE = 1e-4
"""Relative difference from the model's own logits that is accepted in the first step."""


class Product:
    """A linear layer, or several with the same input, with packed weights, which include those of the norm before."""

    def __init__(self, *layers: torch.nn.Linear, norm: Any = None) -> None:
        weights = [layer.weight.detach() for layer in layers]
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        weight = weights[0].contiguous() if len(weights) == 1 else torch.cat(weights)
        if norm is not None:
            weight = weight * norm.weight.detach()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
        self.bias = torch.cat(biases) if biases else None

    def __call__(self, x_bI: torch.Tensor, then: str = "none") -> torch.Tensor:
        """The product `[b, O]`, then `none` or `swish` of it."""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x_bI, self.weight, self.bias, then, [], "")
        return out

    def with_other(self, x_bI: torch.Tensor, other_bO: torch.Tensor, how: str) -> torch.Tensor:
        """The product `[b, O]`, then `add` or `mul` with another tensor."""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x_bI, other_bO, self.weight, self.bias, how)
        return out


class _Norm:
    """Root mean square norm over the last axis, without its weights."""

    def __init__(self, module: Any) -> None:
        self.share = 1 / len(module.weight)
        self.eps = torch.tensor(float(module.variance_epsilon))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # torch's own rms_norm takes nine kernels on a CPU
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self.eps, length, length, value=self.share).rsqrt_()


class _HeadNorms:
    """The norms of queries and keys, over all heads at once."""

    def __init__(self, attention: Any, heads: int, kv_heads: int) -> None:
        q, k = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        self.weight_AD = torch.cat([q.expand(heads, -1), k.expand(kv_heads, -1)])
        self.plain = _Norm(attention.q_norm)

    def __call__(self, x_bAD: torch.Tensor) -> torch.Tensor:
        return self.plain(x_bAD).mul_(self.weight_AD)


@dataclass(slots=True)
class _Layer:
    """The weights of one decoder layer."""

    before_attention: _Norm
    qkv: Product
    head_norms: _HeadNorms | None
    scaling: float
    out: Product
    before_mlp: _Norm
    gate: Product
    up: Product
    down: Product


class PlainDecoder:
    """A model's decoding step, with a snapshot of its weights."""

    def __init__(self, model: Any) -> None:
        config, stack = model.config, model.model
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = stack.layers[0].self_attn.head_dim
        self.embeddings = stack.embed_tokens.weight.detach()
        self.rotary = stack.rotary_emb
        self.layers = [self._layer(layer) for layer in stack.layers]
        self.norm = _Norm(stack.norm)
        self.head = Product(model.lm_head, norm=stack.norm)
        self.verified = False

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        normed = hasattr(attention, "q_norm")
        return _Layer(
            before_attention=_Norm(layer.input_layernorm),
            qkv=Product(attention.q_proj, attention.k_proj, attention.v_proj, norm=layer.input_layernorm),
            head_norms=_HeadNorms(attention, self.heads, self.kv_heads) if normed else None,
            scaling=attention.scaling,
            out=Product(attention.o_proj),
            before_mlp=_Norm(layer.post_attention_layernorm),
            gate=Product(mlp.gate_proj, norm=layer.post_attention_layernorm),
            up=Product(mlp.up_proj, norm=layer.post_attention_layernorm),
            down=Product(mlp.down_proj),
        )

    def step(self, cache: SharedPromptCache, tokens_b: torch.Tensor) -> torch.Tensor:
        """Append a token to every row and return the logits of the next, `[b, V]`."""
        logits_bV = self.peek(cache, tokens_b)
        cache.end()
        return logits_bV

    def peek(self, cache: SharedPromptCache, tokens_b: torch.Tensor) -> torch.Tensor:
        """The same without advancing the cache: the next step overwrites this one."""
        cache.begin()
        rows, spare = len(tokens_b), -len(tokens_b) % ROW_MULTIPLE
        x_bE = embedding(pad(tokens_b, (0, spare)), self.embeddings)
        cos_b1D, sin_b1D = self.rotary(x_bE, pad(cache.positions(), (0, 0, 0, spare)))
        half = self.head_dim // 2
        sin_b1D = torch.cat([-sin_b1D[..., :half], sin_b1D[..., half:]], dim=-1)
        rotated = self.heads + self.kv_heads
        for place, layer in enumerate(self.layers):
            qkv_bAD = layer.qkv(layer.before_attention(x_bE)).view(len(x_bE), -1, self.head_dim)
            qk_bAD = qkv_bAD[:, :rotated]
            if layer.head_norms is not None:
                qk_bAD = layer.head_norms(qk_bAD)
            other_half = qk_bAD.reshape(*qk_bAD.shape[:2], 2, half).flip(-2).flatten(-2)
            qk_bAD = torch.addcmul(qk_bAD * cos_b1D, other_half, sin_b1D)[:, :, None]
            cached = cache.layers[place]
            cached.update(qk_bAD[:rows, self.heads :], qkv_bAD[:rows, rotated:, None])
            attended = cache.attend(cached, qk_bAD[:rows, : self.heads], layer.scaling).reshape(rows, -1)
            x_bE = layer.out.with_other(pad(attended, (0, 0, 0, spare)) if spare else attended, x_bE, "add")
            normed_bE = layer.before_mlp(x_bE)
            inner = layer.up.with_other(normed_bE, layer.gate(normed_bE, "swish"), "mul")
            x_bE = layer.down.with_other(inner, x_bE, "add")
        return self.head(self.norm(x_bE))[:rows]

    def compare(self, packed_bV: torch.Tensor, own_bV: torch.Tensor) -> bool:
        """Whether the logits of `peek` are the model's own; sets `verified`."""
        self.verified = bool((packed_bV - own_bV).norm() <= TOLERANCE * own_bV.norm())
        if not self.verified:
            _log_once("the first logits from them differ from the model's own")
        return self.verified


def _log_once(reason: str) -> None:
    log_once(
        logger, "Completions are sampled through the model's modules, not from packed weights: %s.", reason, shown=False
    )


@torch.no_grad()
def plain_decoder(model: Any) -> PlainDecoder | None:
    """The decoding step of a supported model in float32 on a CPU; else None, with a line in the log on a CPU.

    A model with adapters, hooks, replaced forwards, compiled or sharded modules, autocast or modules of other classes
    is computed through its modules.
    """
    if model.device.type != "cpu":
        return None
    reason = _unsupported_reason(model)
    if reason is None:
        return PlainDecoder(model)
    _log_once(reason)
    return None


def _unsupported_reason(model: Any) -> str | None:
    name = type(model).__name__
    if hasattr(model, "peft_config"):
        return "the model has adapters"
    if type(model) not in PLAIN:
        return f"they are for {', '.join(kind.__name__ for kind in PLAIN)}, and this is {name}"
    if torch.is_autocast_enabled("cpu"):
        return "they are for float32, and this is mixed precision"
    available = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    if not available or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this PyTorch comes without oneDNN"
    if torch_modules._has_any_global_hook():  # type: ignore[no-untyped-call]
        return "there are global module hooks"
    for path, module in model.named_modules():
        if not _plain_module(module, type(model).__module__):
            return f"{path or name} is not as {name} defines it"
    for path, parameter in model.named_parameters():
        kind = (type(parameter), parameter.device.type, parameter.dtype, parameter.layout)
        if kind != (torch.nn.Parameter, "cpu", torch.float32, torch.strided):
            return f"they are for float32, and {path} is {parameter.dtype} as {type(parameter).__name__}"
    if len(model.model.layers) != model.config.num_hidden_layers:
        return f"{name} has other layers than its config says"
    return None


def _plain_module(module: torch.nn.Module, origin: str) -> bool:
    """Whether this is a module as the model's class makes it, with no hook or wrapper that changes its output."""
    kind = type(module)
    known = (torch.nn.Linear, torch.nn.Embedding, torch.nn.ModuleList, torch.nn.SiLU, SiLUActivation)
    if kind not in known and kind.__module__ != origin:
        return False
    if isinstance(module, torch.nn.Embedding) and module.max_norm is not None:
        return False
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    # TRL and accelerate wrap a model's forward with functools.wraps; what they add is not for decoding, and the first
    # step goes through it anyway.
    own = inspect.unwrap(getattr(module.forward, "__func__", module.forward)) is inspect.unwrap(kind.forward)
    return all(map(_only_for_gradients, hooks)) and own and module._compiled_call_impl is None


def _only_for_gradients(hook: Any) -> bool:
    """Whether this is the hook that transformers adds to embeddings for gradient checkpointing."""
    name = (getattr(hook, "__module__", ""), getattr(hook, "__name__", ""))
    return name == (transformers.modeling_utils.__name__, "make_inputs_require_grads")


@contextmanager
def column_major(model: Any) -> Iterator[None]:
    """Context manager: on a CPU, the weights of linear layers are stored column-major; their values do not change.

    A decoding step multiplies a handful of rows with every weight of the model, and is bound by reading the weights;
    in this order it takes a quarter less, but in mixed precision far more. Weights that several modules share are left
    alone, as are those on other devices and in other dtypes than float32. On exit, each parameter has its own storage
    back.

    Args:
        model: its parameters must not be sharded, and nothing else may change them in the meantime.
    """
    shared = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    own: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    for module in model.modules():
        weight = module.weight if type(module) is torch.nn.Linear else None
        if weight is None or id(weight) in shared or type(weight) is not torch.nn.Parameter:
            continue
        shared.add(id(weight))
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous():
            own.append((weight, weight.data))
    try:
        for weight, data in own:
            weight.data = data.t().contiguous().t()
        yield
    finally:
        for weight, data in own:
            weight.data = data


def is_mixed_precision(model: Any, forward: Callable[[], None]) -> bool:
    """Run the first forward, and return whether that was in mixed precision, which accelerate enables inside of a
    forward only."""
    found: list[bool] = []
    kind = model.device.type
    embeddings = base_model(model).get_input_embeddings()
    with embeddings.register_forward_pre_hook(lambda *_: found.append(torch.is_autocast_enabled(kind))):
        forward()
    return any(found)
