"""Foreign keys that mean something only together: evaluation, a model's family and size, adapters, KL control.

Each function takes what was said so far by the names of the facts, and which of them this source said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from covey.config import snapshot
from covey.config.conversions import flag, number
from covey.config.landing import Implied, Landing, Later, UnfitError

Facts = Mapping[str, Any]
Together = Callable[[Facts, frozenset[str]], Landing]

KL_SWITCHES = ("grpo_beta_controller_enabled", "maxent_beta_controller_enabled")
"""Switches of the MaxEnt-GRPO project, each for one of its objectives."""

_SIZES = ("270m", "1b", "4b", "12b", "27b")


def evaluation(said: Facts, now: frozenset[str]) -> Landing:
    """When to evaluate, as transformers decides it: the strategy first, then `do_eval`, then the number of steps."""
    strategy = said.get("eval_strategy")
    strategy = "no" if strategy is False else strategy
    if strategy is not None and str(strategy).lower() not in ("no", "steps", "epoch"):
        raise UnfitError("must be one of no, steps, epoch.", "eval_strategy")
    if strategy is not None:
        strategy = str(strategy).lower()
    if strategy == "no" or (strategy is None and "do_eval" in said and not flag(said["do_eval"])):
        return Landing({"evaluation.every_steps": 0})
    if strategy == "epoch":
        return Landing({"evaluation.every_steps": "epoch"})
    steps = said.get("eval_steps")
    if strategy == "steps" and not steps:
        steps = said.get("training.logging_steps", snapshot.fields()["logging_steps"].default)
    if steps is None:
        return Landing()
    return Landing({"evaluation.every_steps": _steps(number(steps))})


def _steps(value: float) -> Any:
    """A number of steps; transformers takes one below 1 for a share of all steps."""
    if value < 0 or (value >= 1 and not value.is_integer()):
        raise UnfitError("must be a whole number of steps, or a share of them below 1.", "eval_steps")
    if value == 0 or value >= 1:
        return int(value)

    def compute(get: Callable[[str], Any]) -> tuple[Any, str]:
        total = get("training.max_steps")
        if total < 1:
            raise UnfitError("is a share of all steps, whose number is not known before training: set max_steps too.")
        return math.ceil(total * value), f"{value:g} of max_steps={total}"

    return Later(compute)


def gemma(said: Facts, now: frozenset[str]) -> Landing:
    """The model of a family and size; the family that comes in sizes is Gemma 3."""
    family, size = said.get("model_family", "gemma3"), said.get("model_size")
    if str(family).lower().replace("-", "").replace("_", "") not in ("gemma3", "gemma"):
        words = "must be gemma3, the only family that is known by size; name another model with model.name."
        raise UnfitError(words, "model_family")
    if size is None:
        return Landing()
    if str(size).lower() not in _SIZES:
        raise UnfitError(f"must be one of {', '.join(_SIZES)}; name another model with model.name.", "model_size")
    return Landing({"model.name": f"google/gemma-3-{str(size).lower()}-it"})


def adapters(said: Facts, now: frozenset[str]) -> Landing:
    """TRL trains adapters only with `use_peft`, whatever its `lora_*` keys say."""
    if "use_peft" in now:
        return Landing({"model.lora.enabled": flag(said["use_peft"])})
    if "use_peft" in said:
        return Landing()
    note = "the lora_* keys have no effect without use_peft: true, as in TRL: no adapters are trained"
    return Landing(implied=(Implied("model.lora.enabled", False, note),))


def kl_control(said: Facts, now: frozenset[str]) -> Landing:
    """A target asks for the adaptive controller, unless one of its parts is 0 or its switch is off: then no control."""
    switches = [flag(said[name]) for name in KL_SWITCHES if name in said]
    if switches and not any(switches):
        return Landing()
    parts = [number(said[name]) for name in ("kl_target", "kl_horizon", "kl_ctl_step_size") if name in said]
    if "kl_target" not in said or not all(parts):
        return Landing()
    return Landing(implied=(Implied("objective.kl.controller", "adaptive"),))


TOGETHER: Mapping[str, Together] = MappingProxyType(
    {
        "eval_strategy": evaluation,
        "eval_steps": evaluation,
        "do_eval": evaluation,
        "model_family": gemma,
        "model_size": gemma,
        "use_peft": adapters,
        "lora": adapters,
        "kl_target": kl_control,
        "kl_horizon": kl_control,
        "kl_ctl_step_size": kl_control,
        **dict.fromkeys(KL_SWITCHES, kl_control),
    }
)
"""The names of the facts, with the function that puts them together."""
