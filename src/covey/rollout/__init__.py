"""Rollout: turning prompts into completions."""

from covey.rollout.engine import Capabilities, Completion, InferenceEngine, SamplingSettings
from covey.rollout.generate import complete, conversation, generate
from covey.rollout.local.engine import LocalEngine
from covey.rollout.local.sampling import sample
from covey.rollout.local.tokens import LogitsProcessor, RowAware

__all__ = [
    "Capabilities",
    "Completion",
    "InferenceEngine",
    "LocalEngine",
    "LogitsProcessor",
    "RowAware",
    "SamplingSettings",
    "complete",
    "conversation",
    "generate",
    "sample",
]
