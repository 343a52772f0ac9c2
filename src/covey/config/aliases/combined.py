"""Aliases that mean something only in combination: evaluation, model family and size, adapters, KL control.

Each function takes the canonical values set so far, and the names of those that this source sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from covey.config.aliases.alias_result import AliasResult, AliasValueError, DeferredValue
from covey.config.aliases.conversions import flag, number
from covey.config.groups.training import training_fields

CanonicalValues = Mapping[str, Any]
CombinedConversion = Callable[[CanonicalValues, frozenset[str]], AliasResult]

KL_SWITCHES = ("grpo_beta_controller_enabled", "maxent_beta_controller_enabled")
"""Switches of the MaxEnt-GRPO project, each for one of its objectives."""

_SIZES = ("270m", "1b", "4b", "12b", "27b")


def evaluation(values: CanonicalValues, set_here: frozenset[str]) -> AliasResult:
    """When to evaluate, as transformers decides it: the strategy first, then `do_eval`, then the number of steps."""
    strategy = values.get("eval_strategy")
    strategy = "no" if strategy is False else strategy
    if strategy is not None and str(strategy).lower() not in ("no", "steps", "epoch"):
        raise AliasValueError("must be one of no, steps, epoch.", "eval_strategy")
    if strategy is not None:
        strategy = str(strategy).lower()
    if strategy == "no" or (strategy is None and "do_eval" in values and not flag(values["do_eval"])):
        return AliasResult({"evaluation.every_steps": 0})
    if strategy == "epoch":
        return AliasResult({"evaluation.every_steps": "epoch"})
    steps = values.get("eval_steps")
    if strategy == "steps" and not steps:
        steps = values.get("training.logging_steps", training_fields()["logging_steps"].default)
    if steps is None:
        return AliasResult()
    return AliasResult({"evaluation.every_steps": _steps(number(steps))})


def _steps(value: float) -> Any:
    """A number of steps; transformers takes one below 1 for a share of all steps."""
    if value < 0 or (value >= 1 and not value.is_integer()):
        raise AliasValueError("must be an integer of steps, or a share of them below 1.", "eval_steps")
    if value == 0 or value >= 1:
        return int(value)

    def compute(get: Callable[[str], Any]) -> tuple[Any, str]:
        total = get("training.max_steps")
        if total < 1:
            raise AliasValueError(
                "is a share of all steps, whose number is not known before training: set max_steps too."
            )
        return math.ceil(total * value), f"{value:g} of max_steps={total}"

    return DeferredValue(compute)


def gemma(values: CanonicalValues, set_here: frozenset[str]) -> AliasResult:
    """The model of a family and size; only Gemma 3 is known by size."""
    family, size = values.get("model_family", "gemma3"), values.get("model_size")
    if str(family).lower().replace("-", "").replace("_", "") not in ("gemma3", "gemma"):
        words = "must be gemma3, the only family that is known by size; name another model with model.name."
        raise AliasValueError(words, "model_family")
    if size is None:
        return AliasResult()
    if str(size).lower() not in _SIZES:
        raise AliasValueError(f"must be one of {', '.join(_SIZES)}; name another model with model.name.", "model_size")
    return AliasResult({"model.name": f"google/gemma-3-{str(size).lower()}-it"})


def adapters(values: CanonicalValues, set_here: frozenset[str]) -> AliasResult:
    """TRL trains adapters only with `use_peft`, whatever its `lora_*` keys say."""
    if "use_peft" in set_here:
        return AliasResult({"model.lora.enabled": flag(values["use_peft"])})
    if "use_peft" in values:
        return AliasResult()
    return AliasResult(implied={"model.lora.enabled": False})


def kl_control(values: CanonicalValues, set_here: frozenset[str]) -> AliasResult:
    """A target implies the adaptive controller, unless one of its parameters is 0 or every switch given is off."""
    switches = [flag(values[name]) for name in KL_SWITCHES if name in values]
    parts = [number(values[name]) for name in ("kl_target", "kl_horizon", "kl_ctl_step_size") if name in values]
    if "kl_target" not in values:
        return AliasResult()
    adaptive = all(parts) and (not switches or any(switches))
    return AliasResult(implied={"objective.kl.controller": "adaptive" if adaptive else "fixed"})


COMBINED: Mapping[str, CombinedConversion] = MappingProxyType(
    {
        **dict.fromkeys(("eval_strategy", "eval_steps", "do_eval"), evaluation),
        **dict.fromkeys(("model_family", "model_size"), gemma),
        **dict.fromkeys(("use_peft", "lora"), adapters),
        **dict.fromkeys(("kl_target", "kl_horizon", "kl_ctl_step_size", *KL_SWITCHES), kl_control),
    }
)
"""The names of the canonical values, with the function that combines them."""
