"""GRPO: the advantages that TRL computes itself."""

from __future__ import annotations

from typing import Any

from covey.objective.interface import Metrics, Objective


class GRPO(Objective):
    """Leaves TRL's advantages exactly as they are: rewards less the group's mean, scaled as `scale_rewards` says.

    Everything around them is reached by TRL's own settings: the form of the loss, clipping, importance sampling.

    Source: Shao et al. 2024, DeepSeekMath (arXiv:2402.03300), section 4.1.
    """

    def advantages(self, *_: Any, **__: Any) -> tuple[None, Metrics]:
        """None: TRL's advantages stay."""
        return None, {}
