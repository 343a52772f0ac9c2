"""The former path and name of `covey.rollout.vllm.engine.VLLMEngine`."""

from covey.rollout.vllm.engine import VLLMEngine as EngineWriter

__all__ = ["EngineWriter"]
