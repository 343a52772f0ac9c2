"""The interface of an objective: from the rewards of groups to the advantages of TRL's loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

Metrics = Mapping[str, float]
"""Numbers to log, by name (`objective/…`)."""


class Objective(ABC):
    """Turns the rewards of whole groups into advantages. Used in training only, not in evaluation.

    Any object with `needs` and `advantages` is an objective; the other methods are optional.
    """

    @property
    def needs(self) -> frozenset[str]:
        """The inputs that `advantages` needs, out of:

        - `reference`: log-probabilities under the reference model. Such an objective uses β itself, so that the loss
          has no KL term of its own. With β = 0 there is no reference model, and it gets None.
        - `policy`: log-probabilities under the policy that generated the completions. They cost a forward pass if TRL
          does not compute them. An objective without this need still gets them when they are available.
        - `correct`: which completions are right, as the keyword argument `correct_PG`.
        """
        return frozenset()

    @abstractmethod
    def advantages(
        self,
        rewards_PG: Tensor,
        mask_PG: Tensor,
        *,
        ref_logps_PG: Tensor | None,
        policy_logps_PG: Tensor | None,
        lengths_PG: Tensor,
        beta: float,
        **more: Any,
    ) -> tuple[Tensor | None, Metrics]:
        """The advantages of all completions of a generation batch, over all processes.

        Args:
            rewards_PG: weighted sum of the rewards, `[P, G]`; NaN where `mask_PG` is false.
            mask_PG: which completions count. The others must be excluded from the group before any normalisation: those
                without a reward, and those without a token in the loss (truncated ones, if masked). Their advantages
                become 0.
            ref_logps_PG: log-probability of each completion under the reference, summed over its tokens, in nats.
            policy_logps_PG: the same under the policy that generated them.
            lengths_PG: completion tokens in the loss.
            beta: current weight β of the KL divergence.
            more: further inputs, by `needs`.

        Returns:
            Advantages `[P, G]`, or None to keep TRL's own; and metrics.
        """

    def for_run(self, *, loss_type: str, num_generations: int) -> Self:
        """This objective, adapted to the loss that it is used with.

        Raises:
            ConfigError: the loss does not support it.
        """
        return self
