"""Grading against public corpora: labelled cases of other graders, labelled model outputs, gold answers of datasets.

docs/grading.md lists every disagreement with its reason; a disagreement that is not listed there fails.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from covey.answers import Outcome, grade_math


@pytest.fixture(scope="module")
def script(root: Path) -> ModuleType:
    """scripts/grading_report.py, which has the corpora and the reasons."""
    spec = importlib.util.spec_from_file_location("grading_report", root / "scripts" / "grading_report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_labelled_cases_of_public_graders(script: ModuleType, shared_data: Path) -> None:
    cases = script.rows(shared_data / "graders" / "pairs.jsonl")
    clean = [i for i, case in enumerate(cases) if not case["suspect"]]
    wrong = set(script.disagreements(cases)) & set(clean)
    assert wrong == set(script.PAIRS), "run scripts/grading_report.py and say why"
    assert len(wrong) <= 0.03 * len(clean)


def test_bare_boxed_and_tagged_answers_get_the_same_grade(script: ModuleType, shared_data: Path) -> None:
    """The cases that compare two bare answers; a backslash at the end would escape the closing brace of a box."""
    for case in script.rows(shared_data / "graders" / "pairs.jsonl"):
        prediction = case["prediction"]
        if case["source"].endswith("#equiv") and prediction and not prediction.endswith("\\"):
            bare = grade_math(prediction, case["gold"]) is Outcome.RIGHT
            for form in script.FORMS:
                graded = grade_math(form.replace("%s", prediction), case["gold"])
                assert (graded is Outcome.RIGHT) is bare, (case, form)


def test_labelled_model_outputs(script: ModuleType, shared_data: Path) -> None:
    cases = script.rows(shared_data / "graders" / "gsm8k_model_outputs.jsonl")
    assert len(cases) == 2000
    assert len(script.disagreements(cases)) <= 0.005 * len(cases)


@pytest.mark.parametrize("name", ["math500_test.jsonl", "aime24.jsonl", "amc23.jsonl"])
def test_every_gold_answer_scores(script: ModuleType, shared_data: Path, name: str) -> None:
    _all_score(script, shared_data, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gsm8k_train.jsonl", "gsm8k_test.jsonl", "deepscaler_10k.jsonl"])
def test_every_gold_answer_of_the_large_sets_scores(script: ModuleType, shared_data: Path, name: str) -> None:
    _all_score(script, shared_data, name)


def _all_score(script: ModuleType, shared_data: Path, name: str) -> None:
    answers = script.gold_answers(shared_data, name)
    assert len(answers) >= 30
    assert all(answers)
    listed = [row for file, row in script.GOLD if file == name]
    assert script.misses(answers) == listed, "run scripts/grading_report.py and say why"


@pytest.mark.parametrize("name", ["math500_test.jsonl", "aime24.jsonl", "amc23.jsonl"])
def test_every_gold_answer_can_be_read(script: ModuleType, shared_data: Path, name: str) -> None:
    """An answer that cannot be read scores too, where the completion states the same text."""
    assert script.unreadable(script.gold_answers(shared_data, name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gsm8k_train.jsonl", "gsm8k_test.jsonl", "deepscaler_10k.jsonl"])
def test_gold_answers_of_the_large_sets_can_be_read(script: ModuleType, shared_data: Path, name: str) -> None:
    answers = script.gold_answers(shared_data, name)
    assert len(script.unreadable(answers)) <= (0.002 * len(answers) if name == "deepscaler_10k.jsonl" else 0)


def test_answers_in_natural_wordings(script: ModuleType, shared_data: Path) -> None:
    """A right answer is right in any wording, and a wrong one wrong."""
    answers = script.gold_answers(shared_data, "math500_test.jsonl")[::10]
    count, missed, rewarded = script.in_natural_wordings(answers)
    assert count >= 2_000
    assert rewarded == []
    assert len(missed) <= 0.001 * count, missed


@pytest.mark.slow
def test_no_gold_answer_takes_any_answer(script: ModuleType, shared_data: Path) -> None:
    """Every answer that is not a whole number, against two that it cannot equal: these reach all rules."""
    slowest = 0.0
    for name in ("math500_test.jsonl", "deepscaler_10k.jsonl"):
        for answer in sorted({a for a in script.gold_answers(shared_data, name) if not a.lstrip("-").isdigit()}):
            for other in ("987654", "x^{17}+7"):
                started = time.perf_counter()
                outcome: Any = grade_math(f"<answer>{other}</answer>", answer)
                slowest = max(slowest, time.perf_counter() - started)
                assert outcome in (Outcome.WRONG, Outcome.UNPARSABLE_GOLD), answer
    print(f"slowest {slowest:.2f} s")


def test_the_documentation_lists_every_reason(script: ModuleType, root: Path) -> None:
    text = (root / "docs" / "grading.md").read_text(encoding="utf-8")
    for row, reason in script.PAIRS.items():
        assert f"| {row} |" in text
        assert reason in text
    for (name, row), reason in script.GOLD.items():
        assert f"| {name} | {row} | {reason} |" in text
