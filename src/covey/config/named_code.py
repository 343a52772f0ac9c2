"""Code and commands that a config names, and a config without them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from pathlib import Path
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

STUB = Path(__file__).parents[1] / "rewards" / "own_reward.py.txt"
"""The reward that `covey init` writes. A copy of it, byte for byte, does no harm, whoever names it."""

_NO_PARTS = {key for key in SKIPPED if key.startswith(("model.", "rewards.code.", "rewards.model."))} | {"callbacks"}


def named_code(config: Config) -> dict[str, tuple[str, ...]]:
    """The Python code, commands and kernels that a config names and that would run with the user's rights, by key."""
    rewards, model, environment = config.rewards, config.model, config.environment
    kwargs = config.training.model_init_kwargs or {}
    attention = str(model.attn_implementation or kwargs.get("attn_implementation") or "")
    models = tuple(name for name in rewards.funcs if name.startswith("model:"))
    factories = [name for name, _ in environment.factories.values()]
    named: dict[str, Any] = {
        "rewards.funcs": [name for name in rewards.funcs if name not in models],
        "evaluation.grader": [config.evaluation.grader],
        "objective.name": [config.objective.name],
        "rollout.engine": [config.rollout.engine],
        "evaluation.engine": [config.evaluation.engine],
        "environment.factory": [name for name in environment.own_code if name in factories],
        "environment.tools": [name for name in environment.own_code if name in environment.tools],
        "environment.rollout_func": [environment.rollout_func],
        "callbacks": config.callbacks,
    }
    named = {key: tuple(name for name in names if name and ":" in name) for key, names in named.items()}
    named["rewards.code.commands"] = tuple(rewards.code.commands.values())
    named["rewards.model.trust_remote_code"] = models * rewards.model.trust_remote_code
    trusts = bool(model.trust_remote_code or kwargs.get("trust_remote_code"))
    named["model.trust_remote_code"] = (model.name,) * trusts
    named["model.attn_implementation"] = (attention,) * bool("/" in attention or kwargs.get("allow_all_kernels"))
    return {key: names for key, names in named.items() if names}


def own_code(config: Config) -> tuple[str, ...]:
    """The user's own parts that decide the numbers of a run: rewards, grader, objective, engines, environments."""
    parts = (names for key, names in named_code(config).items() if key not in _NO_PARTS)
    return tuple(dict.fromkeys(name for names in parts for name in names))


def not_typed(config: Config, given: Collection[Given]) -> dict[str, tuple[str, ...]]:
    """Those of `named_code` that a file names, not the command line, without an unchanged `STUB`."""

    def is_typed(key: str, name: str) -> bool:
        typed = [one.written for one in given if any(f"{k}.".startswith(f"{key}.") for k in one.keys)]
        typed = [written for written in typed if written.typed]
        return any(key.endswith("_code") or name in f"{one.place} {one.value}" for one in typed)

    found = {key: tuple(n for n in names if not is_typed(key, n)) for key, names in named_code(config).items()}
    found = {key: tuple(n for n in names if not is_stub(n)) for key, names in found.items()}
    return {key: names for key, names in found.items() if names}


def is_stub(name: str) -> bool:
    """Whether a name is of an unchanged `STUB`."""
    file = Path(name.rpartition(":")[0])
    return file.suffix == ".py" and file.is_file() and file.read_bytes() == STUB.read_bytes()


def without(config: Config, named: Mapping[str, Collection[str]]) -> Config:
    """The config without this code. Checks that need it must be left out, see `SKIPPED`."""
    gone = {name for names in named.values() for name in names}
    values: dict[str, Any] = {"evaluation.grader": None, "evaluation.engine": "local", "rollout.engine": None}
    values = {key: value for key, value in values.items() if key in named}
    values["callbacks"] = tuple(name for name in config.callbacks if name not in gone)
    values["rewards.funcs"] = tuple(name for name in config.rewards.funcs if name not in gone)
    training = dict(config.training.values)
    if {"rewards.funcs", "rewards.model.trust_remote_code", "evaluation.grader"} & {*named}:
        values["evaluation.best_by"] = training["reward_weights"] = None
    if "objective.name" in named:
        values |= {"objective.name": "grpo", "objective.settings": {}}
    if any(key.startswith("environment.") for key in named):
        values |= {"environment.factory": None, "environment.tools": (), "environment.rollout_func": None}
    if any(key.startswith("model.") for key in named):
        values |= {"model.trust_remote_code": False, "model.attn_implementation": None}
        training["model_init_kwargs"] = None
    values["training"] = type(config.training)(training)
    found = copy(config)  # not made anew: without what is left out it may not be a config that can run
    for key, value in values.items():
        group, dot, name = key.rpartition(".")
        if dot:
            object.__setattr__(found, group, copy(getattr(found, group)))
        object.__setattr__(getattr(found, group) if dot else found, name, value)
    return found
