"""Whether a run's own engine samples beside training (`training.staleness`), and on which GPU. No torch."""

from __future__ import annotations

from covey.config.schema import Config

SAMPLING_GPU = "COVEY_SAMPLING_GPU"
"""Environment variable of training processes: the GPU, as CUDA_VISIBLE_DEVICES names it, that `covey launch` has left
to the rollout process."""


def samples_in_own_process(config: Config) -> bool:
    """Whether Covey's engine runs in a process of its own."""
    training = config.training
    return training.staleness > 0 and not training.use_vllm and config.rollout.own_engine is None
