"""The tables and the picture of the study: what is preregistered here, the rest in `exploratory.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from analysis import (
    Difference,
    Effect,
    at_accuracy,
    corrected,
    difference,
    equivalence,
    linear_probability,
    matched_accuracy,
    over_starts,
)
from arms import ARMS, BASELINES, FEWER_SEEDS, SEEDS, STEPS, TASKS, runs
from data import START, Data, collect, read_data, write_data
from exploratory import exploratory
from measure import HOTTER
from outcomes import (
    IF_SOLVED,
    OUTCOMES,
    Outcomes,
    figures,
    of_arm,
    of_starts,
    p_text,
    pair,
    paths,
    shown,
    table,
)
from pictures import Panel, draw_frontier

from covey.evaluation.estimators import t_estimate
from covey.runlog import write_atomically

PRIMARY = [arm.name for arm in ARMS if arm.primary]
COMPARED = [
    (task, arm, base)
    for task in TASKS
    for base in BASELINES
    for arm in PRIMARY
    if arm != base and (arm, base) != ("dr_grpo", "grpo")
]
"""The comparisons of a family: task, arm, baseline."""
LEVELS = (*OUTCOMES, IF_SOLVED)
_TESTS = (
    "`p (Holm)` is the preregistered test, the paired t test, corrected over the 14 comparisons of an outcome. By "
    "start: the mean differences of the pairs of start 0, 1 and 2. The p-value of a t test over these three is not "
    "corrected, nor was it preregistered."
)


def write(output: Path, preregistration: str, folder: Path) -> None:
    """Write `results.parquet` from the measurements if there are any, and from it `results.md` and `frontier.png`.

    Args:
        output: the study's folder with the measurements.
        preregistration: its SHA-256.
        folder: where they go.
    """
    file = folder / "results.parquet"
    kept = read_data(file) if file.is_file() else Data(preregistration)
    data = collect(output, preregistration)
    if not data.runs:
        data = kept
    elif missing := len(kept.runs - data.runs):
        raise SystemExit(
            f"{file} holds {missing} runs that {output} does not, and would lose them: finish the study, or move the "
            "file away to write what is there."
        )
    if not data.runs:
        raise SystemExit("Nothing is measured yet: run the stages starts and runs first.")
    if data.preregistration != preregistration:
        raise SystemExit(f"{file} was made under another preregistration.md: restore that file, or move {file} away.")
    if data is not kept:
        write_data(data, file)
    found = {key: figures(problems) for key, problems in data.problems.items()}
    write_atomically(folder / "results.md", page(data, found))
    draw_frontier(_drawn(found), folder / "frontier.png")
    print(f"Written: results.md and frontier.png in {folder}, from {len(data.runs)} of {len(runs())} runs.")


def page(data: Data, found: Outcomes) -> str:
    """The text of `results.md`."""
    whole = all((run.task, run.arm.name, run.seed) in data.runs for run in runs() if run.arm.primary)
    parts = [
        "# Results",
        f"Written by run.py: {len(data.runs)} of {len(runs())} runs. Preregistration: `{data.preregistration}`.",
        "coverage@8, mean@8 and pass@8 in percent. In brackets 95% t intervals over runs, or over pairs of start and "
        "seed for differences; none is corrected for the number of comparisons. README.md says what limits them.",
    ]
    if not whole:
        parts.append("Runs of primary arms are missing, so nothing is tested yet.")
    for task in TASKS:
        parts += [f"## {task}", _levels(data, found, task)]
    if whole:
        parts += ["## Tests", _TESTS]
        parts += [text for outcome in OUTCOMES for text in _tests(found, outcome)]
        parts += [text for task in TASKS for text in _matched(found, task)]
        parts += ["## Hotter sampling", _hotter(found)]
        parts += ["## Secondary: linear probability model", *_secondary(data)]
        parts += exploratory(found, {task: _level(found, task) for task in TASKS})
    return "\n\n".join(parts) + "\n"


def _levels(data: Data, found: Outcomes, task: str) -> str:
    rows = []
    if chance := data.chance.get(task):
        names = {"mean@8": "pass@1", IF_SOLVED: "distinct_if_solved@8"}
        values = {outcome: chance[f"chance/{names.get(outcome, outcome)}"] for outcome in LEVELS}
        rows.append(["random answers", "", *(shown(t_estimate([values[o]]), o) for o in LEVELS), ""])
    starts = {outcome: of_starts(found, task, outcome) for outcome in LEVELS}
    rows.append([START, str(len(starts["mean@8"])), *(shown(t_estimate(starts[o]), o) for o in LEVELS), ""])
    for arm in PRIMARY:
        cells, n = _cells(found, task, arm)
        greedy = list(of_arm(found, task, arm, "mean@8", 0.0).values())
        if n:
            rows.append([arm, str(n), *cells, shown(t_estimate(greedy), "mean@8")])
    cells, n = _cells(found, task, "dr_grpo", HOTTER)
    if n:
        rows.append([f"dr_grpo at T = {HOTTER:g}", str(n), *cells, ""])
    return table(["arm", "runs", *LEVELS, "greedy"], rows)


def _cells(found: Outcomes, task: str, arm: str, temperature: float = 1.0) -> tuple[list[str], int]:
    values = {outcome: list(of_arm(found, task, arm, outcome, temperature).values()) for outcome in LEVELS}
    return [shown(t_estimate(values[outcome]), outcome) for outcome in LEVELS], len(values["mean@8"])


def compared(found: Outcomes, outcome: str) -> dict[tuple[str, ...], Difference]:
    """The primary comparisons of one outcome."""
    return {
        (task, arm, base): difference(of_arm(found, task, arm, outcome), of_arm(found, task, base, outcome))
        for task, arm, base in COMPARED
    }


def _tests(found: Outcomes, outcome: str) -> Iterator[str]:
    differences = compared(found, outcome)
    adjusted = corrected(differences)
    rows, same = [], []
    for (task, arm, base), one in differences.items():
        both = of_arm(found, task, arm, outcome), of_arm(found, task, base, outcome)
        means, p_starts = over_starts(*both)
        by_start = ", ".join(shown(t_estimate([mean]), outcome, signed=True) for mean in means)
        cells = [str(one.pairs), shown(one.estimate, outcome, signed=True), p_text(adjusted[task, arm, base])]
        rows.append([task, arm, base, *cells, by_start, p_text(p_starts)])
        same.append([task, arm, base, p_text(equivalence(*both))])
    yield f"### {outcome}: paired differences"
    yield table(["task", "arm", "less", "pairs", "difference", "p (Holm)", "by start", "p over starts"], rows)
    if outcome == "mean@8":
        yield "Two one-sided tests of mean@8, ± 3 points, not corrected:"
        yield table(["task", "arm", "against", "p"], same)


def _level(found: Outcomes, task: str) -> float:
    return matched_accuracy(paths(found, task, arm, "coverage@8") for arm in PRIMARY)


def _matched(found: Outcomes, task: str) -> Iterator[str]:
    level = _level(found, task)
    checkpoints = {arm: paths(found, task, arm, "coverage@8") for arm in PRIMARY}
    reached = {arm: at_accuracy(own, level) for arm, own in checkpoints.items()}
    rows = []
    for arm, values in reached.items():
        gaps = {base: difference(values, reached[base]) for base in BASELINES if base != arm}
        cells = [
            shown(gaps[base].estimate, "coverage@8", signed=True, pairs=gaps[base].pairs) if base in gaps else "–"
            for base in BASELINES
        ]
        count = f"{len(values)} of {len(checkpoints[arm])}"
        rows.append([arm, count, shown(t_estimate(list(values.values())), "coverage@8"), *cells])
    yield f"## {task}: coverage@8 at a mean@8 of {100 * level:.1f}%"
    yield table(["arm", "runs that reach it", "coverage@8", *(f"less {base} (pairs)" for base in BASELINES)], rows)


def _hotter(found: Outcomes) -> str:
    rows = []
    for task in TASKS:
        both = [[of_arm(found, task, "dr_grpo", outcome, at) for outcome in LEVELS] for at in (HOTTER, 1.0)]
        gaps = [difference(hot, usual) for hot, usual in zip(*both, strict=True)]
        cells = [shown(one.estimate, outcome, signed=True) for outcome, one in zip(LEVELS, gaps, strict=True)]
        rows.append([task, str(gaps[0].pairs), *cells])
    return "\n\n".join([f"`dr_grpo` at T = {HOTTER:g} less itself at T = 1:", table(["task", "pairs", *LEVELS], rows)])


def _secondary(data: Data) -> Iterator[str]:
    yield (
        "Errors by run are the preregistered ones, and **too small**: within a pair the residuals of the two runs are "
        "each other's negative, which makes them those of the paired t test times about 0.68. Errors by pair are the "
        "right ones, and equal the paired t test's."
    )
    rows = []
    for task, arm, base in COMPARED:
        if arm not in BASELINES:
            by_run, by_pair = (_effect(data, task, arm, base, by_run=one) for one in (True, False))
            cells = [f"± {100 * one.error:.1f}, p = {p_text(one.p_value)}" for one in (by_run, by_pair)]
            rows.append([task, arm, base, f"{100 * by_run.value:+.1f}", *cells])
    yield table(["task", "arm", "less", "points", "standard error by run", "by pair"], rows)


def _effect(data: Data, task: str, arm: str, base: str, *, by_run: bool) -> Effect:
    cells: list[tuple[float, int, int, int, int]] = []
    for (its, name, seed, step, temperature), problems in data.problems.items():
        if (its, step, temperature) == (task, STEPS, 1.0) and name in (arm, base):
            treated = int(name == arm)
            cluster = 2 * seed + treated if by_run else seed
            cells += [(r / n, treated, p, seed, cluster) for p, (r, n, *_) in enumerate(problems)]
    outcome, *labels = zip(*cells, strict=True)
    return linear_probability(outcome, *labels)


def _drawn(found: Outcomes) -> list[dict[str, Panel]]:
    """Rows of panels: the primary arms, and the exploratory ones beside the baselines' runs of the same seeds. Arms of
    which runs are missing stay out."""
    drawn = []
    for primary, seeds in ((True, SEEDS), (False, FEWER_SEEDS)):
        names = [arm.name for arm in ARMS if arm.primary == primary or arm.name in BASELINES]
        row: dict[str, Panel] = {}
        for task in TASKS:
            own = {arm: paths(found, task, arm, "coverage@8") for arm in names}
            whole = {arm: [by[pair(s)] for s in seeds if pair(s) in by] for arm, by in own.items()}
            panel = {arm: runs_ for arm, runs_ in whole.items() if len(runs_) == len(seeds)}
            if not primary and not panel.keys() - set(BASELINES):
                continue
            row[task if primary else f"{task}: exploratory arms"] = panel
        drawn.append(row)
    return drawn
