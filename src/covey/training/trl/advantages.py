"""The advantages of TRL's generation batch, by Covey's objective."""

from __future__ import annotations

from typing import Any

import torch
from trl.models.utils import disable_gradient_checkpointing

from covey.runlog import names
from covey.training.advantages.objective_step import ScoredRewards, compute_advantages, loss_mask

FORWARD_KEYS = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)
"""What TRL's scoring pass takes besides tokens, all for images."""


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
    # taken out of TRL's log, which would keep them beside a later batch whose rewards name none
    modes = trainer._logs["extra"].pop(names.MODE, None) if "modes" in trainer._needs else None
    advantages_B, metrics, columns = compute_advantages(
        trainer._objective,
        scored(trainer, rewards_BF),
        mask_BT=loss_mask(output),
        ref_logps_BT=output.get("ref_per_token_logps"),
        policy_logps_BT=_policy_logps(trainer, output),
        beta=trainer.beta,
        gather=trainer.accelerator.gather,
        taken=(*trainer.reward_func_names, *trainer._logs["extra"]),
        modes=list(modes)[-len(rewards_BF) :] if modes else None,
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
    return {names.MODE: [*modes], **columns} if modes else columns


def _policy_logps(trainer: Any, batch: dict[str, Any]) -> torch.Tensor | None:
    """Log-probs of the completion tokens under the policy that sampled them, if at hand or needed."""
    kept: torch.Tensor | None = batch.get("old_per_token_logps")
    if kept is not None or "policy" not in trainer._needs:
        return kept
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        logps_BT, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].size(1),
            batch_size=trainer.args.per_device_train_batch_size,
            **{key: batch[key] for key in FORWARD_KEYS if key in batch},
        )
    return torch.as_tensor(logps_BT)
