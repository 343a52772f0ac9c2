"""Stopping at the first step whose loss, gradient norm or weights are not finite (NaN or infinite).

The checks stay on the device: a few flags are combined there, once a step, over all processes. They are read where the
host waits for the device anyway: when a step is logged, saved or evaluated, and before generation; on a CPU at every
step. Checking the weights costs one pass over the trained ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

from covey.errors import TrainingError
from covey.runlog.directory import RunDirectory

T = TypeVar("T")

_CHECKED = {"loss": "loss", "grad_norm": "gradient norm", "weights": "weights"}
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

_CAUSES = (
    "The usual causes are a learning rate that is too high (training.learning_rate), and float16, whose range is small "
    "(bfloat16 or float32 have a wider one)."
)


class FiniteCheck:
    """Detects the first step that was not finite, and ends the run."""

    def __init__(self, args: TrainingArguments, accelerator: Accelerator, settle: Callable[[], None]) -> None:
        """
        Args:
            args: for the output directory, and for fp16: its loss scaling skips steps with infinite gradients, so these
                do not stop the run.
            accelerator: of the run.
            settle: waits for the checkpoint that is being marked.
        """
        self._accelerator = accelerator
        self._output_dir = Path(str(args.output_dir))
        self._skips_steps = bool(args.fp16) or getattr(accelerator, "scaler", None) is not None
        self._settle = settle
        self._bad: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}
        self._first = torch.zeros(len(_CHECKED) + 1, device=accelerator.device, dtype=torch.int64)
        """Of the first step that was not finite: for each part the number of processes, and last the step."""

    def record(self, name: str, value: T) -> T:
        """Record whether the `loss` of a micro-batch or the `grad_norm` of a step is finite, if it is known.

        Returns:
            The value.
        """
        if value is None or (name == "grad_norm" and self._skips_steps):
            return value
        plain = torch.as_tensor(value).detach()
        self._values[name] = plain = plain.full_tensor() if isinstance(plain, DTensor) else plain
        bad = ~plain.isfinite().all()
        self._bad[name] = self._bad[name] | bad if name in self._bad else bad
        return value

    def end_step(self, step: int, model: torch.nn.Module) -> None:
        """Check the weights after an optimiser step, and combine all flags of the step."""
        self._bad["weights"] = ~is_finite(p for p in model.parameters() if p.requires_grad)
        flags = self._total([self._bad.get(name) for name in _CHECKED])
        self._bad.clear()
        here = torch.cat([flags, step * flags.any().to(flags).reshape(1)])
        self._first = torch.where(self._first[-1] > 0, self._first, here)

    def check(self, step: int, log: Callable[[dict[str, float]], None]) -> None:
        """Check the steps so far. Waits for the device.

        Args:
            step: optimiser steps done.
            log: logs the loss and the gradient norm of the newest step, before the error is raised.

        Raises:
            TrainingError: a step was not finite.
        """
        *counts, first = self._first.tolist()
        if not first:
            return
        if first == step:
            log({name: float(value) for name, value in self._values.items()})
        raise self._error(first, [what for what, count in zip(_CHECKED.values(), counts, strict=True) if count])

    def check_start(self, model: torch.nn.Module, source: str) -> None:
        """Raise a `TrainingError` unless the weights that training starts from, frozen ones too, are finite."""
        if self._total([~is_finite(model.parameters())]).any():
            raise TrainingError(
                f"The weights that training starts from are not finite (NaN or infinite): {source}. Use another "
                "model, or resume from an older checkpoint (resume=PATH)."
            )

    def check_state(self, step: int, model: torch.nn.Module, optimizer: Any) -> None:
        """Raise a `TrainingError` unless all that a checkpoint would hold is finite: weights, and moments."""
        if self._total([~is_finite([*model.parameters(), *_moments(optimizer)])]).any():
            raise self._error(step, ["optimiser's state"])

    def _total(self, flags: Sequence[Tensor | None]) -> Tensor:
        none = torch.zeros((), device=self._accelerator.device, dtype=torch.int64)
        counts = torch.stack([none if flag is None else flag.to(none) for flag in flags])
        return torch.as_tensor(self._accelerator.reduce(counts, reduction="sum"))

    def _error(self, step: int, what: list[str]) -> TrainingError:
        self._settle()
        good = [path for _, path in RunDirectory(self._output_dir).complete_checkpoints()]
        advice = "There is no checkpoint yet: remove the cause, and start again with overwrite=true."
        if good:
            advice = (
                f"The last good checkpoint is {good[-1]}, and it is intact: remove the cause, and resume=true "
                "continues from there with the changed config."
            )
        return TrainingError(
            f"Training was stopped at step {step}: values that are not finite (NaN or infinite) in its "
            f"{' and '.join(what)}. Nothing of this step was saved. {_CAUSES} {advice}"
        )


def is_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Whether all values in these tensors are finite, as a tensor; of DTensors, the local shards."""
    own = (t.to_local() if isinstance(t, DTensor) else t for t in tensors)
    held = [t.detach() for t in own if t.numel() and t.dtype in _DTYPES]
    if not held:
        return torch.tensor(True)
    if all(t.device.type == "cpu" for t in held):  # NaN is both ends; a norm takes 13 times as long
        return torch.stack([end.double() for t in held for end in t.aminmax()]).isfinite().all()
    return torch.nn.utils.get_total_norm(held, float("inf")).isfinite()  # one kernel for all on a GPU


def _moments(optimizer: Any) -> list[Tensor]:
    """The tensors of an optimiser's state; none if it does not expose them."""
    states = [state for state in getattr(optimizer, "state", {}).values() if isinstance(state, Mapping)]
    return [value for state in states for value in state.values() if torch.is_tensor(value)]


def non_finite_files(checkpoint: Path) -> list[str]:
    """The files of a checkpoint with weights or optimiser moments that are not finite.

    Shards of FSDP or DeepSpeed, which only these libraries read, are not checked.
    """
    from safetensors import safe_open

    found = []
    for file in sorted(checkpoint.rglob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            if not all(is_finite([stored.get_tensor(name)]) for name in stored.keys()):  # noqa: SIM118  not a mapping
                found.append(file.name)
    for file in sorted([*checkpoint.glob("pytorch_model*.bin"), *checkpoint.glob("optimizer.pt")]):
        stored = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        if not is_finite(_tensors_in(stored)):
            found.append(file.name)
    return found


def _tensors_in(value: Any) -> list[Tensor]:
    if torch.is_tensor(value):
        return [value]
    inner: Iterable[Any] = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [tensor for item in inner for tensor in _tensors_in(item)]
