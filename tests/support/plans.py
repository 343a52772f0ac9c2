"""Plans for the tests of the launcher, from a few overrides."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from covey.config import Config, load
from covey.launch.machine import Machine
from covey.launch.plan import LaunchPlan, make_plan

SERVE = ("training.use_vllm=true", "training.vllm_mode=server")


def config(*words: str) -> Config:
    return load(words, world_size=1)


def plan(machine: int, *words: str, **more: Any) -> LaunchPlan:
    return make_plan(config(*words), "r", Machine.of(machine, 4), python="python", **more)


def by_name(made: LaunchPlan) -> dict[str, Any]:
    return {process.name: process for process in made.processes}


def options(command: tuple[str, ...]) -> dict[str, str]:
    """The values behind the flags of a command."""
    pairs = pairwise(command)
    return {name: value for name, value in pairs if name.startswith("--")}
