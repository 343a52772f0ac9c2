"""Rollout: turning prompts into completions."""

from covey.rollout.generate import Generation, SamplingSettings, generate

__all__ = ["Generation", "SamplingSettings", "generate"]
