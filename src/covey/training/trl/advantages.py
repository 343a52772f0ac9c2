"""The advantages of TRL's generation batch, by Covey's objective."""

from __future__ import annotations

from typing import Any

import torch

from covey.training.advantages.objective_step import ScoredRewards, compute_advantages, loss_mask


def scored(trainer: Any, rewards_BF: torch.Tensor) -> ScoredRewards:
    """The rewards, and how the trainer combines them."""
    return ScoredRewards(
        rewards_BF, trainer.reward_weights, trainer.multi_objective_aggregation, trainer.num_generations
    )


def apply_objective(trainer: Any, output: dict[str, Any], rewards_BF: torch.Tensor) -> dict[str, list[Any]]:
    """Replace TRL's advantages, also those in its log, by the objective's, where it computes any.

    Args:
        trainer: Covey's `GRPOTrainer`, with an objective.
        output: TRL's batch; its advantages are replaced.
        rewards_BF: of each function, over all processes.

    Returns:
        The columns that the objective returned.
    """
    advantages_B, metrics, columns = compute_advantages(
        trainer._objective,
        scored(trainer, rewards_BF),
        mask_BT=loss_mask(output),
        ref_logps_BT=output.get("ref_per_token_logps"),
        policy_logps_BT=_policy_logps(trainer, output),
        beta=trainer.beta,
        gather=trainer.accelerator.gather,
        taken=(*trainer.reward_func_names, *trainer._logs["extra"]),
    )
    for name, value in metrics.items():
        trainer._metrics["train"][name].append(value)
    if advantages_B is not None:
        local = len(output["advantages"])
        start = trainer.accelerator.process_index * local
        output["advantages"] = advantages_B[start : start + local].to(output["advantages"])
        log = trainer._logs["advantages"]
        for _ in range(min(len(advantages_B), len(log))):
            log.pop()
        log.extend(advantages_B.tolist())
    return columns


def _policy_logps(trainer: Any, batch: dict[str, Any]) -> torch.Tensor | None:
    """Log-probs of the completion tokens under the policy that sampled them, if at hand or needed."""
    kept: torch.Tensor | None = batch.get("old_per_token_logps")
    if kept is not None or "policy" not in trainer._needs:
        return kept
    logps_BT: torch.Tensor = trainer.sampling.score_batch(batch)
    return logps_BT
