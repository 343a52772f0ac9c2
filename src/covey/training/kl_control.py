"""The KL divergence of an optimiser step: measured over its micro-batches and processes, acted upon, and limited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from covey.errors import ConfigError, TrainingError
from covey.objective import KLController, kl_per_token
from covey.runlog.directory import RunDirectory


class KLWatch:
    """Adds up the KL of the micro-batches of an optimiser step. Between two steps it holds nothing.

    Every token of the step counts alike, so the result does not depend on how the step is cut into micro-batches.
    """

    def __init__(self, controller: KLController | None, stop_above: float | None, beta: float) -> None:
        """Watch, and act on what is seen.

        Args:
            controller: moves β; None leaves it.
            stop_above: the KL, in nats per token, that ends the run; None never does.
            beta: β at the start.

        Raises:
            ConfigError: there is no reference to measure the KL against.
        """
        if beta == 0 and (controller is not None or stop_above is not None):
            asked = "A KL controller" if controller is not None else "A limit on the KL (stop_above_kl)"
            raise ConfigError(
                f"{asked} needs a reference model, and with beta=0 there is none: set beta above 0, such as 0.04."
            )
        self._controller = controller
        self._stop_above = stop_above
        self._totals: Tensor | None = None
        self._exceeded: float | None = None

    @property
    def acts(self) -> bool:
        """Whether anything depends on the KL, apart from the log."""
        return self._controller is not None or self._stop_above is not None

    @property
    def moves_beta(self) -> bool:
        """Whether β changes in the course of training."""
        return self._controller is not None

    @property
    def exceeded(self) -> bool:
        """Whether a step's KL was above the limit."""
        return self._exceeded is not None

    def add(self, logps_BT: Tensor, ref_logps_BT: Tensor, mask_BT: Tensor) -> None:
        """Take in a micro-batch of this process: log-probabilities under policy and reference, and which count."""
        kl_BT = torch.where(mask_BT.bool(), kl_per_token(logps_BT, ref_logps_BT), 0.0)
        wide = torch.float32 if kl_BT.device.type == "mps" else torch.float64
        rows = mask_BT.new_tensor(len(mask_BT))
        totals = torch.stack([kl_BT.sum(dtype=wide), mask_BT.sum().to(wide), rows.to(wide)])
        self._totals = totals if self._totals is None else self._totals + totals

    def end_step(self, beta: float, reduce: Callable[[Tensor], Tensor]) -> tuple[float | None, float]:
        """The mean KL per token of the step, over all processes, and β for the next.

        Args:
            beta: β of this step.
            reduce: adds a tensor up over all processes.

        Returns:
            None for the KL when no token of the step counted; β then stays.
        """
        if self._totals is None:
            return None, beta
        total, tokens, completions = reduce(self._totals).tolist()
        self._totals = None
        if tokens == 0:
            return None, beta
        kl = total / tokens
        if self._stop_above is not None and not kl <= self._stop_above:  # NaN counts as exploded
            self._exceeded = kl
        if self._controller is not None:
            beta = float(self._controller.next_beta(beta, kl, int(completions)))
        return kl, beta

    def complaint(self, step: int, output_dir: Path) -> TrainingError:
        """What to tell the user after `exceeded`.

        The KL of a step belongs to the weights before it, so that the checkpoint of the step before holds the exploded
        weights already.

        Args:
            step: the optimiser step that was just done, whose KL was too high.
            output_dir: where the checkpoints lie.
        """
        good = [path for number, path in RunDirectory(output_dir).whole_checkpoints() if number < step - 1]
        advice = "a lower learning rate, a larger β (beta), or an adaptive one would hold it down"
        if good:
            where = f"The last good checkpoint is {good[-1]}: go on from it under another name, where {advice}."
        else:
            where = f"There is no checkpoint from before that; in a new run, {advice}."
        return TrainingError(
            f"The KL divergence from the reference was {self._exceeded:.4g} nats per token in step {step}, above the "
            f"limit of {self._stop_above:g} (objective.kl.stop_above), so the run was ended. {where}"
        )
