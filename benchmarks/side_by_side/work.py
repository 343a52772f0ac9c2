"""The minimum FLOPs of a step, to compare its time with the machine's own rate.

A token takes one multiplication and one addition per weight of the model, and its gradient twice as much again (Kaplan
et al. 2020, arXiv 2001.08361, section 2.1): 2N to sample, 6N for forward and backward. Attention comes on top: each
token attends to every token before it, in two products. A group's prompt counts once, and padding does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from side_by_side.settings import SIZES, Setting


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one step."""

    generation: float
    learning: float
    """Scoring and backward."""

    @property
    def step(self) -> float:
        return self.generation + self.learning


def least_work(setting: Setting, body: int, rows: Sequence[tuple[int, int]]) -> Work:
    """The minimum FLOPs of a step.

    Args:
        setting: the model's size, and the size of a group.
        body: weights outside the embeddings, which are looked up and not multiplied with; N without the head.
        rows: tokens of prompt and completion of each row, the rows of a group together.
    """
    size = SIZES[setting.size]
    per_meeting = 4 * size.layers * size.heads * size.head_dim
    forward = 0.0
    for i, (prompt, completion) in enumerate(rows):
        if i % setting.generations == 0:
            forward += 2 * body * prompt + per_meeting * prompt * (prompt + 1) / 2
        # Only sampled tokens need the head.
        forward += 2 * (body + size.hidden * size.vocabulary) * completion
        forward += per_meeting * (completion * prompt + completion * (completion + 1) / 2)
    return Work(generation=forward, learning=3 * forward)
