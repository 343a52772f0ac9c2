"""What a run and its replay must have in common to end at the same weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from covey.rollout.engine import InferenceEngine, NamedWeights, SamplingSettings
from covey.training.asynchronous.settings import Asynchronous

_SAME = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations"),
    *("num_generations", "generation_batch_size", "learning_rate", "lr_scheduler_type", "optim", "weight_decay"),
    *("max_grad_norm", "beta", "loss_type", "scale_rewards", "epsilon", "max_steps", "num_train_epochs", "bf16"),
    *("fp16", "chat_template_kwargs"),
)
"""Of the training arguments."""


def recorded_settings(
    args: Any,
    settings: Asynchronous,
    sampling: SamplingSettings,
    engine: InferenceEngine,
    *,
    weights: str | None,
    **more: Any,
) -> dict[str, Any]:
    """By name, as JSON reads it back.

    Args:
        settings: of the rollouts.
        sampling: of the completions.
        weights: their digest before the first step; None where that is over.
        more: further numbers and texts, by name.
    """
    values = {f"training.{name}": _plain(getattr(args, name)) for name in _SAME}
    values |= {f"sampling.{name}": _plain(value) for name, value in asdict(sampling).items()}
    return {
        "training.staleness": settings.staleness,
        "training.async_order": settings.order,
        "training.async_partial": settings.partial,
        "seed": int(args.seed),
        **values,
        "engine": type(engine).__name__,
        "threads of the rollout process": getattr(engine, "threads", None),
        **{name.replace("_", " "): value for name, value in more.items()},
        **({} if weights is None else {"weights": weights}),
    }


def digest_of(weights: NamedWeights) -> str:
    """A hash of the names and shapes of weights, and of some numbers of each."""
    found = hashlib.sha256()
    for name, tensor in weights:
        sample = tensor.detach().flatten()[:: max(1, tensor.numel() // 1024)].float().cpu()
        found.update(f"{name} {list(tensor.shape)}".encode() + sample.numpy().tobytes())
    return found.hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or type(value) in (int, float, str, bool):
        return value
    return str(getattr(value, "value", value))
