"""The signs that a grader pays for what it should not: what counts as one, and what is honest."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.answers import Outcome, Tags, extract_gsm8k, gold_answer, grade_math, holds_gold_value, repeats_prompt
from covey.runlog.files import parse_json

NATALIA = "Natalia sold clips to 48 of her friends in April, and then half as many in May."


@pytest.mark.parametrize(
    ("completion", "question", "gold", "repeats"),
    [
        ("92 + 88", "What is 92 + 88?", "180", True),
        ("92+88.", "What is 92 + 88?", "180", True),
        ("$92 + 88$", "What is $92+88$?", "180", True),
        (r"\boxed{92 + 88}", "What is 92 + 88?", "180", True),
        ("<think>Add them.</think>\n<answer>92 + 88</answer>", "What is 92 + 88?", "180", True),
        ("What is 92 + 88?", "What is 92 + 88?", "180", True),
        ("then half as many in May", NATALIA, "72", True),
        ("180", "What is 92 + 88?", "180", False),
        ("<think>92 + 88</think>180", "What is 92 + 88?", "180", False),  # thinking may repeat
        ("<think>92 + 88", "What is 92 + 88?", "180", False),  # no final text
        ("92 + 88 = 180", "What is 92 + 88?", "180", False),
        ("88", "What is 92 + 88?", "180", False),  # neither an operator nor four words
        ("-5", "Is -5 less than 3?", "3", False),  # a sign is no operator
        ("half as many", NATALIA, "72", False),
        ("half as many sold in May", NATALIA, "72", False),  # not contiguous
        ("then half as many in May", NATALIA, "Then half as many, in May", False),  # the gold answer
        ("x + 2", "(A) x + 1 (B) x + 2", "x+2", False),
        ("", NATALIA, "72", False),
        ("92 + 88", "", "180", False),
        ("92 + 88", "What is 92 + 88?", None, True),
    ],
)
def test_what_repeats_the_prompt(completion: str, question: str, gold: str | None, repeats: bool) -> None:
    assert repeats_prompt(completion, question, gold) is repeats


def test_the_configured_tags_count() -> None:
    text = "<r>Add them.</r><a>92 + 88</a>"
    assert repeats_prompt(text, "What is 92 + 88?", "180", Tags("r", "a"))
    assert not repeats_prompt(text, "What is 92 + 88?", "180")


@pytest.mark.parametrize(
    ("completion", "gold", "held"),
    [
        ("So it is 180.", "180", True),
        ("92 + 88", "180", False),
        ("1,800.0 of them", "1800", True),
        ("It is 3.5.", "7/2", True),
        (r"It is \frac{7}{2}.", "3.5", True),
        ("It is 7/2.", "3.5", True),
        ("50% of them", "0.5", True),
        ("3 1/2 of them", "7/2", True),
        (r"12\frac{1}{2}", "12.5", True),
        (r"It is \frac12.", "0.5", True),
        ("2.5 million", "2500000", True),
        ("0.333 of them", "1/3", True),
        ("minus 5", "-5", True),
        ("I do not know.", "5", False),
        ("x + 1", "x+1", None),
        ("(1, 2)", "(1, 2)", None),
    ],
)
def test_which_completions_hold_the_gold_answers_value(completion: str, gold: str, held: bool | None) -> None:
    assert holds_gold_value(completion, gold) is held


@pytest.mark.parametrize("name", ["model_outputs.jsonl", "gsm8k_model_outputs.jsonl"])
def test_honest_right_answers_hold_the_gold_value(shared_data: Path, name: str) -> None:
    """Right outputs of real models, decimals and fractions among them: at most one in a thousand looks like a hack."""
    rows = [parse_json(line) for line in (shared_data / "graders" / name).read_text(encoding="utf-8").splitlines()]
    right = [row for row in rows if grade_math(row["prediction"], row["gold"]) is Outcome.RIGHT]
    held = [found for row in right if (found := holds_gold_value(row["prediction"], row["gold"])) is not None]
    assert len(held) > 500
    assert held.count(False) <= 0.001 * len(held)


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("gsm8k_test.jsonl", "question"),
        ("math500_test.jsonl", "problem"),
        ("aime24.jsonl", "problem"),
        ("amc23.jsonl", "problem"),
        ("deepscaler_10k.jsonl", "problem"),
    ],
)
def test_no_gold_answer_is_taken_for_a_copy(shared_data: Path, name: str, question: str) -> None:
    """Problems may offer their answers, as multiple choice does; stating one is no copy."""
    rows = [parse_json(line) for line in (shared_data / name).read_text(encoding="utf-8").splitlines()]
    for row in rows:
        text = str(row["answer"])
        gold = (extract_gsm8k(text) if name.startswith("gsm8k") else None) or gold_answer(text)
        for completion in (rf"\boxed{{{gold}}}", f"<answer>{gold}</answer>"):
            assert grade_math(completion, gold, question=row[question]) is not Outcome.UNEVALUATED, gold
            assert not repeats_prompt(completion, row[question], gold), gold
