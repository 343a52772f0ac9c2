"""The advantages of TRL's generation batch, by Covey's objective, and the KL of a step that a controller reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from covey.runlog import names
from covey.training.advantages import ScoredRewards, compute_advantages, loss_mask
from covey.training.replaced import replaced


def scored(trainer: Any, rewards_BF: torch.Tensor) -> ScoredRewards:
    """The rewards, and how the trainer combines them."""
    return ScoredRewards(
        rewards_BF, trainer.reward_weights, trainer.multi_objective_aggregation, trainer.num_generations
    )


def apply_objective(trainer: Any, output: dict[str, Any], rewards_BF: torch.Tensor) -> dict[str, list[Any]]:
    """Replace TRL's advantages, also those in its log, by the objective's, where it computes any.

    Args:
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
    logps_BT: torch.Tensor = trainer.sampling.score_batch(batch)
    return logps_BT


def loss_with_kl(trainer: Any, inputs: dict[str, Any], compute: Callable[[], Any]) -> torch.Tensor:
    """TRL's loss of a chunk; a controller or a limit needs the KL of the whole step.

    Under an objective that uses the reference itself, it has no KL term and Covey logs the KL.

    Args:
        inputs: the chunk.
        compute: TRL's `_compute_loss` of it.
    """
    if not _measures_kl(trainer):
        return torch.as_tensor(compute())
    beta = trainer.beta if "reference" not in trainer._needs else 0.0
    with replaced(trainer, beta=beta, _keeps_loss_logps=True):
        loss = torch.as_tensor(compute())
    logps_BT, trainer._loss_logps_BT = trainer._loss_logps_BT, None
    trainer._kl_monitor.add(logps_BT, inputs["ref_per_token_logps"], loss_mask(inputs))
    return loss


def end_kl_step(trainer: Any) -> None:
    """After the last micro-batch of a step: log its KL and update β."""
    if not (_measures_kl(trainer) and trainer.accelerator.sync_gradients):
        return
    beta, metrics = trainer.beta, trainer._metrics["train"]
    kl, trainer.beta = trainer._kl_monitor.end_step(beta, lambda t: trainer.accelerator.reduce(t, reduction="sum"))
    metrics["objective/beta"].append(beta)
    if kl is not None and "reference" in trainer._needs:
        metrics["kl"].append(kl)


def _measures_kl(trainer: Any) -> bool:
    used = "reference" in trainer._needs or trainer._kl_monitor.acts
    return bool(trainer.model.training and trainer.beta != 0 and used)
