"""Hyperparameters of a resumed run, which are its config's: a checkpoint's optimiser and schedule bring back their own.

Knows PyTorch's optimisers and schedules, not TRL.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch.optim.lr_scheduler import LambdaLR


class Hyperparameters:
    """What the config sets of an optimiser, read before a checkpoint is loaded.

    Hyperparameters are what the optimiser's constructor takes. Other values of its groups are state, such as the
    distance of Prodigy, and stay as they were loaded.

    Args:
        optimizer: as it was made, with its schedule, for which `initial_lr` is the config's learning rate.
    """

    def __init__(self, optimizer: Any) -> None:
        inner = optimizer
        while hasattr(inner, "optimizer"):  # accelerate's and DeepSpeed's wrappers
            inner = inner.optimizer
        names = {*signature(type(inner)).parameters, "weight_decay", "initial_lr"} - {"params", "lr"}
        self._groups = [{name: group[name] for name in names & group.keys()} for group in optimizer.param_groups]

    def restore(self, optimizer: Any, scheduler: Any, step: int | None) -> None:
        """Set them again, and the learning rate of the config's schedule at this point of the run.

        Args:
            optimizer: with the moments of a checkpoint.
            scheduler: with the position of a checkpoint. The learning rate of one that is no function of the step, such
                as `reduce_lr_on_plateau`, stays as it was loaded.
            step: the position, where the checkpoint holds none.
        """
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
