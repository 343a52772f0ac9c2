"""vLLM in this process, with TRL's weights or its own copy. The trainer's side is `training/trl/engine.py`.

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

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedTokenizerBase

from covey.advice import install
from covey.errors import EngineError
from covey.model.reasoning_vocab.token_map import MAP_FILE
from covey.rollout.engine import Capabilities, Completion, NamedWeights, SamplingSettings
from covey.rollout.weight_folder import read_folder, write_folder
from covey.runlog.directory import temporary_folder

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


_CUT_OFF = -9000.0
"""Servers write -9999 for the log-prob of a token that was cut off, since JSON has no infinity."""


def candidates(sampling: SamplingSettings, vocab_size: int) -> int:
    """How many tokens can be sampled in each place where their set is to be returned: `top_k` and `logprobs` of the
    request; 0 where it is not.

    vLLM gives its sampling masks themselves (`return_sampling_mask`) only with its newer model runner, which needs
    Triton, and not over HTTP. In `processed_logprobs` mode, the K likeliest tokens after top-k, top-p and min-p say the
    same: those with a finite log-prob could be sampled.

    Args:
        vocab_size: of the engine's model.
    """
    if not (sampling.support and sampling.truncates):
        return 0
    return min(sampling.most_kept or vocab_size, vocab_size)


def sampled_logps(
    ids: Sequence[int], token_ids: Sequence[Sequence[int]], logps: Sequence[Sequence[float | None]]
) -> list[float]:
    """The log-probs of the sampled tokens; NaN where vLLM could not compute one.

    Args:
        ids: the sampled tokens.
        token_ids: of each place, the tokens whose log-probs vLLM returned, in any order.
        logps: these.
    """
    found = [values[tokens.index(one)] for one, tokens, values in zip(ids, token_ids, logps, strict=True)]
    return [float("nan") if logp is None else float(logp) for logp in found]


def support_of(
    ids: Sequence[int], token_ids: Sequence[Sequence[int]], logps: Sequence[Sequence[float | None]]
) -> tuple[list[float], torch.Tensor]:
    """The log-probs of the sampled tokens, and the tokens that could be sampled, over which they are normalised.

    Where tokens tie for the last place, vLLM may keep more of them than it returns. The log-probs are then those among
    the tokens that are returned here.

    Args:
        ids: the sampled tokens.
        token_ids: of each place, the tokens whose log-probs vLLM returned: the K likeliest and the sampled one.
        logps: these, after all that cuts tokens off.

    Returns:
        The T log-probs, and the tokens as int32 `[T, C]`, the likeliest first, -1 where there are fewer than C.
    """
    widest = max(map(len, token_ids), default=0)
    tokens_TC = np.full((len(ids), widest), -1, dtype=np.int32)
    logps_TC = np.full((len(ids), widest), -np.inf)
    for place, (tokens, values) in enumerate(zip(token_ids, logps, strict=True)):
        tokens_TC[place, : len(tokens)] = tokens
        logps_TC[place, : len(values)] = [np.nan if logp is None else logp for logp in values]
    sampled_TC = tokens_TC == np.asarray(ids, dtype=np.int32)[:, None]
    kept_TC = (logps_TC > _CUT_OFF) | sampled_TC
    order_TC = np.argsort(np.where(kept_TC, -logps_TC, np.inf), axis=1, kind="stable")
    most = int(kept_TC.sum(axis=1).max(initial=0))
    support_TC = np.take_along_axis(np.where(kept_TC, tokens_TC, -1), order_TC, axis=1)[:, :most]
    mass_T = np.where(kept_TC, np.exp(logps_TC), 0.0).sum(axis=1)
    logps_T = logps_TC[sampled_TC] - np.log(mass_T)
    return logps_T.tolist(), torch.from_numpy(np.ascontiguousarray(support_TC))


WORKER = "covey.rollout.vllm.engine.FolderWeights"
"""The name of the worker extension."""


class FolderWeights:
    """Methods that a trainer calls on every worker by name, over HTTP (`/collective_rpc`).

    A server's own weight transfer uses NCCL, of which there is none on a CPU. vLLM mixes this class, which it gets by
    name (`--worker-extension-cls`), into its worker.
    """

    model_runner: Any

    def load_folder(self, folder: str) -> dict[str, int]:
        """Load the weights of a folder (`covey.rollout.weight_folder`); returns the number of tensors."""
        count = 0

        def named() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal count
            for one in read_folder(Path(folder)):
                count += 1
                yield one

        load_weights(self.model_runner, named())
        return {"tensors": count}


class VLLMEngine:
    """A vLLM engine with one model. A reasoning vocabulary next to its weights is masked as in training."""

    capabilities = Capabilities(logprobs=True, seeded=True, reasoning_vocab=True, support=True)

    def __init__(
        self,
        model_name: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        dtype: str | None = None,
        max_model_len: int | None = None,
        batch_size: int = 64,
        gpu_memory_utilization: float = 0.9,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        """
        Args:
            model_name: a folder or hub id for `from_pretrained`; adapters must be merged.
            tokenizer: not needed: prompts are token ids.
            dtype: of weights and computation; None is float32 on a CPU and vLLM's choice on a GPU.
            max_model_len: longest prompt and completion together; None means the model's maximum.
            batch_size: concurrent completions.
            gpu_memory_utilization: share of the device's memory to use.

        Raises:
            EngineError: vLLM is not installed, or does not support the model.
        """
        if not installed():
            raise EngineError(
                f"vLLM is not installed in this environment: install it with `{install('vllm')}` on a machine "
                "with a GPU; see docs/vllm.md for one without."
            )
        from vllm.platforms import current_platform

        dtype = dtype or "auto"
        options: dict[str, Any] = {
            "max_model_len": max_model_len,
            "max_num_seqs": batch_size,
            "gpu_memory_utilization": gpu_memory_utilization,
            "dtype": dtype,
            "worker_extension_cls": WORKER,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": -1,
        }
        if current_platform.is_cpu():
            config = AutoConfig.from_pretrained(model_name, revision=revision, trust_remote_code=trust_remote_code)
            options["dtype"] = "float32" if dtype == "auto" else dtype
            options |= cpu_options(config, **options)
        self._llm = start(model=model_name, revision=revision, trust_remote_code=trust_remote_code, **options)
        self._version: int | None = None

    @property
    def version(self) -> int | None:
        """See `InferenceEngine`."""
        return self._version

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingSettings, *, seed: int | None = None
    ) -> list[Completion]:
        """See `InferenceEngine`.

        Every completion has a seed of its own, so that it does not depend on the others: the call's, plus its place.

        Raises:
            EngineError: a prompt is too long.
        """
        from vllm import SamplingParams

        most = candidates(sampling, self._llm.llm_engine.model_config.get_vocab_size())
        settings = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=most or sampling.top_k,
                min_p=sampling.min_p,
                repetition_penalty=sampling.repetition_penalty,
                stop_token_ids=list(sampling.stop_token_ids),
                max_tokens=sampling.max_completion_length,
                logprobs=most if sampling.logprobs or most else None,
                seed=None if seed is None else (seed + place) % 2**63,
                detokenize=False,
            )
            for place in range(len(prompts))
        ]
        with torch.random.fork_rng(enabled=seed is not None), engine_errors("vLLM does not take these prompts"):
            inputs = [{"prompt_token_ids": list(ids)} for ids in prompts]
            outputs = self._llm.generate(inputs, settings, use_tqdm=False)
        return [_completion(output.outputs[0], support=most > 0) for output in outputs]

    def sync(self, weights: NamedWeights, version: int) -> None:
        """See `InferenceEngine`: through a temporary folder, since vLLM may run in processes of its own. Raises an
        `EngineError` if a process did not find all weights."""
        with temporary_folder("covey-weights-") as folder:
            tensors = write_folder(folder, weights)
            answers = self._llm.collective_rpc("load_folder", args=(str(folder),))
        if any(answer != {"tensors": tensors} for answer in answers):
            raise EngineError(f"vLLM did not load the {tensors} tensors that were written for it into {folder}.")
        self._llm.reset_prefix_cache()
        self._version = version

    def close(self) -> None:
        """Drop the engine."""
        self._llm = None


def _completion(output: Any, *, support: bool) -> Completion:
    ids, truncated = list(output.token_ids), output.finish_reason == "length"
    if output.logprobs is None:
        return Completion(ids, truncated)
    tokens = [list(at) for at in output.logprobs]
    values = [[one.logprob for one in at.values()] for at in output.logprobs]
    if not support:
        return Completion(ids, truncated, sampled_logps(ids, tokens, values))
    logps, kept = support_of(ids, tokens, values)
    return Completion(ids, truncated, logps, support=kept)


EngineWriter = VLLMEngine
"""The former name, once documented."""
