"""vLLM in this process, as far as Covey needs more of it than TRL asks for. The trainer's side is `training/engine.py`.

Nothing here imports vLLM before it is used: without it, Covey trains with its own rollout.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from covey.errors import EngineError
from covey.model.reasoning_vocab.token_map import MAP_FILE

Named = Iterable[tuple[str, torch.Tensor]]
"""Weights under the names that a checkpoint has them under."""

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Sizes of an attention head that vLLM's kernels for the CPU take."""

_CPU_BLOCK = 128
"""Tokens in a block of vLLM's cache on a CPU."""


def installed() -> bool:
    """Whether vLLM can be imported; it is not imported."""
    return find_spec("vllm") is not None


def cpu_options(
    config: Any, *, max_model_len: int | None, max_num_seqs: int, gpu_memory_utilization: float, dtype: str, **_: Any
) -> dict[str, Any]:
    """What `vllm.LLM` is told on a CPU besides: no compiling, and no more cache than the sequences can fill.

    Left alone, vLLM reserves its share of the machine's memory and writes zeros to all of it.

    Args:
        config: transformers' config of the model.
        max_model_len: longest sequence in tokens; None means as long as the model can read.
        max_num_seqs: sequences at a time.
        gpu_memory_utilization: share of the memory that the cache may take in any case.
        dtype: number type of the engine.

    Raises:
        EngineError: vLLM's attention for the CPU cannot compute this model.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    if size not in CPU_HEAD_SIZES:
        raise EngineError(
            f"The model's attention heads have {size} numbers, and vLLM on a CPU takes those of "
            f"{', '.join(map(str, CPU_HEAD_SIZES))} only: use another model, or training.use_vllm=false."
        )
    length = max_model_len or text.max_position_embeddings
    blocks = max_num_seqs * (-(-length // _CPU_BLOCK) + 1) + 1
    width = 4 if dtype == "float32" else 2
    needed = 2 * text.num_hidden_layers * heads * size * width * _CPU_BLOCK * blocks
    most = int(gpu_memory_utilization * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return {"enforce_eager": True, "kv_cache_memory_bytes": min(needed, most)}


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Within, what vLLM will not take becomes an `EngineError` that begins with `what`."""
    from vllm import exceptions

    known = (ValueError, getattr(exceptions, "VLLMClientError", ValueError))  # the second one is no ValueError
    try:
        yield
    except known as error:
        raise EngineError(f"{what}: {' '.join(str(error).split())}") from error


def start(**options: Any) -> Any:
    """`vllm.LLM` with these options.

    Raises:
        EngineError: it does not start.
    """
    from vllm import LLM

    masks = thinking_masks(str(options.get("model", "")))
    if masks:
        options["logits_processors"] = [*(options.get("logits_processors") or ()), *masks]
    try:
        return LLM(**options)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise EngineError(f"vLLM cannot be started in this process: {' '.join(str(error).split())}") from error


def thinking_masks(model: str) -> list[str]:
    """The logits processors that vLLM needs for a model: one for a folder with a reasoning vocabulary.

    They are named rather than announced by an entry point: where vLLM schedules ahead, it tells only processors that it
    was given by name which tokens were drawn last.
    """
    return ["covey.rollout.vllm_thinking:ThinkingMask"] if (Path(model) / MAP_FILE).is_file() else []


def load_weights(model_runner: Any, named: Named) -> None:
    """Put weights into an engine on the CPU, whose linear layers keep a packed copy and drop what they packed.

    vLLM's own reload unpacks, loads and packs each layer again, all but an embedding: it shares its weight with a tied
    output head, which is never loaded itself and would go on with the copy that it packed before. So what still has
    both a weight and a packed copy of it is packed again.

    Args:
        model_runner: of the worker.
        named: all weights, those of tied layers once. Tensors must keep their values until this returns.
    """
    # It warns of every layer that has nothing to load, tied heads and rotary embeddings among them, at each sync.
    talker = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    level = talker.level
    talker.setLevel(logging.ERROR)
    try:
        model_runner.reload_weights(weights_iterator=iter(named))
    finally:
        talker.setLevel(level)
    for module in model_runner.get_model().modules():
        method = getattr(module, "quant_method", None)
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and method is not None and weight is not None and weight.numel():
            method.process_weights_after_loading(module)


def load_into(llm: Any, named: Named) -> None:
    """`load_weights` for the engine of this process, with nothing left of what it computed with the old weights."""
    load_weights(llm.llm_engine.model_executor.driver_worker.model_runner, named)
    llm.reset_prefix_cache()


def prompt_logps(llm: Any, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-probabilities of each row's tokens after its first one, as the engine's model gives them.

    Nothing that shapes the sampling (temperature, masks) counts, and no random number is drawn.
    """
    from vllm import SamplingParams

    outputs = llm.generate(
        [{"prompt_token_ids": list(row)} for row in rows],
        SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False),
        use_tqdm=False,
    )
    return [
        [at[token].logprob for token, at in zip(row[1:], output.prompt_logprobs[1:], strict=True)]
        for row, output in zip(rows, outputs, strict=True)
    ]
