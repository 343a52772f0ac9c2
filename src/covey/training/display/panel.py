"""Drawing the panel of a run: its progress, its figures with their curves, and some completions.

Its columns are of fixed widths, so that nothing moves when a figure gets another digit. On a wide terminal the
completions are beside the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from covey.training.display.terminal_text import duration, fit, readable, sparkline

_LABELS, _VALUE, _CHANGE = (17, 28), 9, 8
_WIDE = 120
"""Columns within the frame from which the completions are beside the figures."""
_GAP = 4


class ShownCompletion(TypedDict):
    """One completion to show. Unknown values are None."""

    prompt: str
    completion: str
    answer: str | None
    reward: float | None
    right: bool | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of figures, formatted."""

    label: str
    value: str
    change: str = ""
    """Since the start of the run."""
    points: Sequence[tuple[int, float]] = ()
    """Step and value, for the curve."""


@dataclass(frozen=True, slots=True)
class PanelContent:
    """What the panel shows."""

    title: str
    step: int
    max_steps: int
    elapsed: float
    left: float | None
    """Seconds until the last step, as far as known."""
    figures: Sequence[Figure]
    samples: Sequence[ShownCompletion]
    samples_heading: str
    status: str
    """What is going on besides training steps."""
    hint: str
    """What keys do."""


def draw(content: PanelContent, width: int, height: int, least: int = 0) -> tuple[Panel, int]:
    """The panel, and its number of lines: fewer than the terminal has, if that has enough for the figures.

    Args:
        width: columns of the terminal.
        height: lines of the terminal.
        least: lines that the panel has at least, if the terminal has them: it would jump with every completion.
    """
    inner = width - 4  # borders and padding
    below = [_bottom(content, inner)] if content.status or content.hint else []
    top = _progress(content, inner)
    room = height - 1 - 2 - len(top) - len(below)
    wide = inner >= _WIDE
    left = max(66, 2 * inner // 5) if wide else inner
    lines = _figure_lines(content, left)
    right = _sample_lines(content, inner - left - _GAP, room + 1)[1:] if wide else []
    if wide and right:
        lines = [_side_by_side(lines, right, left)]
        count = max(len(content.figures), len(right))
    else:
        lines += _sample_lines(content, inner, room - len(lines))
        count = len(lines)
    padding = max(0, min(least, height - 1) - 2 - len(top) - count - len(below))
    body = Group(*top, *lines, *[Text()] * padding, *below)
    title = Text(fit(readable(content.title), inner - 4), style="bold")
    panel = Panel(body, title=title, title_align="left", border_style="dim", padding=(0, 1), width=width)
    return panel, 2 + len(top) + count + padding + len(below)


def _progress(content: PanelContent, width: int) -> list[RenderableType]:
    share = min(1.0, content.step / content.max_steps)
    times = f"elapsed {duration(content.elapsed)}"
    if content.left is not None:
        times += f"   left {duration(content.left)}"
    steps = f"step {content.step}/{content.max_steps}   {share:.0%}"
    line = Text(set_cell_size(steps, max(len(steps) + 1, width - len(times))), no_wrap=True)
    return [line.append(times, "dim"), ProgressBar(total=content.max_steps, completed=content.step), Text()]


def _figure_lines(content: PanelContent, width: int) -> list[RenderableType]:
    least, most = _LABELS
    labels = min(most, max([least, *(cell_len(figure.label) for figure in content.figures)]))
    lines: list[RenderableType] = []
    for figure in content.figures:
        curve = sparkline(figure.points, content.step, width - labels - 2 - _VALUE - _CHANGE - 2)
        label = set_cell_size(fit(figure.label, labels), labels + 2)
        value, change = f"{figure.value:>{_VALUE}}", f"{figure.change:>{_CHANGE}}  "
        lines.append(Text.assemble((label, "dim"), (value, "bold"), change, (curve, "cyan"), no_wrap=True))
    return lines


def _side_by_side(left: Sequence[RenderableType], right: Sequence[RenderableType], width: int) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(width=width + _GAP)
    grid.add_column(ratio=1)
    grid.add_row(Group(*left), Group(*right))
    return grid


def _sample_lines(content: PanelContent, width: int, room: int) -> list[RenderableType]:
    """A blank line, a heading, and the samples, two lines each (three if the completion is long), as many as fit."""
    if not content.samples or room < 4:
        return []
    lines: list[RenderableType] = [Text(), Text(content.samples_heading, style="dim")]
    for sample in content.samples:
        body = chop_cells(fit(sample["completion"], 2 * (width - 2) - 1), width - 2)
        if len(lines) + 1 + len(body) > room:
            break
        mark, style = MARKS[sample["right"]]
        details = fit(_details(sample), width // 2)
        space = width - 2 - cell_len(details)
        prompt = set_cell_size(fit(sample["prompt"], space - 1), space)
        lines.append(Text.assemble((f"{mark} ", style), (prompt, "bold"), (details, "dim"), no_wrap=True))
        lines += [Text("  " + line, no_wrap=True) for line in body]
    return lines if len(lines) > 2 else []


def _bottom(content: PanelContent, width: int) -> RenderableType:
    """What is going on, and what keys do, if there is room for both."""
    hint = fit(content.hint, width)
    if not content.status:
        return Text(hint, style="dim", no_wrap=True)
    status = fit(content.status, width - 2)
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1, no_wrap=True)
    spinner = Spinner("dots", Text(status, style="dim"), style="cyan")
    if hint and 2 + cell_len(status) + 3 + cell_len(hint) <= width:
        grid.add_column(justify="right", no_wrap=True)
        grid.add_row(spinner, Text(hint, style="dim"))
    else:
        grid.add_row(spinner)
    return grid


MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}
"""How right and wrong completions are marked, with a style."""


def readable_sample(sample: Mapping[str, Any]) -> ShownCompletion:
    """A completion with texts that are safe to print."""
    answer = sample.get("answer")
    return ShownCompletion(
        prompt=readable(sample["prompt"]),
        completion=readable(sample["completion"]),
        answer=None if answer is None else readable(answer),
        reward=sample.get("reward"),
        right=sample.get("right"),
    )


def sample_line(sample: ShownCompletion) -> str:
    """A completion in one line."""
    return f"{MARKS[sample['right']][0]} {sample['prompt']}  {_details(sample)} | {sample['completion']}"


def _details(sample: ShownCompletion) -> str:
    parts = [] if sample["answer"] is None else [f"answer {fit(sample['answer'], 20)}"]
    if sample["reward"] is not None:
        parts.append(f"reward {sample['reward']:.2f}")
    return "  ".join(parts)
