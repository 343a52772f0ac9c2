"""The former path and name of `covey.rollout.vllm.offline.VLLMEngine`."""

from covey.rollout.vllm.offline import VLLMEngine as EngineWriter

__all__ = ["EngineWriter"]
