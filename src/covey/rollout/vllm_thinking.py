"""The former path of `covey.rollout.vllm.thinking`, used in documented commands."""

from covey.rollout.vllm.thinking import ThinkingMask

__all__ = ["ThinkingMask"]
