"""From the config's `objective.*` to what the trainer takes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from covey.config import Config
from covey.objective import AdaptiveKL, make


def build(config: Config) -> dict[str, Any]:
    """The keyword arguments of `GRPOTrainer` that `objective.*` stands for. Needs no model, so call it early.

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
    controller = None
    if kl.controller == "adaptive":
        controller = AdaptiveKL(target=kl.kl_target, horizon=kl.kl_horizon, step_size=kl.kl_ctl_step_size)
    return {
        "objective": objective,
        "kl_controller": controller,
        "stop_above_kl": kl.stop_above,
        "resample_groups": chosen.resample_groups,
    }
