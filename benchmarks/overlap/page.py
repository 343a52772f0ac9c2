"""`benchmarks/async.md`, written from whatever results there are."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covey.runlog import RunDirectory
from overlap.real import SHAPES, STEPS, WARMUP, WAYS, accuracy, interval

FLOOR_IDEAL, FLOOR_SPEED = 0.90, 1.15


def page(
    simulated: Sequence[dict[str, Any]], timed: Sequence[dict[str, Any]], curves: dict[int, list[RunDirectory]]
) -> str:
    """The page.

    Args:
        simulated: outcomes, see `overlap.simulation.Outcome`.
        timed: see `overlap.real.time_all`.
        curves: finished runs by staleness.
    """
    lines = [
        "# Generation and learning side by side, measured",
        "",
        f"Made by `python benchmarks/async.py` on {os.cpu_count()} cores, no GPU, Python {platform.python_version()}.",
        "N is `training.staleness`, in generation rounds.",
    ]
    lines += _simulated(simulated) if simulated else []
    lines += _timed(timed) if timed else []
    lines += _curves(curves) if curves.get(0) and len(curves) > 1 else []
    return "\n".join([*lines, ""])


def _simulated(found: Sequence[dict[str, Any]]) -> list[str]:
    low = min(one["ideal"] / one["seconds"] for one in found)
    lines = [
        "",
        "## The scheduler around a simulated engine",
        "",
        "The engine only waits: 64 completions a round in 32 slots (128 of equal lengths), lengths log-normal with 2%",
        "stragglers five times as long, 5 ms for a weight sync. Rounds go through the scheduler of",
        "`training.staleness`; learning waits too.",
        "The ideal is computed as events, without threads (`benchmarks/overlap/ideal.py`). Staleness is in rounds: the",
        "mean over tokens, and that of the oldest token.",
        f"The least share of the ideal is {low:.1%} (floor {FLOOR_IDEAL:.0%}).",
        "",
        "| case | N | `async_partial` | seconds | of the ideal | against N = 0 | engine busy | mean | oldest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        turns = next(other["seconds"] for other in found if other["case"] == one["case"] and not other["staleness"])
        lines.append(
            f"| {one['case']} | {one['staleness']} | {one['partial'] if one['staleness'] else '–'} | "
            f"{one['seconds']:.1f} | {one['ideal'] / one['seconds']:.1%} | {turns / one['seconds']:.2f} | "
            f"{one['sampling']:.0%} | {one['mean_staleness']:.2f} | {one['oldest']:.0f} |"
        )
    return lines


def _timed(found: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "## Covey's own engine in a process of its own, on two cores",
        "",
        f"`covey train` with the starter, {STEPS} steps, the first {WARMUP} not counted. Seconds of a round by the",
        "clock, optimiser and weight sync included; runs alternate. The median, and the range over the runs.",
        "",
        "| shape | way | runs | seconds a round | against 1 thread in turns | against 2 threads in turns |",
        "|---|---|---|---|---|---|",
    ]
    ratios = []
    for shape in SHAPES:
        seconds = {
            way.name: [one["seconds"] for one in found if (one["shape"], one["way"]) == (shape, way.name)]
            for way in WAYS
        }
        one_thread = [one for one in found if (one["shape"], one["way"]) == (shape, WAYS[0].name)]
        if one_thread:
            ratio = statistics.median(one["generation"] / one["learning"] for one in one_thread)
            ratios.append(f"{shape}: {ratio:.2f}")
        for way in WAYS:
            if not (own := seconds[way.name]):
                continue
            middle = statistics.median(own)
            speeds = [
                f"{statistics.median(base) / middle:.2f}" if (base := seconds[other.name]) else "–"
                for other in WAYS[:2]
            ]
            lines.append(
                f"| {shape} | {way.name} | {len(own)} | {middle:.3f} [{min(own):.3f}, {max(own):.3f}] | {speeds[0]} | "
                f"{speeds[1]} |"
            )
    return [
        *lines,
        "",
        "Seconds of generation to seconds of learning, in turns with one thread: " + "; ".join(ratios) + ".",
        f"The floor is {FLOOR_SPEED} times as fast as in turns where that ratio is between 0.7 and 1.5.",
    ]


def _curves(curves: dict[int, list[RunDirectory]]) -> list[str]:
    by_seed = {staleness: [accuracy(run) for run in runs] for staleness, runs in curves.items()}
    seeds = min(len(runs) for runs in by_seed.values())
    steps = sorted(set.intersection(*(set(one) for runs in by_seed.values() for one in runs)))
    behind = sorted(staleness for staleness in by_seed if staleness)
    lines = [
        "",
        "## What it costs: the learning curve of the first run",
        "",
        f"Held-out accuracy of `covey train` with its defaults, mean over {seeds} seeds ± half of the 95% interval by",
        "Student's t; below, the difference to N = 0 with the same seed.",
        "",
        "| step | " + " | ".join(f"N = {staleness}" for staleness in (0, *behind)) + " |",
        "|---" * (2 + len(behind)) + "|",
    ]
    for step in steps:
        cells = [_cell([100 * run[step] for run in by_seed[staleness][:seeds]], "%") for staleness in (0, *behind)]
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    lines += ["", "| step | " + " | ".join(f"N = {staleness}, points" for staleness in behind) + " |"]
    lines.append("|---" * (1 + len(behind)) + "|")
    for step in steps:
        cells = [
            _cell(
                [
                    100 * (own[step] - base[step])
                    for own, base in zip(by_seed[n][:seeds], by_seed[0][:seeds], strict=True)
                ],
                "",
                "+",
            )
            for n in behind
        ]
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    return lines


def _cell(values: Sequence[float], unit: str, sign: str = "") -> str:
    mean, half = interval(values)
    return f"{mean:{sign}.1f}{unit}" + ("" if math.isnan(half) else f" ± {half:.1f}")


def finished_curves(output: Path, stalenesses: Sequence[int], seeds: Sequence[int]) -> dict[int, list[RunDirectory]]:
    """The runs that are there for each staleness, by seed, up to the first that is not."""
    from overlap.real import curve

    found: dict[int, list[RunDirectory]] = {}
    for staleness in stalenesses:
        for seed in seeds:
            run = curve(output, staleness, seed)
            if not run.summary.is_file():
                break
            found.setdefault(staleness, []).append(run)
    return found
