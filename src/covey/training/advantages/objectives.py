"""From the config's `objective.*` to the trainer's arguments."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from covey.config import Config
from covey.objective import AdaptiveKL, Objective, make
from covey.objective.interface import adapted, check_objective
from covey.objective.own import load, make_own

Given = Objective | type[Objective] | None
"""What `covey.train(objective=…)` takes."""


def build(config: Config, given: Given = None) -> dict[str, Any]:
    """The keyword arguments of `GRPOTrainer` for `objective.*`. Needs no model, so call it early.

    Args:
        config: the config.
        given: the objective, or its class, in place of the one that the config names.

    Raises:
        ConfigError: the objective cannot be made, or not be used with these settings or this loss.
    """
    chosen, kl, training = config.objective, config.objective.kl, config.training
    controller = None
    if kl.controller == "adaptive":
        controller = AdaptiveKL(target=kl.kl_target, horizon=kl.kl_horizon, step_size=kl.kl_ctl_step_size)
    return {
        "objective": adapted(
            _make(config, given),
            loss_type=training.loss_type,
            num_generations=training.num_generations,
            max_completion_length=training.max_completion_length,
            beta=training.beta,
        ),
        "kl_controller": controller,
        "stop_above_kl": kl.stop_above,
        "resample_groups": chosen.resample_groups,
    }


def _make(config: Config, given: Given) -> Any:
    chosen = config.objective
    if inspect.isclass(given):
        return make_own(given, chosen.settings, chosen.name)
    if given is not None:
        check_objective(given)
        return given
    if chosen.built_in is None:
        return load(chosen.name, chosen.settings)
    return make(chosen.name, **dataclasses.asdict(chosen.built_in))
