"""Rollout: turning prompts into completions."""

from covey.rollout.draw import LogitsProcessor, RowAware, Sampling
from covey.rollout.generate import Generation, SamplingSettings, generate
from covey.rollout.local import Ends, Sampled, sample

__all__ = [
    "Ends",
    "Generation",
    "LogitsProcessor",
    "RowAware",
    "Sampled",
    "Sampling",
    "SamplingSettings",
    "generate",
    "sample",
]
