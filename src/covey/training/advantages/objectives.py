"""From the config's `objective.*` to the trainer's arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from covey.config import Config
from covey.objective import AdaptiveKL, MaxEnt, make


def build(config: Config, *, on_weights: Callable[[Tensor], object] | None = None) -> dict[str, Any]:
    """The keyword arguments of `GRPOTrainer` for `objective.*`. Needs no model, so call it early.

    Args:
        on_weights: called with the target's weights of every batch, if the objective has any.

    Every key `objective.<name>_<setting>` is a setting of the objective `<name>`.

    Raises:
        ConfigError: the objective cannot be used with these settings or this loss.
    """
    chosen, kl = config.objective, config.objective.kl
    prefix = f"{chosen.name}_"
    settings = {
        item.name.removeprefix(prefix): getattr(chosen, item.name)
        for item in fields(chosen)
        if item.name.startswith(prefix)
    }
    objective = make(chosen.name, **settings).for_run(
        loss_type=config.training.loss_type, num_generations=config.training.num_generations
    )
    if isinstance(objective, MaxEnt):
        objective = replace(objective, on_weights=on_weights)
    controller = None
    if kl.controller == "adaptive":
        controller = AdaptiveKL(target=kl.kl_target, horizon=kl.kl_horizon, step_size=kl.kl_ctl_step_size)
    return {
        "objective": objective,
        "kl_controller": controller,
        "stop_above_kl": kl.stop_above,
        "resample_groups": chosen.resample_groups,
    }
