"""The memory of training and sampling, estimated from a model's config before weights are loaded.

The estimate counts weights, gradients, optimiser moments, the reference, the KV cache, the tiles of the head, and what
autograd saves in a layer with pre-norms and a gated MLP. It leaves out the allocator's overhead: allow a fifth more.
`docs/memory.md` compares it with measured runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from covey.config import Config
from covey.config.vllm import colocated_share

if TYPE_CHECKING:
    from transformers import PretrainedConfig


_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TILE_TOKENS, _TILE_WORDS = 4096, 32768
"""Largest tile of the head, on TRL's path and on Covey's."""
_TILES_WITHOUT_TRITON = 9
"""Without Triton, the steps of a tile's backward pass each leave a tensor of its size."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by purpose."""

    parameters: int
    """Number of parameters."""
    trained: int
    """Number of trained parameters."""
    weights: int
    """Of the policy and the reference model, if any."""
    stored: int
    """Of the weights that a checkpoint holds: the trained ones with adapters, else all."""
    gradients: int
    moments: int
    """The optimiser's two moments of each trained parameter."""
    activations: int
    """Saved by one forward pass for its backward pass."""
    head: int
    """Of the head's forward and backward pass."""
    accumulates: bool
    """Whether gradients of an earlier pass are kept during a forward pass."""
    cache: int
    """Of one generation batch: KV cache, newest logits, and weights prepared for sampling."""

    @property
    def training(self) -> int:
        """Peak of the training part of a step.

        Activations are freed as gradients are computed: only one of the two exists in full, unless gradients of an
        earlier pass are kept.
        """
        passing = self.activations + self.head
        return (
            self.weights
            + self.moments
            + (passing + self.gradients if self.accumulates else max(passing, self.gradients))
        )

    @property
    def parts(self) -> str:
        """The parts of `training` in words."""
        return (
            f"weights {gigabytes(self.weights)}, gradients {gigabytes(self.gradients)}, optimiser "
            f"{gigabytes(self.moments)}, activations {gigabytes(self.activations)}, head {gigabytes(self.head)}"
        )

    @property
    def rollout(self) -> int:
        """Peak of sampling; gradients are freed by then, moments are not."""
        return self.weights + self.moments + self.cache


def estimate_memory(
    config: Config, model: PretrainedConfig | SimpleNamespace, prompt_length: int, *, on_gpu: bool | None = None
) -> MemoryEstimate:
    """Estimate the memory of one process.

    Args:
        model: the model's own config, or the values of a dense decoder's `config.json`, which need no PyTorch.
        prompt_length: tokens of a long prompt of the data.
        on_gpu: whether the process trains on a GPU; None asks PyTorch.
    """
    text: Any = model if isinstance(model, SimpleNamespace) else model.get_text_config()
    parameters, *layer = _described(text) if isinstance(model, SimpleNamespace) else _counted(model, text)
    words = int(text.vocab_size)
    wanted = config.model.reasoning_vocab_size
    copies = words if isinstance(wanted, str) else wanted
    parameters += copies * int(text.hidden_size) * (1 if text.tie_word_embeddings else 2)
    words += copies
    training, lora = config.training, config.model.lora
    dtype = config.model.dtype or "float32"
    if dtype == "auto":
        dtype = str(getattr(model, "dtype", None) or "float32").removeprefix("torch.")
    width = _BYTES.get(str(dtype), 4)
    trained = _adapter_parameters(lora.effective_rank, text) if lora.active else parameters
    stored = parameters * width * (0.5 if config.model.load_in_8bit else 0.25 if config.model.load_in_4bit else 1)
    reference = stored if training.beta and not lora.active else 0  # the reference is the model without adapters
    state_width = 4 if lora.active else width
    gpu = _trains_on_gpu(training) if on_gpu is None else on_gpu
    mixed = gpu and width == 4 and bool(training.fp16 or training.bf16 or training.bf16 is None)  # None: TRL takes bf16
    value_width = 2 if mixed or width == 2 else 4
    # The layers' weights in another layout on a CPU; cast once in mixed precision.
    prepared = parameters * 4 if config.speed.shared_prefill and not gpu else parameters * 2 * mixed
    tokens, scored = _tokens_of_a_pass(config, prompt_length)
    budget = config.speed.max_tokens
    return MemoryEstimate(
        parameters=parameters,
        trained=trained,
        weights=int(stored + reference),
        stored=trained * state_width if lora.active else int(stored),
        gradients=trained * state_width,
        moments=2 * trained * state_width,
        activations=_activations(
            text, tokens, value_width, *layer, mixed=mixed, checkpointing=training.gradient_checkpointing
        ),
        head=_head(scored, words, int(text.hidden_size), value_width, gpu=gpu, trains_it=not lora.active),
        accumulates=training.gradient_accumulation_steps > 1 or (budget is not None and tokens >= budget),
        cache=0 if training.use_vllm else _sampling(config, text, words, prompt_length, value_width) + prepared,
    )


def _trains_on_gpu(training: Any) -> bool:
    import torch

    return bool(torch.cuda.is_available() and not training.use_cpu)


