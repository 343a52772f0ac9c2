"""Completions by vLLM in this process, outside of training: many prompts at once, several completions of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedTokenizerBase

from covey.errors import EngineError
from covey.rollout.generate import Generation, SamplingSettings, render_prompt
from covey.rollout.vllm_engine import cpu_options, installed, refusing, start


class EngineWriter:
    """An engine with one model's weights. A reasoning vocabulary beside them is masked as in training."""

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
            source: what `from_pretrained` takes; adapters must be merged.
            tokenizer: of the model; conversations are rendered with its chat template.
            dtype: number type to compute in; `auto` is float32 on a CPU and vLLM's choice on a GPU.
            max_model_len: longest prompt and completion together; None means as long as the model can read.
            max_num_seqs: completions under way at a time.
            gpu_memory_utilization: share of the device's memory to use.

        Raises:
            EngineError: vLLM is not installed, or does not take the model.
        """
        if not installed():
            raise EngineError(
                "vLLM is not installed in this environment: install it with `pip install 'covey[vllm]'` on a machine "
                "with a GPU; docs/vllm.md has the way for one without."
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

        Every prompt has a seed of its own, so that its completions depend on neither its neighbours nor how many there
        are; the caller's random state is untouched.

        Args:
            prompts: conversations or plain strings.
            sampling: how to draw; temperature 0 is greedy.
            n: completions of each prompt.
            seed: of the first prompt; the next ones count on from it.

        Raises:
            EngineError: a prompt is too long.
        """
        from vllm import SamplingParams

        rows = [self._read(prompt, sampling) for prompt in prompts]
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
            given = [{"prompt_token_ids": row} for row in rows]
            with refusing("vLLM does not take these prompts"):
                outputs = self._llm.generate(given, settings, use_tqdm=False)
        return [[self._finished(one) for one in output.outputs] for output in outputs]

    def _read(self, prompt: Any, sampling: SamplingSettings) -> list[int]:
        text = render_prompt(self._tokenizer, prompt, sampling.chat_template_kwargs)
        # A chat template writes the beginning-of-sequence token itself where a model wants one.
        return list(self._tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])

    def _finished(self, output: Any) -> Generation:
        ids = list(output.token_ids)
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
        return Generation(text, len(ids), truncated=output.finish_reason == "length")
