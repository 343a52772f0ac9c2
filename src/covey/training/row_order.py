"""In which order the rows of a generation batch are learned from. Knows numbers of rows and groups only."""

from __future__ import annotations

from collections.abc import Sequence

from covey.training.pieces import Row


def window(micro_batches: int, accumulation: int) -> int:
    """How many consecutive micro-batches of a generation batch are sure to belong to one optimiser step."""
    if accumulation % micro_batches == 0:
        return micro_batches
    return accumulation if micro_batches % accumulation == 0 else 1


def deal(groups: Sequence[int], permutation: Sequence[int]) -> list[int]:
    """An order of the rows in which groups stand together: groups at random, and the rows within each at random.

    A group's place is drawn by its first row, so that large groups do not come earlier than small ones.

    Args:
        groups: the group of each row.
        permutation: all rows in a random order: the only source of chance.
    """
    place = {row: index for index, row in enumerate(permutation)}
    turn: dict[int, int] = {}
    for row, group in enumerate(groups):
        turn.setdefault(group, place[row])
    return sorted(range(len(groups)), key=lambda row: (turn[groups[row]], place[row]))


def sort_within(order: Sequence[int], rows: Sequence[Row], size: int) -> list[int]:
    """The same order in stretches of `size` rows; within each, groups stand together and the longest come first."""
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
            stretch,
            key=lambda row: (-longest[rows[row].group], turn[rows[row].group], -rows[row].completion),
        )
    return found
