"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from side_by_side.cells import DEFAULTS, GPU, MAIN, SIZES, VOCABULARY, Cell
from side_by_side.settings import SHAPES

Found = dict[str, Any]

PROFILED = ("5m-256+512-G8", "5m-256+512-G16", "5m-1024+256-G8")
"""Cells whose parts are shown one by one."""

HOW = """\
Stock TRL's `GRPOTrainer` and Covey's, each in its own process, from the same weights (a Qwen3 of random weights),
prompts, rewards and sampling settings. Steps alternate and only one engine works at a time; times are medians over the
measured steps, with their range in brackets, and a step lasts until the next could start. Completions are forced to the
same lengths in both, by one logits processor: evenly spread up to the longest, so that the mean is half of it. A step
has sixty-four completions, unless stated otherwise. Rewards differ within every group, so every completion has a
gradient. Stock TRL samples in the fastest of its own ways: `generate` with its default cache, with a static cache, or
with continuous batching. They are tried for every cell, unless the way is *given*: it was the fastest in an earlier
run, with the same or with other lengths. *Ratio* is how many times faster Covey is.

*Of the machine* is the minimum FLOPs of a step (a group's prompt counted once, no padding: 2N per token to sample, 6N
for forward and backward, and attention) over its time, as a share of the rate that the same process reached in a plain
matrix product. *Peak memory* is that of a process during the measured steps, *above the start* the part above the
trainer with the model loaded.
"""

INTRODUCTIONS = {
    MAIN: (
        "Plain settings",
        "A model of 5 M parameters; everything in float32, β = 0, no gradient checkpointing, a group per micro-batch.",
    ),
    DEFAULTS: (
        "TRL's own defaults",
        "As above, but with TRL's defaults: gradient checkpointing, bfloat16 autocast, and micro-batches of eight "
        "completions. TRL's static cache fails on the mixed dtypes. A step has sixteen completions: this CPU has no "
        "instructions for bfloat16, and both are an order of magnitude slower for it.",
    ),
    SIZES: (
        "Other sizes",
        "Plain settings, groups of eight. The 100 M model is there for its memory: two steps, at long prompts of one "
        "group each.",
    ),
    VOCABULARY: (
        "A real vocabulary",
        "Plain settings on the shape of SmolLM2-135M, with its vocabulary of 49,152: four prompts of forty tokens, "
        "groups of eight, one thread.",
    ),
    GPU: (
        "On a GPU",
        "bfloat16 weights, four prompts a step. With vLLM both engines sample with it, and all completions are the "
        "longest.",
    ),
}


def page(cells: Sequence[Cell], found: dict[str, Found], picture: str) -> str:
    """All tables of the cells that have been measured.

    Args:
        cells: every cell.
        found: what was measured, by the cell's name.
        picture: the path of the curves, as seen from the page.
    """
    first = next(iter(found.values()))
    versions = ", ".join(f"{name} {number}" for name, number in first["machine"]["versions"].items())
    lines = ["# A training step, measured", "", f"Made by `python benchmarks/step_report.py`; {versions}.", "", HOW]
    for table, (title, text) in INTRODUCTIONS.items():
        measured = [(cell, found[cell.name]) for cell in cells if table in cell.tables and cell.name in found]
        if measured:
            lines += [f"## {title}", "", f"{text} {place(measured[0][1])}", "", *times(measured), ""]
            lines += [*costs(measured), ""]
            notes = sorted({note for _, one in measured for note in one["notes"]})
            lines += ["What did not apply in some of these cells:", "", *(f"- {note}" for note in notes), ""] * bool(
                notes
            )
    lines += ["## How the cost grows", "", f"![seconds per step]({picture})", ""]
    profiled = [(name, found[name]) for name in PROFILED if name in found]
    if profiled:
        lines += ["## Where the time goes", "", "Medians of each part; parts need not add up to the median step.", ""]
        lines += [*profile(profiled), ""]
    return "\n".join(lines)


def place(found: Found) -> str:
    """The machine, in a sentence."""
    machine = found["machine"]
    where = machine["device"] if machine["device"] != "cpu" else f"{machine['processor']}, no GPU"
    return (
        f"Cores: {machine['cores']}; threads: {machine['threads']}; {where}; matrix products at "
        f"{machine['flops_per_s'] / 1e9:.0f} GFLOP/s."
    )


def row_of(found: Found, name: str) -> dict[str, Any]:
    return next(row for row in found["rows"] if row["row"] == name)


def heading(cell: Cell) -> str:
    """Size, shape and group size, as the first cells of a line."""
    setting = cell.setting
    lengths = (setting.prompt_length, setting.completion_length)
    shape = next((name for name, one in SHAPES.items() if (one.prompt, one.completion) == lengths), "other")
    return f"| {setting.size} | {shape} {lengths[0]}+{lengths[1]} | {setting.generations} |"


def times(measured: Sequence[tuple[Cell, Found]]) -> list[str]:
    lines = [
        "| model | shape | G | steps | TRL, a step | Covey, a step | ratio | generation | scoring and backward | "
        "TRL samples with |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell, found in measured:
        step = row_of(found, "step")
        parts = [ratio(row_of(found, name)) for name in ("generation", "scoring and backward")]
        baseline = found["rival"]["rollout"] + ("" if found["rival"]["tried"] else ", given")
        baseline += f", {attention}" if (attention := found["setting"].get("attention")) else ""
        lines.append(
            f"{heading(cell)} {found['setting']['steps']} | {seconds(step, 'trl')} | {seconds(step, 'covey')} | "
            f"**{ratio(step)}** | {parts[0]} | {parts[1]} | {baseline} |"
        )
    return lines


def costs(measured: Sequence[tuple[Cell, Found]]) -> list[str]:
    lines = [
        "| model | shape | G | tokens per second | of the machine | peak memory | Covey's share | above the start | "
        "Covey's share |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell, found in measured:
        step, tokens = row_of(found, "step"), row_of(found, "tokens per second")
        memory = []
        for name in ("peak memory", "peak memory above the start"):
            row = row_of(found, name)
            memory.append(
                f"{row['trl_bytes'] / 1e6:.0f} → {row['covey_bytes'] / 1e6:.0f} MB | {100 * row['share']:.0f}%"
            )
        lines.append(
            f"{heading(cell)} {tokens['trl_per_s']:.0f} → {tokens['covey_per_s']:.0f} | "
            f"{100 * step['trl_of_machine']:.0f}% → {100 * step['covey_of_machine']:.0f}% | {memory[0]} | {memory[1]} |"
        )
    return lines


def profile(profiled: Sequence[tuple[str, Found]]) -> list[str]:
    parts = ("step", "generation", "scoring", "backward", "rewards", "rest")
    lines = ["| cell | engine | " + " | ".join(parts) + " |", "|---|---|" + "---|" * len(parts)]
    for name, found in profiled:
        for engine, label in (("trl", "TRL"), ("covey", "Covey")):
            cells = [f"{row_of(found, part)[f'{engine}_s']:.3f} s" for part in parts]
            lines.append(f"| {name} | {label} | " + " | ".join(cells) + " |")
    return lines


def seconds(row: dict[str, Any], engine: str) -> str:
    low, high = row[f"{engine}_range_s"]
    return f"{row[f'{engine}_s']:.2f} s [{low:.2f}, {high:.2f}]"


def ratio(row: dict[str, Any]) -> str:
    return "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
