"""The advantages of a generation batch by an objective. Knows tensors, not TRL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covey.errors import TrainingError
from covey.objective import Objective
from covey.objective.built_in import BuiltIn
from covey.objective.diagnostics import implied_weights, weight_metrics
from covey.objective.interface import needs_of, passer, reported
from covey.objective.weights import widest_dtype
from covey.runlog.names import weight_column
from covey.training.advantages.returned import checked

RIGHT_FROM = 1.0
"""A completion counts as right from this reward of the first function on."""


@dataclass(frozen=True, slots=True)
class ScoredRewards:
    """The rewards of a generation batch over all processes, and how they are combined."""

    per_function: Tensor
    """`[B, F]`, one column per reward function; NaN where it does not apply."""
    weights: Tensor
    """`[F]`."""
    aggregation: str
    """TRL's `multi_objective_aggregation`."""
    num_generations: int

    def only(self, counts_B: Tensor) -> ScoredRewards:
        """The same, with NaN in the rows that do not count."""
        return replace(self, per_function=self.per_function.masked_fill(~counts_B[:, None], torch.nan))

    def grouped(self) -> Tensor:
        """The weighted sums `[P, G]`, by TRL's rules; NaN where no reward function applies.

        `sum_then_normalize` adds the rewards; `normalize_then_sum` first scales each function's rewards
        within the group.
        """
        groups_PGF = self.per_function.view(-1, self.num_generations, self.per_function.shape[-1])
        values_PGF = groups_PGF
        if self.aggregation == "normalize_then_sum":
            centred_PGF = groups_PGF - groups_PGF.nanmean(dim=1, keepdim=True)
            count_P1F = (~groups_PGF.isnan()).sum(dim=1, keepdim=True)
            variance_P1F = centred_PGF.square().nansum(dim=1, keepdim=True) / (count_P1F - 1)
            variance_P1F = torch.where(count_P1F > 1, variance_P1F, torch.nan)
            values_PGF = centred_PGF / (variance_P1F.sqrt() + 1e-4)
        summed_PG = (values_PGF * self.weights.to(values_PGF)).nansum(dim=-1)
        return summed_PG.masked_fill(groups_PGF.isnan().all(dim=-1), torch.nan)

    def correct(self) -> Tensor:
        """Which completions are right, `[P, G]`."""
        return (self.per_function[:, 0] >= RIGHT_FROM).view(-1, self.num_generations)


def compute_advantages(
    objective: Objective,
    scored: ScoredRewards,
    *,
    mask_BT: Tensor,
    ref_logps_BT: Tensor | None,
    policy_logps_BT: Tensor | None,
    beta: float,
    gather: Callable[[Tensor], Tensor],
    taken: Collection[str] = (),
    modes: Sequence[str | None] | None = None,
) -> tuple[Tensor | None, dict[str, float], dict[str, list[Any]]]:
    """The advantages of all completions over all processes, `[B]`, in the order of the rewards; metrics; and columns,
    with a value for each completion.

    Processes exchange sums over completions only.

    Args:
        objective: computes the advantages.
        scored: the rewards, over all processes.
        mask_BT: the completion tokens that the loss counts, of this process. A completion without any (truncated ones,
            when they are masked) leaves its group.
        ref_logps_BT: log-probs under the reference, of this process; None without a reference.
        policy_logps_BT: the same under the policy.
        beta: weight of the KL divergence.
        gather: concatenates a tensor over all processes.
        taken: names of columns that the objective may not use.
        modes: the answer mode of each completion, over all processes; None where there is none. For an objective that
            needs them.

    Returns:
        None for the advantages if the objective uses TRL's.

    Raises:
        TrainingError: the objective fails, or what it returns cannot be used.
    """
    columns = {"lengths": mask_BT.sum(dim=1)}
    for name, logps_BT in (("reference", ref_logps_BT), ("policy", policy_logps_BT)):
        if logps_BT is not None:
            columns[name] = _sums(logps_BT, mask_BT)
    wide = widest_dtype(mask_BT)
    gathered = gather(torch.stack([column.to(wide) for column in columns.values()], dim=1))
    grouped = {name: gathered[:, index].reshape(-1, scored.num_generations) for index, name in enumerate(columns)}
    correct_PG = scored.correct()
    scored = scored.only(grouped["lengths"].flatten() > 0)
    rewards_PG = scored.grouped()
    mask_PG = torch.isfinite(rewards_PG)
    rewards_PG = rewards_PG.masked_fill(~mask_PG, torch.nan)
    needs = needs_of(objective)
    more = {"correct_PG": correct_PG & mask_PG} if "correct" in needs else {}
    if "modes" in needs:
        more["modes_PG"] = _numbered(objective, modes, scored.num_generations).to(mask_PG.device)
    with reported(objective, "advantages", TrainingError):
        found = passer(objective)(
            rewards_PG=rewards_PG,
            mask_PG=mask_PG,
            ref_logps_PG=grouped.get("reference") if needs & {"reference", "reference_logps"} else None,
            policy_logps_PG=grouped.get("policy"),
            lengths_PG=grouped["lengths"],
            beta=beta,
            **more,
        )
    advantages_PG, metrics, own_columns = checked(found, type(objective).__name__, mask_PG, taken)
    weights_PG = implied_weights(advantages_PG, rewards_PG, mask_PG)
    if isinstance(objective, BuiltIn) and (own := own_columns.get(weight_column(objective.NAME))) is not None:
        weights_PG = torch.tensor(own, dtype=wide, device=mask_PG.device).view(mask_PG.shape)
    metrics = {
        **weight_metrics(weights_PG, mask_PG, grouped["lengths"], correct_PG),
        "objective/log_odds": 0.0,  # without a temperature
        "objective/excluded_completions": float((~mask_PG).sum()),
        **metrics,
    }
    if advantages_PG is not None:
        advantages_PG = advantages_PG.detach().to(mask_PG.device, torch.float32).masked_fill(~mask_PG, 0.0).flatten()
    return advantages_PG, metrics, own_columns


def _numbered(objective: Any, modes: Sequence[str | None] | None, num_generations: int) -> Tensor:
    """The modes as numbers, `[P, G]`: equal within a group where the names are, -1 for none. Raises a `TrainingError`
    if there are none."""
    if modes is None:
        raise TrainingError(
            f"The objective {type(objective).__name__} needs the answer mode of each right completion, and no reward "
            "of this step named any: use a reward whose grader does, such as countdown, or log them from a reward "
            'function by log_extra("mode", [...]), a text or None for each completion.'
        )
    numbers: list[list[int]] = []
    for start in range(0, len(modes), num_generations):
        known: dict[str, int] = {}
        group = modes[start : start + num_generations]
        numbers.append([-1 if mode is None else known.setdefault(mode, len(known)) for mode in group])
    return torch.tensor(numbers, dtype=torch.int64)


def _sums(logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sums over the tokens that count. Other values may be NaN or infinite, so they are not multiplied by 0."""
    return torch.where(mask_BT.bool(), logps_BT, 0.0).sum(dim=1, dtype=widest_dtype(logps_BT))


def loss_mask(batch: Mapping[str, Any]) -> torch.Tensor:
    """Which completion tokens the loss counts, `[B, T]`, in a batch with TRL's keys."""
    mask: torch.Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask
