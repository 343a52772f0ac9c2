"""vLLM in this process: what Covey needs beyond TRL. The trainer's side is `training/trl/engine.py`.

vLLM is imported only when it is used: without it, Covey trains with its local engine.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from covey.errors import EngineError
from covey.model.reasoning_vocab.token_map import MAP_FILE
from covey.rollout.engine import NamedWeights

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Head dimensions that vLLM's CPU kernels support."""

_CPU_BLOCK = 128
"""Tokens in a block of vLLM's KV cache on a CPU."""


def installed() -> bool:
    """Whether vLLM can be imported; it is not imported."""
    return find_spec("vllm") is not None


def cpu_options(
    config: Any, *, max_model_len: int | None, max_num_seqs: int, gpu_memory_utilization: float, dtype: str, **_: Any
) -> dict[str, Any]:
    """Further options of `vllm.LLM` on a CPU: no compilation, and no more KV cache than the sequences can fill.

    By default vLLM reserves its share of the machine's memory and fills all of it with zeros.

    Args:
        config: transformers' config of the model.
        max_model_len: longest sequence in tokens; None means the model's maximum.
        max_num_seqs: concurrent sequences.
        gpu_memory_utilization: largest share of the memory for the KV cache.
        dtype: of the engine.

    Raises:
        EngineError: vLLM's CPU attention does not support the model's head dimension.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    if size not in CPU_HEAD_SIZES:
        raise EngineError(
            f"The model's attention heads have dimension {size}, and vLLM on a CPU supports "
            f"{', '.join(map(str, CPU_HEAD_SIZES))} only: use another model, or training.use_vllm=false."
        )
    length = max_model_len or text.max_position_embeddings
    blocks = max_num_seqs * (-(-length // _CPU_BLOCK) + 1) + 1
    width = 4 if dtype == "float32" else 2
    needed = 2 * text.num_hidden_layers * heads * size * width * _CPU_BLOCK * blocks
    most = int(gpu_memory_utilization * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return {"enforce_eager": True, "kv_cache_memory_bytes": min(needed, most)}


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Context manager: a request that vLLM rejects becomes an `EngineError` that begins with `what`."""
    from vllm import exceptions

    known = (ValueError, getattr(exceptions, "VLLMClientError", ValueError))  # the second is not a ValueError
    try:
        yield
    except known as error:
        raise EngineError(f"{what}: {' '.join(str(error).split())}") from error


def start(**options: Any) -> Any:
    """Start `vllm.LLM` with these options. Raises an `EngineError` if it does not start."""
    from vllm import LLM

    processors = thinking_processors(str(options.get("model", "")))
    if processors:
        options["logits_processors"] = [*(options.get("logits_processors") or ()), *processors]
    try:
        return LLM(**options)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise EngineError(f"vLLM cannot be started in this process: {' '.join(str(error).split())}") from error


def thinking_processors(model: str) -> list[str]:
    """The logits processors that vLLM needs for a model: one for a folder with a reasoning vocabulary.

    They are passed by name rather than registered as an entry point: with async scheduling, vLLM passes the latest
    tokens only to processors that were given by name.
    """
    return ["covey.rollout.vllm.thinking:ThinkingMask"] if (Path(model) / MAP_FILE).is_file() else []


def load_weights(model_runner: Any, named: NamedWeights) -> None:
    """Load weights into an engine on the CPU, whose linear layers keep a packed copy and drop the original.

    vLLM's own reload unpacks, loads and packs each layer, except for an embedding: a tied output head shares its
    weight, is never loaded itself, and would keep using the old packed copy. So layers that have both a weight and a
    packed copy are packed again.

    Args:
        model_runner: of the worker.
        named: all weights, tied ones once. The tensors must not change until this returns.
    """
    # At each sync it warns of every layer without weights to load, such as tied heads and rotary embeddings.
    reload_logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    level = reload_logger.level
    reload_logger.setLevel(logging.ERROR)
    try:
        model_runner.reload_weights(weights_iterator=iter(named))
    finally:
        reload_logger.setLevel(level)
    for module in model_runner.get_model().modules():
        method = getattr(module, "quant_method", None)
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and method is not None and weight is not None and weight.numel():
            method.process_weights_after_loading(module)


def load_into(llm: Any, named: NamedWeights) -> None:
    """`load_weights` for the engine of this process, and reset its prefix cache."""
    load_weights(llm.llm_engine.model_executor.driver_worker.model_runner, named)
    llm.reset_prefix_cache()


def adapter_request(name: str, number: int, folder: Path) -> Any:
    """vLLM's request for an adapter.

    Args:
        name: of the adapter; vLLM tells cached prefixes apart by it.
        number: of the adapter, from 1, no other's.
        folder: with its weights and config.
    """
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, number, str(folder))


def prompt_logps(llm: Any, rows: Sequence[Sequence[int]], adapter: Any = None) -> list[list[float]]:
    """Log-probabilities of each row's tokens after the first, by the engine's model.

    Sampling settings (temperature, masks) have no effect, and no random number is drawn.

    Args:
        llm: the engine.
        rows: token ids.
        adapter: from `adapter_request`; None for the model without one.
    """
    from vllm import SamplingParams

    outputs = llm.generate(
        [{"prompt_token_ids": list(row)} for row in rows],
        SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False),
        use_tqdm=False,
        lora_request=adapter,
    )
    return [
        [at[token].logprob for token, at in zip(row[1:], output.prompt_logprobs[1:], strict=True)]
        for row, output in zip(rows, outputs, strict=True)
    ]
