"""From the config's `objective.*` to the trainer's arguments."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

from covey.config import Config
from covey.errors import ConfigError, RunDirectoryError
from covey.objective import XDR, AdaptiveKL, Objective, make
from covey.objective.interface import adapted, check_objective, needs_of
from covey.objective.own import load, make_own
from covey.rewards.registry import IMPLIED_GRADERS, MODE_GRADERS, MODEL_PREFIX, canonical_name
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.metrics import read_metrics

_ARGMAX_FROM = 4

Given = Objective | type[Objective] | None
"""What `covey.train(objective=…)` takes."""


def build(config: Config, given: Given = None) -> dict[str, Any]:
    """The keyword arguments of `GRPOTrainer` for `objective.*`. Needs no model, so call it early.

    Args:
        given: the objective, or its class, in place of the one that the config names.

    Raises:
        ConfigError: the objective cannot be made, or not be used with these settings or this loss.
    """
    chosen, kl, training = config.objective, config.objective.kl, config.training
    objective = _make(config, given)
    _check_modes(config, objective)
    controller = None
    if kl.controller == "adaptive":
        controller = AdaptiveKL(target=kl.kl_target, horizon=kl.kl_horizon, step_size=kl.kl_ctl_step_size)
    return {
        "objective": adapted(
            objective,
            loss_type=training.loss_type,
            num_generations=training.num_generations,
            max_completion_length=training.max_completion_length,
            beta=training.beta,
        ),
        "kl_controller": controller,
        "stop_above_kl": kl.stop_above,
        "resample_groups": chosen.resample_groups,
    }


def near_argmax(objective: Any, loss_type: str, limit: int, mean_length: float | None = None) -> str | None:
    """A warning where the weights of xDr.GRPO are nearly those of τ = 0: the mean share of a completion in the loss
    over τ is above 4. None for any other objective, and for τ = 0 itself.

    Args:
        objective: of the run.
        loss_type: of TRL's loss.
        limit: `max_completion_length`, in tokens.
        mean_length: of completions, where it is known; else half of the limit is assumed.
    """
    if not isinstance(objective, XDR) or (objective.tau == 0 and objective.reference == 0):
        return None
    length = limit / 2 if mean_length is None else mean_length
    share = 1.0 if loss_type == "grpo" else length / limit
    tau = objective.tau / (math.log(2) if objective.adaptive else 1) + objective.reference
    if share / tau <= _ARGMAX_FROM:
        return None
    which = "" if loss_type == "grpo" else f" of {length:.0f} of {limit} tokens"
    guess = " (a guess: half of the limit)" if which and mean_length is None else ""
    return (
        f"objective.xdr_tau={objective.tau:g} is nearly 0 here: with completions{which}{guess}, a right one weighs "
        f"e^{share / tau:.3g} times a wrong one (an exponent above {_ARGMAX_FROM}), so only the best of a group count. "
        "τ is not portable between tasks and limits; this exponent, mean length / (limit · τ), is, and the metric "
        f"objective/log_odds shows it. xdr_tau={share / 2:.2g} would make it 2."
    )


def mean_length(run: RunDirectory) -> float | None:
    """The mean length of the newest completions of a run that is there, in tokens."""
    try:
        rows = read_metrics(run.metrics)
    except (RunDirectoryError, OSError):  # none, or damaged: a resume restores it
        return None
    return next(
        (float(row[names.COMPLETION_LENGTH]) for row in reversed(rows) if row.get(names.COMPLETION_LENGTH)), None
    )


def _check_modes(config: Config, objective: Any) -> None:
    """Raise a `ConfigError` if the objective needs answer modes and no reward of the run names any."""
    if "modes" not in needs_of(objective):
        return
    funcs = config.rewards.funcs
    own = [name for name in funcs if ":" in name and not name.startswith(MODEL_PREFIX)]  # these may log modes
    if own or any(IMPLIED_GRADERS.get(canonical_name(name)) in MODE_GRADERS for name in funcs if ":" not in name):
        return
    name = config.objective.name
    raise ConfigError(
        f"objective.name={name} compares right answers by their modes, and no reward of this run names any: "
        f"rewards.funcs=[{', '.join(funcs)}]. Use a reward that does ({', '.join(MODE_GRADERS)}, as with "
        f'dataset=countdown), or a function of your own that calls log_extra("mode", …) with a text or None for each '
        "completion." + (" Or set objective.xdr_adaptive=false." if name == XDR.NAME else "")
    )


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
