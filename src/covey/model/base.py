"""A model beneath its adapters, and in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PretrainedConfig


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


def disable_dropout(model: torch.nn.Module) -> list[tuple[Any, dict[str, float]]]:
    """Set every dropout rate to 0: of dropout modules, and the numbers that modules, or their configs, hold for
    functional dropout and dropped layers. Routers with jitter, which may draw experts too, stay in evaluation mode.
    Returns the configs that were changed, with the rates that they had.
    """
    configs: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(config := getattr(module, "config", None), PretrainedConfig):
            configs[id(config)] = config
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if any("jitter" in name for name in vars(module)):
            module.eval().train = lambda *_: None  # type: ignore
        _zero_rates(module)
    return [(config, rates) for config in configs.values() if (rates := _zero_rates(config))]


def _zero_rates(owner: Any) -> dict[str, float]:
    rates = {name: value for name, value in vars(owner).items() if isinstance(value, float) and "drop" in name}
    for name in rates:
        setattr(owner, name, 0.0)
    return rates
