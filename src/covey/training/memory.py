"""How much memory training and sampling will need, estimated from a model's config before any weight is loaded.

The estimate counts what is certain (weights, gradients, the optimiser's moments, the reference, the key/value cache,
the logits) and what is usual (activations, after Korthikanti et al. 2022, arXiv 2205.05198, section 4). It leaves out
the allocator's slack: allow a fifth more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covey.config import Config

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_BYTES_PER_HIDDEN_VALUE = 17  # activations kept per layer and hidden value, in values: 34 bytes at two bytes each


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes, by what they are for."""

    parameters: int
    """How many parameters the model has."""
    trained: int
    """How many of them are trained."""
    weights: int
    """The weights, and the reference model's where there is one."""
    optimiser: int
    """Gradients and the optimiser's two moments."""
    activations: int
    """What the backward pass of one micro-batch keeps, the logits among it."""
    cache: int
    """The key/value cache of one generation batch."""

    @property
    def training(self) -> int:
        """What the training part of a step needs at most."""
        return self.weights + self.optimiser + self.activations

    @property
    def rollout(self) -> int:
        """What sampling needs at most; gradients are freed by then, moments are not."""
        return self.weights + self.optimiser + self.cache


def estimate_memory(config: Config, model: PretrainedConfig, prompt_length: int) -> MemoryEstimate:
    """Estimate what one process needs.

    Args:
        config: the run.
        model: the model's own config.
        prompt_length: tokens of a long prompt of the data.
    """
    parameters, head = _count_parameters(model)
    text = model.get_text_config()
    wanted = config.model.reasoning_vocab_size
    copies = head if isinstance(wanted, str) else wanted
    parameters += copies * int(text.hidden_size) * (1 if text.tie_word_embeddings else 2)
    head += copies
    training, lora = config.training, config.model.lora
    width = _bytes_per_weight(config, model)
    trained = _adapter_parameters(lora.effective_rank, text) if lora.active else parameters
    stored = parameters * width * (0.5 if config.model.load_in_8bit else 0.25 if config.model.load_in_4bit else 1)
    reference = stored if training.beta and not lora.active else 0  # adapters are switched off to get the reference
    state_width = 4 if lora.active else width
    length = prompt_length + training.max_completion_length
    rows = training.per_device_train_batch_size
    layers, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    value_width = 2 if training.bf16 or training.fp16 or width == 2 else 4
    per_layer = rows * length * hidden * value_width
    kept = layers * per_layer + _BYTES_PER_HIDDEN_VALUE * per_layer
    if not training.gradient_checkpointing:
        kept = layers * _BYTES_PER_HIDDEN_VALUE * per_layer
    logits = 3 * rows * training.max_completion_length * head * 4  # the logits, their softmax, their gradient
    generated = training.generation_batch
    return MemoryEstimate(
        parameters=parameters,
        trained=trained,
        weights=int(stored + reference),
        optimiser=3 * trained * state_width,
        activations=int(kept + logits),
        cache=0 if training.use_vllm else generated * length * _cache_bytes_per_token(text, value_width),
    )


def available_memory() -> tuple[int, str]:
    """Bytes of the device that this process would train on, and what it is."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1]), torch.cuda.get_device_name()
    return _main_memory(), "main memory"


def _main_memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(name, encoding="ascii") as file:  # noqa: PTH123  a kernel file, not a path of anybody's
                limit = file.read().strip()
        except OSError:
            continue
        if limit.isdigit():
            total = min(total, int(limit))
    return total


def _count_parameters(model: PretrainedConfig) -> tuple[int, int]:
    """All parameters, counted on an empty model, and the size of the vocabulary."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(model)
    return sum(p.numel() for p in empty.parameters()), int(model.get_text_config().vocab_size)


def _bytes_per_weight(config: Config, model: PretrainedConfig) -> int:
    dtype: Any = config.model.dtype
    if dtype in (None, "auto"):
        dtype = str(getattr(model, "dtype", None) or "float32").removeprefix("torch.") if dtype == "auto" else "float32"
    return _BYTES.get(str(dtype), 4)


def _adapter_parameters(rank: int, text: Any) -> int:
    """About what adapters on all linear layers hold: rank times the sum of each layer's two sides."""
    hidden, inner = int(text.hidden_size), int(getattr(text, "intermediate_size", 4 * text.hidden_size))
    heads = int(text.num_attention_heads)
    size = int(getattr(text, "head_dim", None) or hidden // heads)
    queries = heads * size
    keys = int(getattr(text, "num_key_value_heads", heads)) * size
    sides = 2 * (hidden + queries) + 2 * (hidden + keys) + 3 * (hidden + inner)
    return int(text.num_hidden_layers) * rank * sides


def _cache_bytes_per_token(text: Any, width: int) -> int:
    heads = int(text.num_attention_heads)
    size = int(getattr(text, "head_dim", None) or int(text.hidden_size) // heads)
    keys = int(getattr(text, "num_key_value_heads", heads))
    return 2 * int(text.num_hidden_layers) * keys * size * width
