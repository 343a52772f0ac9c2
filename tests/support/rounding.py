"""Floats to some significant digits, so that another CPU, NumPy or PyTorch makes no difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rounded(value: Any, digits: int) -> Any:
    """All floats in nested lists, mappings and tensors."""
    if hasattr(value, "tolist"):
        return rounded(value.tolist(), digits)
    if isinstance(value, Mapping):
        return {name: rounded(one, digits) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one, digits) for one in value]
    if not isinstance(value, float):
        return value
    return 0.0 if abs(value) < 1e-12 else float(f"{value:.{digits}g}")
