"""Weights laid out for products with few rows, as decoding on a CPU computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from covey.model.base import base_model


@contextmanager
def column_major(model: Any) -> Iterator[None]:
    """Context manager: on a CPU, the weights of linear layers are stored column-major; their values do not change.

    A decoding step multiplies a handful of rows with every weight of the model, and is bound by reading the weights;
    in this order it takes a quarter less, but in mixed precision far more. Weights that several modules share are left
    alone, as are those on other devices and in other dtypes than float32. On exit, each parameter has its own storage
    back.

    Args:
        model: its parameters must not be sharded, and nothing else may change them in the meantime.
    """
    shared = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    own: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    for module in model.modules():
        weight = module.weight if type(module) is torch.nn.Linear else None
        if weight is None or id(weight) in shared or type(weight) is not torch.nn.Parameter:
            continue
        shared.add(id(weight))
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous():
            own.append((weight, weight.data))
    try:
        for weight, data in own:
            weight.data = data.t().contiguous().t()
        yield
    finally:
        for weight, data in own:
            weight.data = data


def is_mixed_precision(model: Any, forward: Callable[[], None]) -> bool:
    """Run the first forward, and return whether that was in mixed precision, which accelerate enables inside of a
    forward only."""
    found: list[bool] = []
    kind = model.device.type
    embeddings = base_model(model).get_input_embeddings()
    with embeddings.register_forward_pre_hook(lambda *_: found.append(torch.is_autocast_enabled(kind))):
        forward()
    return any(found)