def _tokens_of_a_pass(config: Config, prompt_length: int) -> tuple[int, int]:
    """Tokens of one forward pass, and how many of them the head scores."""
    training, speed = config.training, config.speed
    rows, group = training.per_device_train_batch_size, training.num_generations
    if config.sft.rows is not None:  # the examples are whole
        return rows * prompt_length, rows * prompt_length
    length = training.max_completion_length
    prompts = rows
    if speed.shared_scoring:  # groups that do not divide the micro-batch are split at its two ends
        prompts = -(-rows // group) if rows % group == 0 or group % rows == 0 else min(rows, rows // group + 2)
    tokens, scored = prompts * prompt_length + rows * length, rows * length
    if speed.max_tokens is not None and tokens > speed.max_tokens:
        tokens = max(speed.max_tokens, prompt_length + length)  # a row above the budget is its own chunk
        scored = min(scored, max(length, tokens - prompt_length))
    return tokens, scored


def _activations(
    text: Any, tokens: int, width: int, matrices: int, norms: int, *, mixed: bool, checkpointing: bool
) -> int:
    """Bytes that autograd saves: of every layer, or each layer's input and all of the one being recomputed.

    Of a layer it saves the inputs of its matrix products (of attention and the MLP, queries, keys, values, the output
    of attention, and four tensors of the MLP's inner size), and of every norm its input in float32 and its output
    before the weight. In mixed precision the residual stream is float32, each of the five products that read a block's
    input has its own copy, and the weights have one.
    """
    hidden, inner = int(text.hidden_size), _inner(text)
    queries, keys = _attention_widths(text)
    values = (5 if mixed else 2) * hidden + 4 * inner + 2 * queries + 2 * keys
    stream = 4 if mixed else width
    per_layer = tokens * (values * width + norms * (4 + stream))
    layers = int(text.num_hidden_layers)
    copies = layers * width * matrices if mixed else 0
    return copies + (layers * tokens * hidden * stream + per_layer if checkpointing else layers * per_layer)


def _head(scored: int, words: int, hidden: int, width: int, *, gpu: bool, trains_it: bool) -> int:
    """Bytes of the head's tiles and of its gradients in float32."""
    tile = min(scored, _TILE_TOKENS) * min(words, _TILE_WORDS)
    tiles = tile * width if gpu else tile * 4 * _TILES_WITHOUT_TRITON
    return tiles + scored * hidden * 4 + (words * hidden * 4 if trains_it else 0)


def _sampling(config: Config, text: Any, words: int, prompt_length: int, width: int) -> int:
    training, rows = config.training, config.training.generation_batch
    prompts = -(-rows // training.num_generations) if config.speed.shared_prefill else rows
    cached = prompts * prompt_length + rows * training.max_completion_length
    per_token = 2 * int(text.num_hidden_layers) * _attention_widths(text)[1] * width  # of keys and values
    return int(cached * per_token + 3 * rows * words * 4)


def available_memory() -> tuple[int, str]:
    """Bytes of the device that this process would train on, and its name."""
    import torch

    from covey.model.device import main_memory

    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1]), torch.cuda.get_device_name()
    return main_memory(), "main memory"


def beside_vllm(config: Config, available: int, device: str) -> tuple[int, str, str]:
    """What vLLM leaves of a device's memory: bytes, the device in words, and advice; the last is empty without it."""
    share = colocated_share(config)
    if share is None or not _trains_on_gpu(config.training) or config.training.vllm_enable_sleep_mode:
        return available, device, ""
    advice = "Give vLLM a GPU of its own (training.vllm_mode=server), or lower training.vllm_gpu_memory_utilization. "
    return int(available * (1 - share)), f"{device}, beside the {share:.0%} that vLLM takes,", advice


def _counted(model: PretrainedConfig, text: Any) -> tuple[int, int, int]:
    """Parameters, those of one layer's matrices, and the width of its norms together; counted on the meta device."""
    from torch import nn
    from transformers import AutoModelForCausalLM

    from covey.model.device import on_meta

    with on_meta():
        empty: nn.Module = AutoModelForCausalLM.from_config(model)
    layer = next((module[0] for module in empty.modules() if isinstance(module, nn.ModuleList) and len(module)), empty)
    (queries, keys), hidden, norms = _attention_widths(text), int(text.hidden_size), 0
    for name, module in layer.named_modules():
        if "norm" in type(module).__name__.lower() and getattr(module, "weight", None) is not None:
            norms += hidden if len(module.weight) == hidden else keys if "k_norm" in name else queries
    in_layer = (p.numel() for p in layer.parameters() if p.dim() > 1)
    return sum(p.numel() for p in empty.parameters()), sum(in_layer), norms


def _described(text: Any) -> tuple[int, int, int]:
    """What `_counted` gives, for a decoder with pre-norms and a gated MLP; without biases and the norms' weights."""
    (queries, keys), hidden = _attention_widths(text), int(text.hidden_size)
    matrices, ends = 2 * hidden * (queries + keys) + 3 * hidden * _inner(text), 1 if text.tie_word_embeddings else 2
    return int(text.num_hidden_layers) * matrices + ends * int(text.vocab_size) * hidden, matrices, 2 * hidden


def gigabytes(count: int) -> str:
    """Bytes in words."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def _adapter_parameters(rank: int, text: Any) -> int:
    """Approximate parameters of adapters on all linear layers: rank times the sum of each one's two sides."""
    hidden, inner = int(text.hidden_size), _inner(text)
    queries, keys = _attention_widths(text)
    sides = 2 * (hidden + queries) + 2 * (hidden + keys) + 3 * (hidden + inner)
    return int(text.num_hidden_layers) * rank * sides


def _inner(text: Any) -> int:
    """The inner size of the MLP."""
    return int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size)


def _attention_widths(text: Any) -> tuple[int, int]:
    """Widths of all queries of a token, and of all its keys (equal to that of its values)."""
    heads = int(text.num_attention_heads)
    size = int(getattr(text, "head_dim", None) or int(text.hidden_size) // heads)
    return heads * size, int(getattr(text, "num_key_value_heads", None) or heads) * size
