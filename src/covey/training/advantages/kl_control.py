"""The KL divergence of an optimiser step, over its micro-batches and processes; its controller and its limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from covey.errors import ConfigError, TrainingError
from covey.objective import KLController, kl_per_token
from covey.objective.weights import widest_dtype
from covey.runlog.directory import RunDirectory


class KLMonitor:
    """Accumulates the KL over the micro-batches of an optimiser step.

    Every token of the step counts alike, so the result does not depend on the split into micro-batches.
    """

    def __init__(self, controller: KLController | None, stop_above: float | None, beta: float) -> None:
        """
        Args:
            controller: updates β; None keeps it.
            stop_above: the KL, in nats per token, above which the run ends; None for no limit.
            beta: β at the start.

        Raises:
            ConfigError: there is no reference model.
        """
        if beta == 0 and (controller is not None or stop_above is not None):
            setting = "A KL controller" if controller is not None else "A limit on the KL (stop_above_kl)"
            raise ConfigError(
                f"{setting} needs a reference model, and with beta=0 there is none: set beta above 0, such as 0.04."
            )
        self._controller = controller
        self._stop_above = stop_above
        self._totals: Tensor | None = None
        self._exceeded: float | None = None

    @property
    def acts(self) -> bool:
        """Whether training depends on the KL."""
        return self._controller is not None or self._stop_above is not None

    @property
    def moves_beta(self) -> bool:
        """Whether β changes during training."""
        return self._controller is not None

    @property
    def exceeded(self) -> bool:
        """Whether a step's KL was above the limit."""
        return self._exceeded is not None

    def add(self, logps_BT: Tensor, ref_logps_BT: Tensor, mask_BT: Tensor) -> None:
        """Add a micro-batch of this process: log-probs under policy and reference, and which tokens count."""
        kl_BT = torch.where(mask_BT.bool(), kl_per_token(logps_BT, ref_logps_BT), 0.0)
        wide = widest_dtype(kl_BT)
        rows = mask_BT.new_tensor(len(mask_BT))
        totals = torch.stack([kl_BT.sum(dtype=wide), mask_BT.sum().to(wide), rows.to(wide)])
        self._totals = totals if self._totals is None else self._totals + totals

    def end_step(self, beta: float, reduce: Callable[[Tensor], Tensor]) -> tuple[float | None, float]:
        """The mean KL per token of the step, over all processes, and β for the next.

        Args:
            beta: β of this step.
            reduce: sums a tensor over all processes.

        Returns:
            None for the KL if no token of the step counted; β then stays, as it does for a KL that is not a number.
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
        if self._controller is not None and not math.isnan(kl):  # one NaN would otherwise make β NaN for ever
            beta = float(self._controller.next_beta(beta, kl, int(completions)))
        return kl, beta

    def error(self, step: int, output_dir: Path) -> TrainingError:
        """The error to raise after `exceeded`.

        The KL of a step is that of the weights before it, so the checkpoint of the previous step already holds the bad
        weights.

        Args:
            step: the optimiser step whose KL was too high.
            output_dir: of the checkpoints.
        """
        good = [path for number, path in RunDirectory(output_dir).complete_checkpoints() if number < step - 1]
        advice = "a lower learning rate, a larger β (beta), or an adaptive one would limit it"
        if good:
            where = f"The last good checkpoint is {good[-1]}: resume from it under another run_name; {advice}."
        else:
            where = f"There is no checkpoint from before that; in a new run, {advice}."
        return TrainingError(
            f"The KL divergence from the reference was {self._exceeded:.4g} nats per token in step {step}, above the "
            f"limit of {self._stop_above:g} (objective.kl.stop_above), so the run was stopped. {where}"
        )
