"""What is measured: shapes of prompts and completions, sizes of models, and one setting of all of it. No torch here."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any, Literal

Engine = Literal["trl", "covey"]
ENGINES: tuple[Engine, ...] = ("trl", "covey")

Rollout = Literal["generate", "static", "continuous"]
ROLLOUTS: tuple[Rollout, ...] = ("generate", "static", "continuous")
"""The ways in which stock TRL can sample without vLLM."""

PAGE = 256
"""Tokens of a page of the cache in continuous batching."""

SWITCHES = ("shared_prefill", "shared_scoring", "trim", "skip_zero")
"""Covey's `speed.*` keys that can be switched off for a measurement."""

COMPLETIONS = 64
"""Completions per optimiser step, unless the number of prompts is given."""

SHORTEST = 6
"""Tokens of the shortest completion: its first four identify its row."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Tokens of every prompt, and of the longest completion."""

    prompt: int
    completion: int


SHAPES = {"short": Shape(64, 128), "math": Shape(256, 512), "long": Shape(1024, 256)}


@dataclasses.dataclass(frozen=True)
class Size:
    """A Qwen3 of random weights, with tied embeddings."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


SIZES = {
    "1m": Size(128, 512, 4, 4, 2, 32, 512),
    "5m": Size(256, 768, 6, 8, 4, 32, 1024),
    "25m": Size(512, 1536, 7, 8, 4, 64, 6144),
    "100m": Size(768, 2304, 12, 12, 6, 64, 16384),
    "135m": Size(576, 1536, 30, 9, 3, 64, 49152),
    "0.5b": Size(896, 4864, 24, 14, 2, 64, 151936),
    "1.5b": Size(1536, 8960, 28, 12, 2, 128, 151936),
}
"""The last three have the shapes of real models, of SmolLM2 and of Qwen 2.5; the last two are meant for a GPU."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One measurement, but for the engine."""

    size: str
    prompt_length: int
    completion_length: int
    generations: int
    prompts: int = 0
    """Prompts, so groups, per optimiser step; 0 takes as many as make 64 completions."""
    steps: int = 5
    warmup: int = 1
    """Steps before those that count."""
    seed: int = 0
    trl_defaults: bool = False
    """Leave to TRL's defaults what the plain setting fixes: gradient checkpointing, dtype, micro-batch of 8."""
    micro_batch: int = 0
    """Rows of a micro-batch; 0 takes a group."""
    bf16: bool = False
    """Weights in bfloat16; for a GPU."""
    attention: str | None = None
    """Of stock TRL's model, such as `flash_attention_2`; None takes transformers' default, SDPA."""
    vllm: bool = False
    """Sample with vLLM inside the trainer's process; it cannot force lengths, so all completions are the longest."""
    threads: int | None = None
    """Of torch; None leaves its default."""
    off: tuple[str, ...] = ()
    """Covey's switches that are off."""

    def __post_init__(self) -> None:
        if self.prompts == 0:
            object.__setattr__(self, "prompts", max(1, COMPLETIONS // self.generations))

    @property
    def rows(self) -> int:
        """Completions per optimiser step."""
        return self.prompts * self.generations

    def choosing(self, rollout: Rollout) -> dict[str, Any]:
        """The settings of TRL that choose a way to sample, at its best.

        Continuous batching clears its whole cache and mask for every batch, half of the memory by default; it gets as
        much as this batch needs, with a quarter to spare, which is several times faster.
        """
        if rollout == "static":
            return {"cache_implementation": "static"}
        if rollout == "continuous":
            pages = self.rows * -(-(self.prompt_length + self.completion_length) // PAGE)
            sizes = {"page_size": PAGE, "num_blocks": pages * 5 // 4 + 1, "max_batch_tokens": 1024}
            return {"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": sizes}
        return {}

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Setting:
        values = json.loads(text)
        return cls(**{**values, "off": tuple(values["off"])})

    def lengths(self, step: int) -> list[int]:
        """How long each completion of a step becomes, the end-of-sequence token included.

        Evenly spread up to the longest (none below six), so that the mean is half of it in every step, and in an order
        that only the seed and the step decide.
        """
        spread = [round((i + 0.5) / self.rows * self.completion_length) for i in range(self.rows)]
        lengths = [max(SHORTEST, length) for length in spread]
        random.Random(f"{self.seed}:{step}").shuffle(lengths)
        return lengths
