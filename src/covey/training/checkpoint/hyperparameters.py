"""Hyperparameters of a resumed run: its config's, where a checkpoint's optimiser and schedule bring back their own."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch.optim.lr_scheduler import LambdaLR


class Hyperparameters:
    """What the constructor of an optimiser took, read once it has its schedule and before a checkpoint is loaded. Other
    values of its groups are state, such as the distance of Prodigy."""

    def __init__(self, optimizer: Any) -> None:
        inner = optimizer
        while hasattr(inner, "optimizer"):  # accelerate's and DeepSpeed's wrappers
            inner = inner.optimizer
        names = {*signature(type(inner)).parameters, "weight_decay", "initial_lr"} - {"params", "lr"}
        self._groups = [{name: group[name] for name in names & group.keys()} for group in optimizer.param_groups]

    def restore(self, optimizer: Any, scheduler: Any, step: int | None) -> None:
        """Set them again after a checkpoint was loaded, and the learning rate of the schedule at this point of the run,
        if it is a function of the step. `step` is that point, where the checkpoint has no schedule."""
        for group, own in zip(optimizer.param_groups, self._groups, strict=True):
            group |= own
        scheduler = getattr(scheduler, "scheduler", scheduler)  # DeepSpeed's wrapper
        if not isinstance(scheduler, LambdaLR):
            return
        scheduler.last_epoch = scheduler.last_epoch if step is None else step
        scheduler.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        steps = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        scheduler._last_lr = [rate * function(scheduler.last_epoch) for rate, function in steps]
        for group, rate in zip(optimizer.param_groups, scheduler._last_lr, strict=True):
            group["lr"] = rate
