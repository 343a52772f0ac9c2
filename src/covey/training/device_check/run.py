"""All checks of a device, and their results as plain data."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from covey.model.device import has_bfloat16
from covey.training.device_check.accuracy import Check, engine_checks, sampling_checks, scoring_checks
from covey.training.device_check.models import SMALL, TINY
from covey.training.device_check.speed import QUICK, SHAPES, measure

PACKAGES = ("covey", "torch", "transformers", "trl", "accelerate", "vllm", "flash-attn", "liger-kernel", "triton")


def check_device(*, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Run all checks on the device that training would use.

    Args:
        quick: small shapes, as on a CPU.
        say: told what is done next.

    Returns:
        `device`, `checks` and `speed`, as `covey doctor --device --json` writes them.
    """
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    quick = quick or not gpu
    exact, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    checks: list[Check] = []
    try:
        for one in _checks(device, quick=quick):
            say(one.name)
            checks.append(one)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = exact
    speed = []
    for shape in (QUICK,) if quick else SHAPES:
        for rival in (None, "sdpa", *(("flash_attention_2",) if gpu else ())):
            say(f"a step of {shape.prompt} + {shape.completion} tokens, {rival or 'covey'}")
            speed.append(measure(shape, rival, device))
    return {"device": describe(device), "checks": [one.as_json() for one in checks], "speed": speed}


def _checks(device: torch.device, *, quick: bool) -> Iterator[Check]:
    size, prompt, completion = (TINY, 24, 16) if quick else (SMALL, 192, 256)
    yield from scoring_checks(size, prompt, completion, device)
    yield from sampling_checks(size, prompt, completion, device)
    if device.type == "cuda" and _version("vllm"):
        yield from engine_checks(TINY, device)


def describe(device: torch.device) -> dict[str, Any]:
    """The device, and what software drives it."""
    found: dict[str, Any] = {
        "kind": device.type,
        "name": platform.processor() or platform.machine(),
        "visible": 0,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "name": properties.name,
            "visible": torch.cuda.device_count(),
            "memory_gib": properties.total_memory / 2**30,
            "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "bfloat16": "native" if has_bfloat16() else "emulated",
            "cuda": torch.version.cuda or torch.version.hip,
        }
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
