"""Extracting and grading answers: small cases decided by hand, then every gold answer of the real data sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.answers import (
    EXTRACTORS,
    Outcome,
    canonical_number,
    extract_answer_tag,
    extract_boxed,
    extract_gsm8k,
    grade_exact,
    has_reasoning_format,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 42 </answer>", "42"),
        ("<think>x</think>\n<answer>\n42\n</answer>\n", "42"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1 <answer>2</answer>", "2"),  # opened twice: the inner one is the answer
        ("<answer>1</answer> and <answer>2", "1"),  # the last one never closes
        ("<answer>1</answer></answer>", "1"),
        ("</answer> <answer>1", None),
        ("</answer>", None),
        ("<answer>1", None),
        ("<answer>  </answer>", None),
        ("42", None),
        ("", None),
    ],
)
def test_answer_tag(text: str, answer: str | None) -> None:
    assert extract_answer_tag(text) == answer


def test_a_runaway_completion_is_searched_in_linear_time() -> None:
    """A pattern that tries every opening tag would need ten to the eleven steps here, and the test would never end."""
    assert extract_answer_tag("<answer>" * 300_000) is None
    assert extract_boxed(r"\boxed{" * 300_000) is None
    assert not has_reasoning_format("<think>" * 300_000)
    assert canonical_number("1," * 300_000) == "1," * 300_000


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So 48/2 = <<48/2=24>>24.\n#### 72", "72"),
        ("#### 1,234,567\n", "1234567"),
        ("#### 1\n#### -2", "-2"),
        ("72", None),
        ("####  ", None),
    ],
)
def test_gsm8k(text: str, answer: str | None) -> None:
    assert extract_gsm8k(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $\boxed{ 7 }$.", "7"),
        (r"\boxed{\frac{1}{2}} dollars", r"\frac{1}{2}"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\fbox{3}", "3"),
        (r"\boxed{\left\{1,2\right.}}", r"\left\{1,2\right."),  # an escaped brace opens nothing
        (r"\boxed{1 \\}", r"1 \\"),  # an escaped backslash escapes no brace
        (r"\boxed{1", None),
        (r"\boxed{}", None),
        ("7", None),
    ],
)
def test_boxed(text: str, answer: str | None) -> None:
    assert extract_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("<think>\n1+1\n</think>\n<answer>2</answer>", True),
        (" <think></think> <answer>2</answer>\n", True),
        ("<think>a</think><answer>2</answer> done", False),
        ("well <think>a</think><answer>2</answer>", False),
        ("<answer>2</answer>", False),
        ("<think>a</think>2", False),
        ("<think>a</think> so <answer>2</answer>", False),
        ("<answer>2</answer><think>a</think>", False),
        ("<think>a<think>b</think><answer>2</answer>", False),
        ("<think>a</think><answer>1</answer><answer>2</answer>", False),
        ("<think><answer>2</answer></think>", False),
    ],
)
def test_reasoning_format(text: str, fits: bool) -> None:
    assert has_reasoning_format(text) is fits


@pytest.mark.parametrize(
    "spelling", ["1334", " 1,334 ", "+1334", "1334.0", "1334.", "$1334", "$ 1,334.00", "+$1334", "01334"]
)
def test_spellings_of_one_number(spelling: str) -> None:
    assert canonical_number(spelling) == "1334"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("-5", "-5"),
        ("\N{MINUS SIGN}5.50", "-5.5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("-0.0", "0"),
        (".5", "0.5"),
        ("100", "100"),  # zeros before the point stay
        ("13,34", "13,34"),  # no thousands separator
        ("1,3345", "1,3345"),
        ("1e3", "1e3"),
        ("1 334", "1 334"),
        ("--5", "--5"),
        (".", "."),
        ("$", "$"),
        ("12\n apples", "12 apples"),
        ("²", "²"),  # a digit to Python, no number to us
        ("9" * 400, "9" * 400),
        ("", ""),
    ],
)
def test_canonical_number(text: str, canonical: str) -> None:
    assert canonical_number(text) == canonical


@pytest.mark.parametrize(
    ("completion", "gold", "outcome"),
    [
        ("<think>…</think><answer>1,334.0</answer>", "1334", Outcome.RIGHT),
        ("<answer>1334</answer>", "1,334", Outcome.RIGHT),
        ("<answer>-1334</answer>", "1334", Outcome.WRONG),
        ("<answer>133</answer>", "1334", Outcome.WRONG),
        ("<answer>1334 apples</answer>", "1334", Outcome.WRONG),
        ("1334", "1334", Outcome.UNPARSABLE_PREDICTION),
        ("<answer></answer>", "1334", Outcome.UNPARSABLE_PREDICTION),
    ],
)
def test_grade_exact(completion: str, gold: str, outcome: Outcome) -> None:
    assert grade_exact(completion, gold) is outcome


def _rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["gsm8k_train.jsonl", "gsm8k_test.jsonl"])
def test_every_gold_answer_of_gsm8k_scores(shared_data: Path, name: str) -> None:
    for row in _rows(shared_data / name):
        gold = EXTRACTORS["gsm8k"](row["answer"])
        assert gold is not None, row
        assert float(gold) == float(row["answer"].split("####")[1].replace(",", ""))
        assert grade_exact(f"<answer>{gold}</answer>", gold) is Outcome.RIGHT


def test_boxed_answers_of_math500_are_found(shared_data: Path) -> None:
    for row in _rows(shared_data / "math500_test.jsonl"):
        assert extract_boxed(row["solution"]) == row["answer"]


def test_no_wrong_answer_of_the_grader_cases_passes_as_the_same_number(shared_data: Path) -> None:
    """Exact match may miss a right answer in an unusual spelling; it must not make a wrong one right."""
    cases = [case for case in _rows(shared_data / "graders" / "pairs.jsonl") if not case["expected"]]
    assert len(cases) > 50
    for case in cases:
        assert canonical_number(str(case["prediction"])) != canonical_number(str(case["gold"])), case
