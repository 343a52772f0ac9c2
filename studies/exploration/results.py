"""The data, tables and pictures of the study, from what is measured so far."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from analysis import Difference, at_accuracy, corrected, difference, equivalence, linear_probability, matched_accuracy
from arms import ARMS, BASELINES, CHECKPOINTS, STARTS, STEPS, TASKS, Run, runs
from measure import measured
from pictures import draw_frontier

from covey.evaluation.estimators import Estimate, coverage_at_k, distinct_at_k, mean, t_estimate
from covey.evaluation.passk import pass_at_k
from covey.runlog import write_atomically

K = 8
OUTCOMES = ("coverage@8", "mean@8", "pass@8", "distinct@8")
SHARES = ("coverage@8", "mean@8", "pass@8")
Key = tuple[str, str, int, int, float]
"""Task, arm, seed, step, temperature."""
Counts = Sequence[tuple[int, int, int, Sequence[int]]]
"""See `measure.measure`."""


def figures(problems: Counts) -> dict[str, float]:
    """The outcomes of one checkpoint, each the mean over problems."""
    samples = problems[0][1]
    if samples < K:
        return {"mean@8": mean([right / n for right, n, _, _ in problems])}
    return {
        "coverage@8": mean([coverage_at_k(counts, n, K, modes) for _, n, modes, counts in problems]),
        "mean@8": mean([right / n for right, n, _, _ in problems]),
        "pass@8": mean([pass_at_k(n, right, K) for right, n, _, _ in problems]),
        "distinct@8": mean([distinct_at_k(counts, n, K) for _, n, _, counts in problems]),
    }


def read(output: Path) -> dict[Key, Counts]:
    """All measurements that are there."""
    found: dict[Key, Counts] = {}
    for run in runs():
        for step in CHECKPOINTS:
            for temperature in (1.0, 0.0, 1.2):
                file = measured(output, run, step, temperature)
                if file.is_file():
                    key = (run.task, run.arm.name, run.seed, step, temperature)
                    found[key] = json.loads(file.read_text(encoding="utf-8"))["problems"]
    return found


def read_starts(output: Path) -> dict[tuple[str, int], Counts]:
    """The measurements of the starts, by task and start."""
    files = {(t, s): output / "measured" / f"start-{t}-{s}.json" for t in TASKS for s in STARTS}
    return {
        key: json.loads(file.read_text(encoding="utf-8"))["problems"] for key, file in files.items() if file.is_file()
    }


def read_chance(output: Path) -> dict[str, dict[str, float]]:
    """What random well-formed answers reach, by task and outcome, as measured with the first start."""
    found = {}
    for task in TASKS:
        file = output / "measured" / f"start-{task}-{STARTS[0]}.json"
        if file.is_file():
            chance = json.loads(file.read_text(encoding="utf-8"))["chance"]
            own = {outcome: "pass@1" if outcome == "mean@8" else outcome for outcome in OUTCOMES}
            found[task] = {outcome: chance[f"chance/{name}"] for outcome, name in own.items()}
    return found


def write(output: Path, preregistration: str, folder: Path) -> None:
    """Write `results.parquet`, `results.md`, and `frontier.png` with the arms of which all runs are there.

    Args:
        output: the study's folder.
        preregistration: its SHA-256.
        folder: where they go.
    """
    found, starts = read(output), read_starts(output)
    if not found:
        raise SystemExit("Nothing is measured yet: run the stages starts, train and measure first.")
    write_data(found, starts, preregistration, folder / "results.parquet")
    by_run = {key: figures(problems) for key, problems in found.items()}
    first = {key: figures(problems) for key, problems in starts.items()}
    write_atomically(folder / "results.md", page(found, by_run, first, read_chance(output), preregistration))
    whole = {arm.name: len(arm.seeds) for arm in ARMS}
    paths = {task: trajectories(by_run, first, task) for task in TASKS}
    drawn = {
        task: {arm: pairs for arm, pairs in own.items() if len(pairs) == whole[arm]} for task, own in paths.items()
    }
    draw_frontier(drawn, folder / "frontier.png")
    print(f"Written: results.parquet, results.md and frontier.png in {folder}")


def write_data(
    found: Mapping[Key, Counts], starts: Mapping[tuple[str, int], Counts], preregistration: str, file: Path
) -> None:
    """One row per problem of every checkpoint, the starts among them (arm `start`, step 0)."""
    rows: list[dict[str, Any]] = []
    checkpoints: dict[Key, Counts] = {(task, "start", start, 0, 1.0): one for (task, start), one in starts.items()}
    for (task, arm, seed, step, temperature), problems in (checkpoints | dict(found)).items():
        for number, (right, n, modes, counts) in enumerate(problems):
            own = {"task": task, "arm": arm, "seed": seed, "step": step, "temperature": temperature}
            own |= {"problem": number, "right": right, "completions": n, "modes": modes, "right_by_mode": list(counts)}
            rows.append(own)
    table = pa.Table.from_pylist(rows)
    table = table.replace_schema_metadata({"preregistration_sha256": preregistration})
    pq.write_table(table, file, compression="zstd")


def pair(seed: int) -> tuple[int, int]:
    """Start and seed."""
    return Run(TASKS[0], ARMS[0], seed).start, seed


def of_arm(
    by_run: Mapping[Key, Mapping[str, float]], task: str, arm: str, outcome: str
) -> dict[tuple[int, int], float]:
    """One outcome of an arm's last checkpoints, by pair."""
    return {
        pair(seed): one[outcome]
        for (its_task, its_arm, seed, step, temperature), one in by_run.items()
        if (its_task, its_arm, step, temperature) == (task, arm, STEPS, 1.0)
    }


