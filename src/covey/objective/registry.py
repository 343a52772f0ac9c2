"""The objectives that `objective.name` takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from covey.errors import ConfigError
from covey.objective.by_modes import SEED, Darling, Unique, Unlikely
from covey.objective.grpo import GRPO
from covey.objective.interface import Objective
from covey.objective.maxent import MaxEnt
from covey.objective.rewards_only import DrGRPO, MaxRL, PassK, Quantile
from covey.objective.xdr import XDR

REGISTRY: dict[str, Callable[..., Objective]] = {
    "grpo": GRPO,
    "maxent": MaxEnt,
    "dr_grpo": DrGRPO,
    "maxrl": MaxRL,
    "xdr": XDR,
    "passk": PassK,
    "unique": Unique,
    "darling": Darling,
    "seed": SEED,
    "quantile": Quantile,
    "unlikely": Unlikely,
}
"""One line per objective."""


def make(name: str, **settings: Any) -> Objective:
    """The objective called `name`.

    Args:
        name: a name of the registry.
        settings: of the objective, such as `tau` of `maxent`.

    Raises:
        ConfigError: there is no such objective or setting, or a value is invalid.
    """
    if name not in REGISTRY:
        raise ConfigError(f"There is no objective called {name}. Covey has {', '.join(REGISTRY)}.")
    taken = inspect.signature(REGISTRY[name]).parameters
    if unknown := [key for key in settings if key not in taken]:
        has = f"it has {', '.join(taken)}" if taken else "it has none"
        raise ConfigError(f"The objective {name} has no setting called {', '.join(unknown)}; {has}.")
    return REGISTRY[name](**settings)
