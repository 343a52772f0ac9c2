"""Rollout: turning prompts into completions."""

from covey.rollout.local.generate import Generation, SamplingSettings, generate
from covey.rollout.local.sampling import Sampled, StopCriteria, sample
from covey.rollout.local.token_sampling import LogitsProcessor, RowAware, Sampling

__all__ = [
    "Generation",
    "LogitsProcessor",
    "RowAware",
    "Sampled",
    "Sampling",
    "SamplingSettings",
    "StopCriteria",
    "generate",
    "sample",
]