def trajectories(
    by_run: Mapping[Key, Mapping[str, float]], first: Mapping[tuple[str, int], Mapping[str, float]], task: str
) -> dict[str, dict[tuple[int, int], list[tuple[float, float]]]]:
    """(mean@8, coverage@8) of the start and of every checkpoint, by arm and pair."""
    paths: dict[str, dict[tuple[int, int], list[tuple[float, float]]]] = {}
    for arm in ARMS:
        for seed in arm.seeds:
            points = [by_run.get((task, arm.name, seed, step, 1.0)) for step in CHECKPOINTS]
            start = first.get((task, pair(seed)[0]))
            if start is not None and all(points):
                path = [(one["mean@8"], one["coverage@8"]) for one in (start, *points) if one]
                paths.setdefault(arm.name, {})[pair(seed)] = path
    return paths


def comparisons(by_run: Mapping[Key, Mapping[str, float]], outcome: str) -> dict[tuple[str, ...], Difference]:
    """The primary comparisons of one outcome: task, arm, baseline."""
    primary = [arm.name for arm in ARMS if arm.primary]
    return {
        (task, arm, base): difference(of_arm(by_run, task, arm, outcome), of_arm(by_run, task, base, outcome))
        for task in TASKS
        for base in BASELINES
        for arm in primary
        if arm != base and (arm, base) != ("dr_grpo", "grpo")
    }


def page(
    found: Mapping[Key, Counts],
    by_run: Mapping[Key, Mapping[str, float]],
    first: Mapping[tuple[str, int], Mapping[str, float]],
    chances: Mapping[str, Mapping[str, float]],
    preregistration: str,
) -> str:
    """The text of `results.md`."""
    done = {key[:3] for key in found if key[3] == STEPS}
    whole = all((run.task, run.arm.name, run.seed) in done for run in runs() if run.arm.primary)
    parts = [
        "# Results",
        f"Written by run.py: {len(done)} of {len(runs())} runs. Preregistration: `{preregistration}`.",
    ]
    if not whole:
        parts.append("Runs of primary arms are missing, so nothing is tested yet.")
    for task in TASKS:
        parts += [f"## {task}", _levels(by_run, first, chances.get(task, {}), task)]
    if whole:
        parts += [text for outcome in OUTCOMES for text in _tests(by_run, outcome)]
        parts += [text for task in TASKS for text in _matched(by_run, first, task)]
        parts += ["## Secondary: linear probability model", _secondary(found)]
    return "\n\n".join(parts) + "\n"


