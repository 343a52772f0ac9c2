"""The study in studies/exploration: its statistics by hand and against independent references, its arms, its plan."""

from __future__ import annotations

import hashlib
import importlib
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "studies" / "exploration"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The scripts, which find each other as neighbours in their folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("analysis", "arms", "data", "exploratory", "measure", "outcomes", "results")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def test_paired_differences_by_hand(study: SimpleNamespace) -> None:
    arm = {(0, 0): 0.5, (1, 1): 0.7, (2, 2): 0.9, (0, 3): 1.0}
    other = {(0, 0): 0.4, (1, 1): 0.5, (2, 2): 0.6}
    found = study.analysis.difference(arm, other)  # gaps 0.1, 0.2, 0.3: mean 0.2, error 0.1 / sqrt(3), t = sqrt(12)
    assert (found.pairs, found.estimate.value) == (3, pytest.approx(0.2))
    # with two degrees of freedom P(|T| > t) = 1 - t / sqrt(2 + t^2)
    assert found.p_value == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-6)
    assert study.analysis.difference(other, arm).estimate.value == pytest.approx(-0.2)
    assert math.isnan(study.analysis.difference(arm, {(0, 0): 0.0}).p_value)


def test_equivalence_needs_both_sides(study: SimpleNamespace) -> None:
    def gaps(*values: float) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
        return {(0, i): v for i, v in enumerate(values)}, {(0, i): 0.0 for i in range(len(values))}

    near, far = gaps(0.001, -0.001, 0.002, -0.002), gaps(0.029, 0.031, 0.03, 0.05)
    assert study.analysis.equivalence(*near) < 0.001
    assert study.analysis.equivalence(*far) > 0.5
    wide = gaps(0.1, -0.1, 0.1, -0.1)  # no difference on average, and no evidence of none
    assert study.analysis.equivalence(*wide) > 0.2
    # gaps 0.00 and 0.02: mean 0.01, error 0.01; t = (0.01 - 0.03) / 0.01 = -2 with one degree of freedom
    assert study.analysis.equivalence(*gaps(0.0, 0.02)) == pytest.approx(0.5 - math.atan(2) / math.pi, abs=1e-6)


def test_the_frontier_is_read_where_a_run_first_reaches_the_accuracy(study: SimpleNamespace) -> None:
    runs = {
        (0, 0): [(0.1, 0.3), (0.2, 0.25), (0.4, 0.15), (0.3, 0.10)],
        (1, 1): [(0.1, 0.3), (0.15, 0.2)],
        (2, 2): [(0.35, 0.4), (0.5, 0.1)],  # starts above 0.3, and is nowhere as accurate as that
    }
    assert study.analysis.at_accuracy(runs, 0.3) == {(0, 0): pytest.approx(0.2)}
    each = study.analysis.at_accuracy(runs, {(0, 0): 0.15, (2, 2): 0.35})
    assert each == {(0, 0): pytest.approx(0.275), (2, 2): 0.4}
    other = {(0, 0): [(0.1, 0.3), (0.25, 0.2)], (1, 1): [(0.1, 0.3), (0.22, 0.2)], (2, 2): [(0.1, 0.0), (0.9, 0.2)]}
    assert study.analysis.matched_accuracy([runs, other]) == pytest.approx(0.25)


def test_differences_over_starts_by_hand(study: SimpleNamespace) -> None:
    arm = {(0, 0): 0.1, (0, 3): 0.3, (1, 1): 0.3, (2, 2): 0.1}
    means, p_value = study.analysis.over_starts(arm, {**dict.fromkeys(arm, 0.0), (0, 6): 9.0})
    assert means == pytest.approx([0.2, 0.3, 0.1])
    assert p_value == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-6)  # mean 0.2, error 0.1 / sqrt(3), as above


