"""Generation batches, ways to split them into micro-batches, and the relative difference of gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from covey.config import SpeedConfig
from covey.training.microbatch import Batching, Loss

PLAIN = SpeedConfig(shared_prefill=False, shared_scoring=False, trim=False, skip_zero=False)
WAYS = {
    "trim": replace(PLAIN, trim=True),
    "skip": replace(PLAIN, skip_zero=True),
    "budget": replace(PLAIN, trim=True, skip_zero=True, max_tokens=60),
}


def generation_batch(seed: int, groups: int, size: int = 4) -> dict[str, Any]:
    """Random prompts and completions of different lengths, padded as TRL pads them, each row with its number."""
    torch.manual_seed(seed)
    lengths = torch.randint(2, 9, (groups,)).repeat_interleave(size)
    widths = torch.randint(1, 12, (groups * size,))
    columns = torch.arange(12)
    prompt_mask = (columns[:9].flip(0) < lengths[:, None]).long()
    completion_mask = (columns < widths[:, None]).long()
    numbers = torch.arange(1, groups * size + 1)[:, None]
    return {
        "prompt_ids": numbers * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": numbers * completion_mask,
        "completion_mask": completion_mask,
        "advantages": torch.randn(groups * size),
        "old_per_token_logps": -numbers.float() * completion_mask,
        "importance_sampling_ratio": numbers.float(),
        "token_type_ids": torch.cat([prompt_mask, 2 * completion_mask], dim=1),
        "num_items_in_batch": completion_mask.sum(),
    }


def batching(speed: SpeedConfig, micro_batches: int, accumulation: int, loss: str = "dapo", **more: Any) -> Batching:
    return Batching(
        speed,
        Loss(loss_type=loss),
        num_generations=4,
        micro_batches=micro_batches,
        accumulation=accumulation,
        **more,
    )


def relative_difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert found.keys() == expected.keys()
    size = sum(float(g.double().square().sum()) for g in expected.values()) ** 0.5
    assert size > 1e-4
    return sum(float((found[n] - g).double().square().sum()) for n, g in expected.items()) ** 0.5 / size
