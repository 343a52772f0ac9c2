"""One step of a plain decoder on a CPU, from its weights rather than through its modules.

With a small model and a handful of rows a good part of a step goes into getting from module to module and into
products that wait for weights. Here the weights lie packed as oneDNN reads them fastest, the queries, keys and values
come from one product, and the activation and the sums after a product are part of it. The packed weights are copies,
made when sampling begins and let go when it ends; the model itself is not touched.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from torch.nn.functional import embedding, pad
from torch.nn.modules import module as torch_modules
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM
from transformers.activations import SiLUActivation

from covey.rollout.prompt_cache import SharedPromptCache

logger = logging.getLogger(__name__)

PLAIN = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
"""Models of the one shape that is written out here. Children of these classes may do something else."""

PACKED_FOR = 16
"""Rows that the packed weights are laid out for; measured, they are the fastest layout from 2 to 64 rows."""

TOGETHER = 8
"""Products are computed for a multiple of so many rows: oneDNN compiles a program of about 0.25 MB for each number of
rows that a product meets, and keeps it, and a batch whose completions end one by one meets every number."""

ALLOWED = 1e-4
"""How far the logits of the first step may lie from the model's own, as a share of these."""


class Product:
    """A linear layer, or several that read the same, with packed weights; those of the norm before are part of them."""

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
    """Root mean square norm over the last axis, but for its weights."""

    def __init__(self, module: Any) -> None:
        self.share = 1 / len(module.weight)
        self.eps = torch.tensor(float(module.variance_epsilon))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # torch's own rms_norm takes nine kernels on a CPU
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self.eps, length, length, value=self.share).rsqrt_()


class _HeadNorms:
    """The norms of queries and keys, in one go over all heads."""

    def __init__(self, attention: Any, heads: int, kv_heads: int) -> None:
        q, k = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
        self.weight_Hd = torch.cat([q.expand(heads, -1), k.expand(kv_heads, -1)])
        self.plain = _Norm(attention.q_norm)

    def __call__(self, x_bHd: torch.Tensor) -> torch.Tensor:
        return self.plain(x_bHd).mul_(self.weight_Hd)


@dataclass(slots=True)
class _Layer:
    """What one decoder layer computes with."""

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
    """A model's decoding step. Its weights are those at the time when this was made."""

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
        self.trusted = False

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
        """Append a token to every row and give the logits of the next, `[b, V]`."""
        logits_bV = self.look(cache, tokens_b)
        cache.end()
        return logits_bV

    def look(self, cache: SharedPromptCache, tokens_b: torch.Tensor) -> torch.Tensor:
        """The same without moving on: the next step writes to the same place."""
        cache.begin()
        rows, spare = len(tokens_b), -len(tokens_b) % TOGETHER
        x_bI = embedding(pad(tokens_b, (0, spare)), self.embeddings)
        cos_b1d, sin_b1d = self.rotary(x_bI, pad(cache.positions_b1(), (0, 0, 0, spare)))
        half = self.head_dim // 2
        sin_b1d = torch.cat([-sin_b1d[..., :half], sin_b1d[..., half:]], dim=-1)
        turned = self.heads + self.kv_heads
        for place, layer in enumerate(self.layers):
            qkv_bHd = layer.qkv(layer.before_attention(x_bI)).view(len(x_bI), -1, self.head_dim)
            qk_bHd = qkv_bHd[:, :turned]
            if layer.head_norms is not None:
                qk_bHd = layer.head_norms(qk_bHd)
            other_half = qk_bHd.reshape(*qk_bHd.shape[:2], 2, half).flip(-2).flatten(-2)
            qk_bHd = torch.addcmul(qk_bHd * cos_b1d, other_half, sin_b1d)[:, :, None]
            kept = cache.layers[place]
            kept.update(qk_bHd[:rows, self.heads :], qkv_bHd[:rows, turned:, None])
            seen = cache.attend(kept, qk_bHd[:rows, : self.heads], layer.scaling).reshape(rows, -1)
            x_bI = layer.out.with_other(pad(seen, (0, 0, 0, spare)) if spare else seen, x_bI, "add")
            normed_bI = layer.before_mlp(x_bI)
            inner = layer.up.with_other(normed_bI, layer.gate(normed_bI, "swish"), "mul")
            x_bI = layer.down.with_other(inner, x_bI, "add")
        return self.head(self.norm(x_bI))[:rows]

    def compare(self, found_bV: torch.Tensor, right_bV: torch.Tensor) -> bool:
        """Whether what `look` found is what the model says; from then on `trusted`."""
        self.trusted = bool((found_bV - right_bV).norm() <= ALLOWED * right_bV.norm())
        if not self.trusted:
            _say_once("the first logits that these give are not the model's own")
        return self.trusted


