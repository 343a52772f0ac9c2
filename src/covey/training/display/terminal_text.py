"""Formatting text and numbers for a line of a terminal. Pure functions of strings and numbers."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

BLOCKS = "▁▂▃▄▅▆▇█"


def readable(text: str) -> str:
    """Text in one line that is safe to print: white space becomes single spaces, control characters are removed."""
    return "".join(char for char in " ".join(text.split()) if not unicodedata.category(char).startswith("C"))


def fit(text: str, width: int) -> str:
    """Truncate text to a screen width in its middle: a completion's answer is at its end."""
    if cell_len(text) <= width:
        return text
    tail_width = max(0, (width - 1) // 2)
    head, tail = text[:width], text[-tail_width:] if tail_width else ""
    while cell_len(tail) > tail_width:
        tail = tail[1:]
    return set_cell_size(head, max(0, width - 1 - cell_len(tail))) + "…" + tail


def sparkline(points: Sequence[tuple[int, float]], last_step: int, width: int) -> str:
    """A curve in block characters over the steps from the first point to `last_step`, at most one character a step.

    Each character is the mean of the values in its steps; without any, the previous one.
    """
    if not points or width < 1:
        return ""
    first = points[0][0]
    cells: list[list[float]] = [[] for _ in range(min(width, last_step - first + 1))]
    for step, value in points:
        cells[(step - first) * len(cells) // (last_step - first + 1)].append(value)
    heights: list[float] = []
    for cell in cells:
        heights.append(sum(cell) / len(cell) if cell else heights[-1])
    low, high = min(heights), max(heights)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((height - low) * scale)] for height in heights)


def duration(seconds: float) -> str:
    """`2:31`, or `1:02:31`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def encodable(text: str, encoding: str) -> str:
    """Text with `?` for what an output cannot show: an unsupported character must not end the run."""
    return text.encode(encoding, "replace").decode(encoding)
