"""An objective as a user may write one: with settings, a state, metrics and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class RunningBaseline:
    """The reward less a running mean of earlier batches; derived from nothing, and without `needs` and `for_run`."""

    @dataclass(frozen=True)
    class Settings:
        decay: float = 0.5
        start: float = 0.25

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or RunningBaseline.Settings()
        self.baseline = torch.tensor(self.settings.start, dtype=torch.float64)
        self.batches = 0

    def advantages(self, rewards_PG: Tensor, mask_PG: Tensor, **_: Any) -> Any:
        rewards_PG = rewards_PG.double().masked_fill(~mask_PG, 0.0)
        advantages_PG, before = rewards_PG - self.baseline, float(self.baseline)
        mean = rewards_PG.sum() / mask_PG.sum()
        self.baseline = self.settings.decay * self.baseline + (1 - self.settings.decay) * mean
        self.batches += 1
        columns = {"over_baseline": advantages_PG, "batch": [[self.batches] * len(row) for row in mask_PG]}
        return advantages_PG, {"objective/baseline": before}, columns

    def state_dict(self) -> Mapping[str, Any]:
        return {"baseline": self.baseline, "batches": self.batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.baseline, self.batches = state["baseline"], state["batches"]
