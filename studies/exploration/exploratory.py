"""What is not preregistered: sensitivity of the matched comparison, what coverage is made of, the exploratory arms, and
early stopping. Intervals only: nothing here is tested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from analysis import Figures, at_accuracy, best, difference
from arms import ARMS, BASELINES, FEWER_SEEDS, TASKS
from outcomes import IF_SOLVED, OUTCOMES, STEP, Outcomes, of_arm, pair, paths, shown, table

from covey.evaluation.estimators import mean, t_estimate

LEVELS = {"countdown": (0.14, 0.15, 0.16, 0.17, 0.18), "graph_coloring": (0.24, 0.25, 0.26, 0.27, 0.28)}
"""Accuracies above those of all starts, around the preregistered level."""
AT_END = tuple(outcome for outcome in (*OUTCOMES, IF_SOLVED) if outcome != "mean@8")


def exploratory(found: Outcomes, levels: Mapping[str, float]) -> list[str]:
    """The sections of `results.md` that the preregistration does not have.

    Args:
        found: all outcomes.
        levels: the preregistered level of accuracy, by task.
    """
    others = [arm.name for arm in ARMS if arm.name not in BASELINES]
    parts = ["## Not preregistered", "Intervals of single comparisons; nothing here is a test."]
    parts += ["### What coverage is made of", *_if_solved(found)]
    parts += [text for task in TASKS for text in _other_levels(found, task)]
    for task in TASKS:
        parts += [f"### {task}: exploratory arms", *_arms(found, task, levels[task])]
    parts += ["### Early stopping", *_early(found, others)]
    return parts


def _if_solved(found: Outcomes) -> Iterator[str]:
    yield (
        "distinct@8 is pass@8 times `distinct@8 if solved`, the right answers among 8 completions given that one is "
        "right: an arm also covers more by solving more problems. The paired differences of the second factor:"
    )
    rows = []
    for task in TASKS:
        for arm in (one.name for one in ARMS if one.primary):
            gaps = {
                base: difference(of_arm(found, task, arm, IF_SOLVED), of_arm(found, task, base, IF_SOLVED))
                for base in BASELINES
            }
            cells = [
                "–" if arm == base else shown(one.estimate, IF_SOLVED, signed=True, pairs=one.pairs)
                for base, one in gaps.items()
            ]
            rows.append([task, arm, *cells])
    yield table(["task", "arm", *(f"less {base} (pairs)" for base in BASELINES)], rows)


def _other_levels(found: Outcomes, task: str) -> Iterator[str]:
    rows = []
    for arm in (one.name for one in ARMS if one.primary and one.name not in BASELINES):
        for base in BASELINES:
            own, other = (paths(found, task, name, "coverage@8") for name in (arm, base))
            highest = {one: min(level, best(other)[one]) for one, level in best(own).items() if one in other}
            cells = []
            for level in (*LEVELS[task], highest):
                gap = difference(at_accuracy(own, level), at_accuracy(other, level))
                cells.append(shown(gap.estimate, "coverage@8", signed=True, pairs=gap.pairs))
            rows.append([arm, base, *cells])
    yield f"### {task}: coverage@8 at other levels of mean@8"
    yield table(["arm", "less", *(f"{level:.0%}" for level in LEVELS[task]), "highest both reach"], rows)
    yield "In parentheses the pairs of which both runs reach the level. In the last column each pair has its own level."


def _arms(found: Outcomes, task: str, level: float) -> Iterator[str]:
    """Levels on the seeds of the exploratory arms, which have other shares of the starts, and paired differences."""
    pairs = [pair(seed) for seed in FEWER_SEEDS]
    names = [arm.name for arm in ARMS if not arm.primary and of_arm(found, task, arm.name, "mean@8")]
    if not names:
        yield "None is done."
        return
    yield f"The baselines' rows hold their runs of the same {len(pairs)} pairs."
    rows = []
    for arm in (*BASELINES, *names):
        values = {
            o: [x for one, x in of_arm(found, task, arm, o).items() if one in pairs] for o in (*OUTCOMES, IF_SOLVED)
        }
        greedy = [x for one, x in of_arm(found, task, arm, "mean@8", 0.0).items() if one in pairs]
        cells = [shown(t_estimate(one), outcome) for outcome, one in values.items()]
        rows.append([arm, str(len(greedy)), *cells, shown(t_estimate(greedy), "mean@8")])
    yield table(["arm", "runs", *OUTCOMES, IF_SOLVED, "greedy"], rows)
    rows = []
    for arm in names:
        for base in BASELINES:
            gaps = [difference(of_arm(found, task, arm, o), of_arm(found, task, base, o)) for o in OUTCOMES]
            cells = [shown(one.estimate, o, signed=True) for one, o in zip(gaps, OUTCOMES, strict=True)]
            matched = difference(*(at_accuracy(paths(found, task, name, "coverage@8"), level) for name in (arm, base)))
            at_level = shown(matched.estimate, "coverage@8", signed=True, pairs=matched.pairs)
            rows.append([arm, base, str(gaps[0].pairs), *cells, at_level])
    at = f"coverage@8 at {100 * level:.1f}% (pairs)"
    yield table(["arm", "less", "pairs", *OUTCOMES, at], rows)


def _early(found: Outcomes, arms: list[str]) -> Iterator[str]:
    yield (
        "Each arm at its end, less a baseline of the same pair that is stopped where it first has the arm's mean@8, "
        "linear between checkpoints. Left out are pairs whose baseline never has it, because the arm is more accurate, "
        "or less so than the start. "
        "The arm has its whole schedule behind it, with a learning rate of 0 at the end, and the stopped baseline has "
        "not, which may favour the arm: nothing was trained with a shorter schedule."
    )
    rows = []
    for task in TASKS:
        for arm in arms:
            for base in BASELINES:
                level = of_arm(found, task, arm, "mean@8")
                both = level.keys() & of_arm(found, task, base, "mean@8").keys()
                steps = at_accuracy(paths(found, task, base, STEP), level)
                if both:
                    at = [level[one] for one in steps]
                    stopped = shown(t_estimate([mean(at)]), "mean@8") if at else "–"
                    when = f"{mean(list(steps.values())):.0f}" if at else "–"
                    cells = [_gap(found, task, arm, base, outcome, level) for outcome in AT_END]
                    rows.append([task, arm, base, f"{len(steps)} of {len(both)}", stopped, when, *cells])
    yield table(["task", "arm", "less", "pairs", "mean@8 of both", "stopped at step", *AT_END], rows)


def _gap(found: Outcomes, task: str, arm: str, base: str, outcome: str, level: Figures) -> str:
    stopped = at_accuracy(paths(found, task, base, outcome), level)
    return shown(difference(of_arm(found, task, arm, outcome), stopped).estimate, outcome, signed=True)
