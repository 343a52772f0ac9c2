"""How the cost of a step grows with the group, the prompt and the completions, for both engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from side_by_side.settings import ENGINES

INK, GREY, PALE = "#1f2933", "#6b7785", "#e3e8ed"
COLOURS = {"trl": "#d9730d", "covey": "#0b7a75"}
LABELS = {"trl": "stock TRL", "covey": "Covey"}

Keep = Callable[[Mapping[str, Any]], bool]

PANELS: tuple[tuple[str, str, str, Keep], ...] = (
    (
        "completions per prompt (G)",
        "prompts 256, completions up to 512 tokens",
        "generations",
        lambda s: s["prompt_length"] == 256 and s["completion_length"] == 512,
    ),
    (
        "prompt length (tokens)",
        "G = 8, completions up to 256 tokens",
        "prompt_length",
        lambda s: s["generations"] == 8 and s["completion_length"] == 256,
    ),
    (
        "longest completion (tokens)",
        "G = 8, prompts 256 tokens",
        "completion_length",
        lambda s: s["generations"] == 8 and s["prompt_length"] == 256,
    ),
)
"""Label of the axis, what stays the same, which value of the setting the axis is, and which settings are on it."""


def draw(found: list[dict[str, Any]], target: Path) -> None:
    """Draw seconds per step over each of the three, as medians with their ranges.

    Args:
        found: measurements; those of the 5 M model at plain settings are drawn.
        target: the picture, `.svg` or `.png`.
    """
    plain = [one for one in found if one["setting"]["size"] == "5m" and not one["setting"]["trl_defaults"]]
    figure = Figure(figsize=(12, 3.9), dpi=100, facecolor="white", layout="constrained")
    for axes, (label, fixed, key, keep) in zip(figure.subplots(1, 3), PANELS, strict=True):
        chosen = sorted((one for one in plain if keep(one["setting"])), key=lambda one: one["setting"][key])
        for engine in ENGINES:
            steps = [one["rows"][0] for one in chosen]
            places = [one["setting"][key] for one in chosen]
            middle = [step[f"{engine}_s"] for step in steps]
            low = [step[f"{engine}_s"] - step[f"{engine}_range_s"][0] for step in steps]
            high = [step[f"{engine}_range_s"][1] - step[f"{engine}_s"] for step in steps]
            axes.errorbar(
                places, middle, [low, high], color=COLOURS[engine], label=LABELS[engine], marker="o", capsize=3
            )
        axes.set_title(fixed, fontsize=10, color=GREY, loc="left")
        axes.set_xlabel(label, color=INK)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.grid(color=PALE)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("seconds per step", color=INK)
    figure.axes[0].legend(frameon=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