@cache
def _say_once(reason: str) -> None:
    logger.warning("Completions are sampled through the model's modules, not from packed weights: %s.", reason)


@torch.no_grad()
def plain_decoder(model: Any) -> PlainDecoder | None:
    """The decoding step of a model of a plain shape in float32 on a CPU; None for every other, with a line in the log
    where it is on a CPU.

    Adapters, hooks, replaced forwards, compiled or sharded modules, autocast and modules of other classes all make a
    model one that has to be computed through its modules.
    """
    if model.device.type != "cpu":
        return None
    reason = _refusal(model)
    if reason is None:
        return PlainDecoder(model)
    _say_once(reason)
    return None


def _refusal(model: Any) -> str | None:
    name = type(model).__name__
    if hasattr(model, "peft_config"):
        return "the model has adapters"
    if type(model) not in PLAIN:
        return f"they are for {', '.join(kind.__name__ for kind in PLAIN)}, and this is {name}"
    if torch.is_autocast_enabled("cpu"):
        return "they are for float32, and this is mixed precision"
    there = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    if not there or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this PyTorch comes without oneDNN"
    if torch_modules._has_any_global_hook():  # type: ignore[no-untyped-call]
        return "hooks listen to every module"
    for path, module in model.named_modules():
        if not _plain_module(module, type(model).__module__):
            return f"{path or name} is not as {name} makes it"
    for path, parameter in model.named_parameters():
        if not _plain_parameter(parameter):
            return f"they are for float32, and {path} is {parameter.dtype} as {type(parameter).__name__}"
    if len(model.model.layers) != model.config.num_hidden_layers:
        return f"{name} has other layers than its config says"
    return None


def _plain_module(module: torch.nn.Module, home: str) -> bool:
    """Whether this is a module as the model's class makes it, with nothing hung onto it that changes its outcome."""
    kind = type(module)
    known = (torch.nn.Linear, torch.nn.Embedding, torch.nn.ModuleList, torch.nn.SiLU, SiLUActivation)
    if kind not in known and kind.__module__ != home:
        return False
    if isinstance(module, torch.nn.Embedding) and module.max_norm is not None:
        return False
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    # TRL and accelerate wrap a model's forward and say what they wrapped; what they add is not for decoding, and the
    # first step is computed through it all the same.
    own = inspect.unwrap(getattr(module.forward, "__func__", module.forward)) is inspect.unwrap(kind.forward)
    return all(map(_only_for_gradients, hooks)) and own and module._compiled_call_impl is None


def _only_for_gradients(hook: Any) -> bool:
    """Whether this is what transformers hangs onto embeddings for gradient checkpointing; each caller adds another."""
    name = (getattr(hook, "__module__", ""), getattr(hook, "__name__", ""))
    return name == (transformers.modeling_utils.__name__, "make_inputs_require_grads")


def _plain_parameter(parameter: torch.nn.Parameter) -> bool:
    kind = (type(parameter), parameter.device.type, parameter.dtype, parameter.layout)
    return kind == (torch.nn.Parameter, "cpu", torch.float32, torch.strided)