def test_the_linear_probability_model_against_dummy_variables(study: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    rows = [(p, s, a) for p in range(12) for s in range(4) for a in (0, 1)]
    problem, seed, arm = (np.array(column) for column in zip(*rows, strict=True))
    run = 2 * seed + arm
    outcome = rng.normal(size=12)[problem] + 0.3 * arm + rng.normal(size=8)[run] * 0.1 + rng.normal(size=96) * 0.05
    found = study.analysis.linear_probability(outcome, arm, problem, seed, run)
    dummies = [arm.astype(float), *(problem == p for p in range(12)), *(seed == s for s in range(1, 4))]
    design = np.stack([np.asarray(one, float) for one in dummies], axis=1)
    solution, *_ = np.linalg.lstsq(design, outcome, rcond=None)
    assert found.value == pytest.approx(solution[0], abs=1e-9)
    residuals = outcome - design @ solution
    bread = np.linalg.inv(design.T @ design)
    scores = np.stack([design[run == r].T @ residuals[run == r] for r in range(8)])
    covariance = bread @ (scores.T @ scores) @ bread * 8 / 7
    assert found.error == pytest.approx(math.sqrt(covariance[0, 0]), rel=1e-6)
    assert 0 < found.p_value < 0.05


def test_errors_by_pair_are_those_of_the_paired_t_test_and_errors_by_run_too_small(study: SimpleNamespace) -> None:
    rng = np.random.default_rng(1)
    rows = [(p, s, a) for p in range(10) for s in range(8) for a in (0, 1)]
    problem, seed, arm = (np.array(column) for column in zip(*rows, strict=True))
    outcome = rng.normal(size=16)[2 * seed + arm] + rng.normal(size=160)
    by_pair = study.analysis.linear_probability(outcome, arm, problem, seed, seed)
    means = [{(0, s): float(outcome[(seed == s) & (arm == a)].mean()) for s in range(8)} for a in (1, 0)]
    paired = study.analysis.difference(*means)
    assert (by_pair.value, by_pair.p_value) == (pytest.approx(paired.estimate.value), pytest.approx(paired.p_value))
    by_run = study.analysis.linear_probability(outcome, arm, problem, seed, 2 * seed + arm)
    assert by_run.error / by_pair.error == pytest.approx(math.sqrt(7 / 15))


def test_holm_is_taken_over_the_comparisons_of_one_outcome(study: SimpleNamespace) -> None:
    def one(p: float) -> object:
        return study.analysis.Difference(8, study.analysis.Estimate(0.0, 0.0, 0.0), p)

    found = study.analysis.corrected({("a",): one(0.01), ("b",): one(0.04), ("c",): one(math.nan)})
    assert found == {("a",): pytest.approx(0.02), ("b",): pytest.approx(0.04)}


def test_data_are_read_as_they_were_written(study: SimpleNamespace, tmp_path: Path) -> None:
    data = study.data.Data("a hash", chance={"countdown": {"chance/pass@8": 0.25}})
    data.problems["countdown", "start", 0, 0, 1.0] = [(3, 16, 2, [2, 1]), (0, 16, 5, [])]
    data.problems["countdown", "xdr d≈1.6", 4, 60, 1.0] = [(16, 16, 2, [16]), (1, 16, 5, [1])]
    study.data.write_data(data, tmp_path / "data.parquet")
    assert study.data.read_data(tmp_path / "data.parquet") == data
    assert data.runs == {("countdown", "xdr d≈1.6", 4)}


@pytest.mark.slow
def test_the_committed_tables_are_those_of_the_committed_data(study: SimpleNamespace) -> None:
    data = study.data.read_data(FOLDER / "results.parquet")
    assert data.preregistration == hashlib.sha256((FOLDER / "preregistration.md").read_bytes()).hexdigest()
    found = {key: study.outcomes.figures(problems) for key, problems in data.problems.items()}
    assert (FOLDER / "results.md").read_text(encoding="utf-8") == study.results.page(data, found)


def test_runs_are_not_lost_when_fewer_are_measured(study: SimpleNamespace, tmp_path: Path) -> None:
    both = study.data.Data("a hash")
    for arm in ("grpo", "maxrl"):
        both.problems["countdown", arm, 0, 60, 1.0] = [(1, 16, 2, [1])]
    study.data.write_data(both, tmp_path / "results.parquet")
    run = next(one for one in study.arms.runs() if (one.task, one.arm.name, one.seed) == ("countdown", "grpo", 0))
    for *_, file in study.measure.measurements(tmp_path, run):
        file.parent.mkdir(exist_ok=True)
        file.write_text('{"problems": [[1, 16, 2, [1]]]}')
    with pytest.raises(SystemExit, match="holds 1 runs that"):
        study.results.write(tmp_path, "a hash", tmp_path)
    with pytest.raises(SystemExit, match="another preregistration"):
        study.results.write(tmp_path / "nothing", "another hash", tmp_path)


def test_an_arm_at_its_end_against_a_baseline_that_stops_early(study: SimpleNamespace) -> None:
    def checkpoint(right: int) -> dict[str, float]:
        return study.outcomes.figures([(right, 16, 2, [right])])

    found = {("countdown", "start", 0, 0, 1.0): checkpoint(0)}
    for step in study.arms.CHECKPOINTS:
        found["countdown", "grpo", 0, step, 1.0] = checkpoint(step // 10)
        found["countdown", "maxent τ=0.3", 0, step, 1.0] = checkpoint(3)
    _, rows = study.exploratory._early(found, ["maxent τ=0.3"])
    # grpo has 3 of 16 right at step 30, as the arm has at its end: no difference
    assert rows.splitlines()[2:] == [
        "| countdown | maxent τ=0.3 | grpo | 1 of 1 | 18.8 | 30 | +0.0 | +0.0 | +0.000 | +0.000 |"
    ]
