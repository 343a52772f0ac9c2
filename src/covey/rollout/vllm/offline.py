"""vLLM outside of a training step: an engine with its own copy of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedTokenizerBase

from covey.errors import EngineError
from covey.rollout.engine import Capabilities, Completion, NamedWeights, SamplingSettings
from covey.rollout.vllm.engine import cpu_options, engine_errors, installed, start
from covey.rollout.vllm.support import candidates, sampled_logps, support_of
from covey.rollout.vllm.worker import WORKER
from covey.rollout.weight_folder import write_folder
from covey.runlog.locks import temporary_folder


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
                "vLLM is not installed in this environment: install it with `pip install 'covey[vllm]'` on a machine "
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
