"""Code and commands that a config names, and a config without them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from types import MappingProxyType
from typing import Any

from covey.config.live import Given
from covey.config.schema import Config

SKIPPED: Mapping[str, str] = MappingProxyType(
    {
        "rewards.funcs": "trial calls of the reward, and the columns that it reads",
        "rewards.code.commands": "the three steps of --try",
        "rewards.model.trust_remote_code": "the reward models",
        "evaluation.grader": "trial calls of the grader, and the columns that it reads",
        "objective.name": "the objective",
        "rollout.engine": "the engine",
        "evaluation.engine": "the engine of evaluations",
        "environment": "environment, an episode, data, prompts, lengths, batch, answers, memory",
        "callbacks": "the callbacks",
        "model.trust_remote_code": "the model, stop tokens, prompts, lengths, batch, answers, memory",
        "model.attn_implementation": "the attention",
    }
)
"""What `covey doctor` leaves out without the code of each key; `environment` stands for the keys below it."""


def named_code(config: Config) -> dict[str, tuple[str, ...]]:
    """The Python code, commands and kernels that a config names and that would run with the user's rights, by key."""
    rewards, model, kwargs = config.rewards, config.model, config.training.model_init_kwargs or {}
    attention = str(model.attn_implementation or kwargs.get("attn_implementation") or "")
    trusts = model.trust_remote_code or kwargs.get("trust_remote_code")
    models = [name for name in rewards.funcs if name.startswith("model:")]
    found: dict[str, Iterable[str | None]] = {
        "rewards.funcs": [name for name in rewards.funcs if name not in models],
        "evaluation.grader": [config.evaluation.grader],
        "objective.name": [config.objective.name],
        "rollout.engine": [config.rollout.engine],
        "evaluation.engine": [config.evaluation.engine],
        "environment.factory": [n for n in config.environment.own_code if n in _factories(config)],
        "environment.tools": [n for n in config.environment.own_code if n in config.environment.tools],
        "environment.rollout_func": [config.environment.rollout_func],
        "callbacks": config.callbacks,
    }
    named = {key: tuple(name for name in names if name and ":" in name) for key, names in found.items()}
    named["rewards.code.commands"] = tuple(rewards.code.commands.values())
    named["rewards.model.trust_remote_code"] = tuple(models) if rewards.model.trust_remote_code else ()
    named["model.trust_remote_code"] = (model.name,) if trusts else ()
    named["model.attn_implementation"] = (attention,) if "/" in attention or kwargs.get("allow_all_kernels") else ()
    return {key: names for key, names in named.items() if names}


def not_typed(config: Config, given: Collection[Given]) -> dict[str, tuple[str, ...]]:
    """Those of `named_code` that a file names, not the command line."""

    def is_typed(key: str, name: str) -> bool:
        return any(
            one.written.typed
            and any(f"{k}.".startswith(f"{key}.") for k in one.keys)
            and (key.endswith("trust_remote_code") or name in f"{one.written.place} {one.written.value}")
            for one in given
        )

    found = {key: tuple(n for n in names if not is_typed(key, n)) for key, names in named_code(config).items()}
    return {key: names for key, names in found.items() if names}


def without(config: Config, named: Mapping[str, Collection[str]]) -> Config:
    """The config without this code. Checks that need it must be left out, see `SKIPPED`."""

    def changed(group: Any, **values: Any) -> Any:
        found = copy(group)  # not made anew: without what is left out it may not be a config that can run
        for name, value in values.items():
            object.__setattr__(found, name, value)
        return found

    gone = {name for names in named.values() for name in names}
    rewards, evaluation, training = config.rewards, config.evaluation, config.training
    if {"rewards.funcs", "rewards.model.trust_remote_code", "evaluation.grader"} & {*named}:
        rewards = changed(rewards, funcs=tuple(name for name in rewards.funcs if name not in gone))
        evaluation = changed(evaluation, best_by=None)
        training = type(training)({**training.values, "reward_weights": None})
    if "evaluation.grader" in named:
        evaluation = changed(evaluation, grader=None)
    if "evaluation.engine" in named:
        evaluation = changed(evaluation, engine="local")
    parts = {"rewards": rewards, "evaluation": evaluation, "training": training}
    parts["callbacks"] = tuple(name for name in config.callbacks if name not in gone)
    if "objective.name" in named:
        parts["objective"] = changed(config.objective, name="grpo", settings={})
    if "rollout.engine" in named:
        parts["rollout"] = changed(config.rollout, engine=None)
    if any(key.startswith("environment.") for key in named):
        parts["environment"] = changed(config.environment, factory=None, tools=(), rollout_func=None)
    if {"model.trust_remote_code", "model.attn_implementation"} & {*named}:
        parts["model"] = changed(config.model, trust_remote_code=False, attn_implementation=None)
        parts["training"] = type(training)({**parts["training"].values, "model_init_kwargs": None})
    return changed(config, **parts)  # type: ignore[no-any-return]


def _factories(config: Config) -> list[str]:
    return [factory for factory, _ in config.environment.factories.values()]
