"""A model beneath its adapters, and in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def base_model(model: Any) -> Any:
    """The transformers model inside one that PEFT may have wrapped."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def is_spread(model: Any) -> bool:
    """Whether accelerate has put the model's layers on several devices (`device_map="auto"`)."""
    return len({str(device) for device in (getattr(model, "hf_device_map", None) or {}).values()}) > 1


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Context manager: every module is in evaluation mode; on exit its own mode is restored."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
