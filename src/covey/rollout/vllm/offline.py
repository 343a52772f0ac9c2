"""Offline inference with vLLM in this process: many prompts at once, several completions of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedTokenizerBase

from covey.errors import EngineError
from covey.model.prompts import render
from covey.rollout.local.generate import Generation, SamplingSettings
from covey.rollout.vllm.engine import cpu_options, engine_errors, installed, start


class VLLMEngine:
    """A vLLM engine with one model. A reasoning vocabulary next to its weights is masked as in training."""

    def __init__(
        self,
        source: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        gpu_memory_utilization: float = 0.9,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        """
        Args:
            source: a folder or hub id for `from_pretrained`; adapters must be merged.
            tokenizer: of the model; conversations are rendered with its chat template.
            dtype: of weights and computation; `auto` is float32 on a CPU and vLLM's choice on a GPU.
            max_model_len: longest prompt and completion together; None means the model's maximum.
            max_num_seqs: concurrent completions.
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

        options: dict[str, Any] = {
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "gpu_memory_utilization": gpu_memory_utilization,
            "dtype": dtype,
        }
        if current_platform.is_cpu():
            config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
            options["dtype"] = "float32" if dtype == "auto" else dtype
            options |= cpu_options(config, **options)
        self._tokenizer = tokenizer
        self._llm = start(model=source, revision=revision, trust_remote_code=trust_remote_code, **options)

    def generate(
        self,
        prompts: Sequence[list[dict[str, str]] | str],
        sampling: SamplingSettings,
        n: int = 1,
        *,
        seed: int,
    ) -> list[list[Generation]]:
        """Sample `n` completions of each prompt.

        Every prompt has a seed of its own, so that its completions do not depend on the other prompts; the caller's
        random state is untouched.

        Args:
            prompts: conversations or plain strings.
            sampling: the settings; temperature 0 is greedy.
            n: completions of each prompt.
            seed: of the first prompt; the next ones increment it.

        Raises:
            EngineError: a prompt is too long.
        """
        from vllm import SamplingParams

        rows = [self._tokenize(prompt, sampling) for prompt in prompts]
        settings = [
            SamplingParams(
                n=n,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_completion_length,
                seed=(seed + place) % 2**63,
                detokenize=False,
            )
            for place in range(len(rows))
        ]
        with torch.random.fork_rng():
            inputs = [{"prompt_token_ids": row} for row in rows]
            with engine_errors("vLLM does not take these prompts"):
                outputs = self._llm.generate(inputs, settings, use_tqdm=False)
        return [[self._generation(one) for one in output.outputs] for output in outputs]

    def _tokenize(self, prompt: Any, sampling: SamplingSettings) -> list[int]:
        text = render(self._tokenizer, prompt, sampling.chat_template_kwargs)
        # A chat template adds the BOS token itself if the model needs one.
        return list(self._tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])

    def _generation(self, output: Any) -> Generation:
        ids = list(output.token_ids)
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
        return Generation(text, len(ids), truncated=output.finish_reason == "length")
