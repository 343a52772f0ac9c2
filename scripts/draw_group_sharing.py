"""Draw how a group's prompt is shared: docs/images/group_sharing.svg.

Run it after a change of the drawing: `python scripts/draw_group_sharing.py`. The numbers under the two halves are
computed from the lengths drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROMPT = 8
"""Tokens of the prompt, in boxes."""
COMPLETIONS = (5, 9, 3, 7)
"""Tokens of each completion of the group."""

SIZE, GAP, LEFT = 18, 3, 20
COLOURS = {"prompt": "#4c72b0", "completion": "#dd8452", "padding": "#e6e6e6"}
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#24292f}.small{font-size:12px;fill:#57606a}.bold{font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9da7b3}}"
)


def row(kinds: list[str], top: int, left: int = LEFT) -> list[str]:
    """A row of boxes, one a token."""
    return [
        f'<rect x="{left + place * (SIZE + GAP)}" y="{top}" width="{SIZE}" height="{SIZE}" rx="3" '
        f'fill="{COLOURS[kind]}"/>'
        for place, kind in enumerate(kinds)
    ]


def text(words: str, x: int, y: int, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{words}</text>'


def drawing() -> str:
    """The whole picture."""
    longest = max(COMPLETIONS)
    width = LEFT * 2 + (PROMPT + sum(COMPLETIONS)) * (SIZE + GAP)
    parts = [text("One row per completion, as usual", LEFT, 26, "bold")]
    top = 40
    for completion in COMPLETIONS:
        kinds = ["prompt"] * PROMPT + ["completion"] * completion + ["padding"] * (longest - completion)
        parts += row(kinds, top)
        top += SIZE + GAP
    usual = len(COMPLETIONS) * (PROMPT + longest)
    parts.append(
        text(f"{usual} tokens computed: the prompt {len(COMPLETIONS)} times, and padding", LEFT, top + 16, "small")
    )
    top += 56
    parts.append(text("One row per group", LEFT, top, "bold"))
    top += 14
    kinds = ["prompt"] * PROMPT + ["completion"] * sum(COMPLETIONS)
    parts += row(kinds, top)
    place = PROMPT
    for number, completion in enumerate(COMPLETIONS, start=1):
        x = LEFT + place * (SIZE + GAP)
        end = x + completion * (SIZE + GAP) - GAP
        y = top + SIZE + 5
        parts.append(f'<path d="M{x} {y}v5H{end}v-5" fill="none" stroke="{COLOURS["completion"]}" stroke-width="1.5"/>')
        parts.append(text(str(number), (x + end) // 2 - 4, y + 20, "small"))
        place += completion
    packed = PROMPT + sum(COMPLETIONS)
    top += SIZE + 50
    share = (
        f"{packed} tokens computed: {packed / usual:.0%} of them. Each completion attends to the prompt and to itself."
    )
    parts.append(text(share, LEFT, top, "small"))
    top += 30
    for kind, name in (("prompt", "prompt"), ("completion", "completion"), ("padding", "padding")):
        x = LEFT + 130 * list(COLOURS).index(kind)
        parts.append(f'<rect x="{x}" y="{top - 13}" width="14" height="14" rx="3" fill="{COLOURS[kind]}"/>')
        parts.append(text(name, x + 20, top - 1, "small"))
    height = top + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="The prompt of a group is computed once">\n<style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs/images/group_sharing.svg"
    target.write_text(drawing(), encoding="utf-8")
