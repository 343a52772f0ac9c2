"""Random groups for objectives, and their advantages of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIMIT = 20
Group = dict[str, torch.Tensor]


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def groups(seed: int, size: int = 8, count: int = 5, *, binary: bool = False) -> Group:
    """Random groups: rewards of a few values (so there are ties), modes on about half of the completions."""
    generator = torch.Generator().manual_seed(seed)
    draw: Callable[[int], torch.Tensor] = lambda high: torch.randint(0, high, (count, size), generator=generator)  # noqa: E731
    rewards = draw(2 if binary else 5).double() / (1 if binary else 4)
    lengths = torch.full((count, size), 10) if binary else draw(LIMIT) + 1
    modes = draw(3).masked_fill(draw(2) == 0, -1)
    logps = [-3 * torch.rand((count, size), generator=generator, dtype=torch.float64) * lengths for _ in range(2)]
    return {
        "rewards_PG": rewards,
        "mask_PG": torch.ones(count, size, dtype=torch.bool),
        "lengths_PG": lengths,
        "modes_PG": modes,
        "ref_logps_PG": logps[0],
        "policy_logps_PG": logps[1],
    }


def advantages(objective: Any, given: Group, **more: Any) -> torch.Tensor:
    rest = {name: value for name, value in given.items() if name not in ("rewards_PG", "mask_PG")}
    found = objective.advantages(given["rewards_PG"], given["mask_PG"], **{"beta": 0.0, **rest, **more})
    return torch.as_tensor(found[0])
