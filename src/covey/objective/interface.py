"""What an objective is: from the rewards of groups to the advantages that TRL's loss takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

Metrics = Mapping[str, float]
"""Numbers to log, by name (`objective/…`)."""


class Objective(ABC):
    """Turns the rewards of whole groups into advantages. Used in training only, never while evaluating.

    Any object with `needs` and `advantages` will do; the other methods may be left out.
    """

    @property
    def needs(self) -> frozenset[str]:
        """What `advantages` has to be handed, out of:

        - `reference`: log-probabilities under the reference model. Such an objective uses β itself, so that the loss
          gets no KL term of its own. With β = 0 there is no reference model, and None is handed over.
        - `policy`: log-probabilities under the policy that wrote the completions. They cost a forward pass where TRL
          keeps none. An objective that does not ask for them still gets them where they are there anyway.
        - `correct`: which completions are right, as one more keyword, `correct_PG`.
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
            mask_PG: which completions count. The others must leave the group before anything is normalised: those that
                no reward function could judge, and those without a token that the loss counts (truncated ones, when
                they are masked). Whatever is returned for them becomes 0.
            ref_logps_PG: log-probability of each completion under the reference, summed over its tokens, in nats.
            policy_logps_PG: the same under the policy, as it was when it wrote them.
            lengths_PG: completion tokens that the loss counts.
            beta: weight β of the KL divergence, as it is now.
            more: what else `needs` asks for.

        Returns:
            Advantages `[P, G]`, or None to leave TRL's own as they are; and metrics.
        """

    def for_run(self, *, loss_type: str, num_generations: int) -> Self:
        """This objective, fitted to the loss that it is used with.

        Raises:
            ConfigError: the two do not go together.
        """
        return self
