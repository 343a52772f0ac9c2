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


Rates = list[tuple[Any, dict[str, float]]]
"""Configs, with the dropout rates that they had."""


def disable_dropout(model: torch.nn.Module) -> Rates:
    """Set every dropout rate to 0: of dropout modules, and the numbers that modules, or their configs, hold for
    functional dropout and dropped layers, which are read in each forward. Routers with jitter, which may draw experts
    too, stay in evaluation mode.

    Returns:
        The configs that were changed, for `own_dropout`.
    """
    configs: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        configs |= {id(one): one for one in (config, getattr(config, "text_config", None)) if hasattr(one, "to_dict")}
        _set(module, dict.fromkeys(_rates(module), 0.0))
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if any("jitter" in name for name in vars(module)):
            module.eval().train = _stays  # type: ignore[method-assign, assignment]
    changed = [(config, rates) for config in configs.values() if (rates := _rates(config))]
    for config, rates in changed:
        _set(config, dict.fromkeys(rates, 0.0))
    return changed


@contextmanager
def own_dropout(changed: Rates) -> Iterator[None]:
    """Context manager: configs have their dropout rates again, as they are to be saved."""
    for config, rates in changed:
        _set(config, rates)
    try:
        yield
    finally:
        for config, rates in changed:
            _set(config, dict.fromkeys(rates, 0.0))


def _set(owner: Any, values: dict[str, float]) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def _stays(mode: bool = True) -> None:
    """In place of a module's `train`."""


def _rates(owner: Any) -> dict[str, float]:
    return {name: value for name, value in vars(owner).items() if isinstance(value, float) and value and "drop" in name}
