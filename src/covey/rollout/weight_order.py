"""Weights laid out for products with few rows, as a CPU computes them while completions are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def columns_first(model: Any) -> Iterator[None]:
    """Hold the weights of linear layers column by column, on a CPU; the same numbers at the same parameters.

    A step of sampling multiplies a handful of rows with every weight of the model, and takes about as long as reading
    the weights; read in this order, that is a quarter less, but in mixed precision far more. Weights that several
    modules share stay as they are, as do those of devices other than a CPU and of number types other than float32. On
    leaving, each parameter has its own storage back.

    Args:
        model: a model whose parameters are whole, and which nothing else changes in the meantime.
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