def _levels(
    by_run: Mapping[Key, Mapping[str, float]],
    first: Mapping[tuple[str, int], Mapping[str, float]],
    chance: Mapping[str, float],
    task: str,
) -> str:
    starts = [one for (its, _), one in first.items() if its == task]
    rows = [["random answers", "", *(_shown(t_estimate([chance[o]]), o) for o in OUTCOMES), ""]] if chance else []
    rows += [["start", str(len(starts)), *(_shown(t_estimate([one[o] for one in starts]), o) for o in OUTCOMES), ""]]
    for arm in ARMS:
        values = {outcome: list(of_arm(by_run, task, arm.name, outcome).values()) for outcome in OUTCOMES}
        greedy = [one["mean@8"] for key, one in by_run.items() if (*key[:2], *key[3:]) == (task, arm.name, STEPS, 0.0)]
        if values["mean@8"]:
            cells = (_shown(t_estimate(values[outcome]), outcome) for outcome in OUTCOMES)
            rows.append([arm.name, str(len(greedy)), *cells, _shown(t_estimate(greedy), "mean@8")])
    hotter = [one for key, one in by_run.items() if (*key[:2], *key[3:]) == (task, "dr_grpo", STEPS, 1.2)]
    if hotter:
        cells = (_shown(t_estimate([one[outcome] for one in hotter]), outcome) for outcome in OUTCOMES)
        rows.append(["dr_grpo at T = 1.2", str(len(hotter)), *cells, ""])
    return _table(["arm", "runs", *OUTCOMES, "greedy"], rows)


def _tests(by_run: Mapping[Key, Mapping[str, float]], outcome: str) -> Iterator[str]:
    compared = comparisons(by_run, outcome)
    adjusted = corrected(compared)
    rows = [
        [
            task,
            arm,
            base,
            str(one.pairs),
            _shown(one.estimate, outcome, signed=True),
            _p(adjusted.get((task, arm, base))),
        ]
        for (task, arm, base), one in compared.items()
    ]
    yield f"## {outcome}: paired differences"
    yield _table(["task", "arm", "less", "pairs", "difference", "p (Holm)"], rows)
    if outcome == "mean@8":
        yield "Two one-sided tests of mean@8, ± 3 points:"
        same = [
            [task, arm, base, _p(equivalence(of_arm(by_run, task, arm, outcome), of_arm(by_run, task, base, outcome)))]
            for task, arm, base in compared
        ]
        yield _table(["task", "arm", "against", "p"], same)


def _matched(
    by_run: Mapping[Key, Mapping[str, float]], first: Mapping[tuple[str, int], Mapping[str, float]], task: str
) -> Iterator[str]:
    paths = trajectories(by_run, first, task)
    primary = {arm.name: paths[arm.name] for arm in ARMS if arm.primary and arm.name in paths}
    level = matched_accuracy(primary)
    reached = {arm: at_accuracy(pairs, level).figures for arm, pairs in paths.items()}
    rows = []
    for arm, values in reached.items():
        cells = [_shown(difference(values, reached[base]).estimate, "coverage@8", signed=True) for base in BASELINES]
        rows.append([arm, f"{len(values)} of {len(paths[arm])}", _shown(t_estimate(list(values.values()))), *cells])
    yield f"## {task}: coverage@8 at a mean@8 of {100 * level:.1f}%"
    yield _table(["arm", "runs that reach it", "coverage@8", *(f"less {base}" for base in BASELINES)], rows)


def _secondary(found: Mapping[Key, Counts]) -> str:
    rows = []
    for task in TASKS:
        for base in BASELINES:
            for arm in (one.name for one in ARMS if one.primary and one.name not in BASELINES):
                cells: list[tuple[float, int, int, int, int]] = []
                for (its, name, seed, step, temperature), problems in found.items():
                    if (its, step, temperature) == (task, STEPS, 1.0) and name in (arm, base):
                        treated = int(name == arm)
                        cells += [
                            (r / n, treated, p, seed, 2 * seed + treated) for p, (r, n, *_) in enumerate(problems)
                        ]
                effect = linear_probability(*(list(column) for column in zip(*cells, strict=True)))
                rows.append(
                    [task, arm, base, f"{100 * effect.value:+.1f} ± {100 * effect.error:.1f}", _p(effect.p_value)]
                )
    return _table(["task", "arm", "less", "points ± standard error", "p"], rows)


def _shown(estimate: Estimate, outcome: str = "coverage@8", *, signed: bool = False) -> str:
    factor, digits = (100, 1) if outcome in SHARES else (1, 3)
    form = f"{{:{'+' if signed else ''}.{digits}f}}"
    if math.isnan(estimate.value):
        return "–"
    value = form.format(factor * estimate.value)
    if math.isnan(estimate.low):
        return value
    return f"{value} [{form.format(factor * estimate.low)}, {form.format(factor * estimate.high)}]"


def _p(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.2g}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])
