"""The order in which the rows of a generation batch are trained on. Knows indices of rows and groups only."""

from __future__ import annotations

from collections.abc import Sequence

from covey.training.microbatch.microbatch_split import RowShape


def window(micro_batches: int, accumulation: int) -> int:
    """How many consecutive micro-batches of a generation batch are guaranteed to belong to one optimiser step."""
    if accumulation % micro_batches == 0:
        return micro_batches
    return accumulation if micro_batches % accumulation == 0 else 1


def shuffle_groups(groups: Sequence[int], permutation: Sequence[int]) -> list[int]:
    """A random order of groups, and of the rows within each.

    A group's place is that of its first row in the permutation, so that large groups do not come earlier than small.

    Args:
        groups: the group of each row.
        permutation: of all rows; the only source of randomness.
    """
    place = {row: index for index, row in enumerate(permutation)}
    turn: dict[int, int] = {}
    for row, group in enumerate(groups):
        turn.setdefault(group, place[row])
    return sorted(range(len(groups)), key=lambda row: (turn[groups[row]], place[row]))


def sort_within(order: Sequence[int], rows: Sequence[RowShape], size: int) -> list[int]:
    """Sort within each stretch of `size` rows: groups stay together, longest first."""
    found: list[int] = []
    for start in range(0, len(order), size):
        stretch = order[start : start + size]
        longest: dict[int, int] = {}
        turn: dict[int, int] = {}
        for index, row in enumerate(stretch):
            group = rows[row].group
            longest[group] = max(longest.get(group, 0), rows[row].completion)
            turn.setdefault(group, index)
        found += sorted(
            stretch, key=lambda row: (-longest[rows[row].group], turn[rows[row].group], -rows[row].completion)
        )
    return found
