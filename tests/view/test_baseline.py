"""Differences from a baseline: the paired test of `covey compare`, and its guards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.evaluation.comparison import compare_runs
from covey.runlog.evaluations import append_completions, begin_evaluation, finish_evaluation
from covey.view.compare import Baseline
from covey.view.runs import RunStore
from made_run import make_run, write_evaluation

CONFIG = """\
model: {name: starter}
dataset: {task: arithmetic}
rewards: {funcs: [exact_match]}
"""


def made(out: Path, name: str, scores: list[float], config: str = CONFIG) -> Path:
    run = make_run(out / name, steps=4)
    (run / "config.yaml").write_text(config)
    write_evaluation(run, 4, scores)
    return run


def differences(out: Path, baseline: str) -> dict[str, dict[str, Any]]:
    store = RunStore(out)
    return Baseline(store).differences(baseline, store.entries())


def test_the_paired_difference_of_every_run(tmp_path: Path) -> None:
    first = made(tmp_path, "a", [0] * 12 + [1] * 8)
    same = made(tmp_path, "b", [0] * 12 + [1] * 8)
    better = made(tmp_path, "c", [1] * 20)
    found = differences(tmp_path, "a")
    assert found.keys() == {"b", "c"}
    for name, run in (("b", same), ("c", better)):
        (expected,) = (result.found for result in compare_runs(first, run))
        assert expected is not None
        assert found[name]["value"] == expected.difference
        assert (found[name]["low"], found[name]["high"]) == (expected.low, expected.high)
        assert (found[name]["p"], found[name]["problems"]) == (expected.p_value, 20)
    # Holm: the smallest of two p-values is doubled, the largest stays
    assert found["c"]["p"] == pytest.approx(2 / 2**12)  # McNemar's exact test: 12 gained, none lost
    assert found["c"]["corrected"] == pytest.approx(2 * found["c"]["p"])
    assert found["b"]["corrected"] == found["b"]["p"] == 1
    (alone,) = (one for name, one in differences(tmp_path, "b").items() if name == "a")
    assert alone["value"] == 0


def other_problems(out: Path) -> None:
    made(out, "b", [0, 1, 0])


def other_grader(out: Path) -> None:
    made(out, "b", [0, 1], CONFIG.replace("exact_match", "accuracy"))


def other_figure(out: Path) -> None:
    run = make_run(out / "b", steps=1)
    (run / "metrics.jsonl").write_text('{"step": 1, "eval/reward": 0.5}\n')


def other_sampling(out: Path) -> None:
    made(out, "b", [0, 1], CONFIG + "evaluation: {temperature: 0.5}\n")


def no_completions(out: Path) -> None:
    (made(out, "b", [0, 1]) / "evaluation" / "test-step-000004.jsonl").unlink()


def cut(out: Path) -> None:
    (made(out, "b", [0, 1]) / "evaluation" / "test-step-000004.jsonl").write_text("{}\n[1]\n")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (other_problems, "the problems (2 and 3) differ"),
        (other_grader, "the grader (“exact_match” and “accuracy”) differ"),
        (other_figure, "the figures differ (“accuracy” and “reward”)"),
        (other_sampling, "sampled differently (temperature"),
        (no_completions, "neither an evaluation"),
        (cut, "test-step-000004.jsonl"),
    ],
)
def test_what_must_not_be_compared_is_refused(make: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    made(tmp_path, "a", [0, 1])
    make(tmp_path)
    found = differences(tmp_path, "a")["b"]
    assert found.keys() == {"refused"}
    assert reason in found["refused"]


def test_an_evaluation_beside_runs(tmp_path: Path) -> None:
    settings = {
        **{"name": "gsm8k", "num_samples": 1, "data": {"problems": 4, "problems_fingerprint": "x"}},
        **{"grader": "maths", "sampling": {"temperature": 0}},
    }
    for folder, right in ((tmp_path / "base", "0000"), (made(tmp_path, "a", [0, 1]) / "evaluation" / "g", "1110")):
        begin_evaluation(folder, settings)
        outcomes = ("right" if one == "1" else "wrong" for one in right)
        append_completions(folder, [{"problem": at, "outcome": one} for at, one in enumerate(outcomes)])
        finish_evaluation(folder, {"accuracy": (right.count("1") / 4, 0.1, 0.9)})
    (found,) = differences(tmp_path, "base").values()
    assert found["value"] == 0.75
    assert found["p"] == 0.25  # 2 / 2**3


def test_a_new_evaluation_changes_the_difference(tmp_path: Path) -> None:
    made(tmp_path, "a", [0] * 8)
    run = made(tmp_path, "b", [0] * 8)
    store = RunStore(tmp_path)
    baseline = Baseline(store)
    assert baseline.differences("a", store.entries())["b"]["value"] == 0
    write_evaluation(run, 8, [1] * 8)
    assert baseline.differences("a", store.entries())["b"]["value"] == 1
