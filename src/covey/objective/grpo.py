"""GRPO: the advantages that TRL computes itself."""

from __future__ import annotations

from typing import Any

from covey.objective.interface import Metrics, Objective


class GRPO(Objective):
    """Leaves TRL's advantages unchanged: rewards minus the group's mean, scaled by `scale_rewards`.

    Loss type, clipping and importance sampling are TRL's own settings.

    Source: Shao et al. 2024, DeepSeekMath (arXiv:2402.03300), section 4.1.
    """

    @property
    def keeps_trl_advantages(self) -> bool:
        """True, unless a derived class computes its own."""
        return type(self).advantages is GRPO.advantages

    def advantages(self, *_: Any, **__: Any) -> tuple[None, Metrics]:
        """None: TRL's advantages stay."""
        return None, {}
