"""The signs that a grader pays for what it should not: what counts as one, and what is honest."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.answers import Outcome, Tags, extract_gsm8k, gold_answer, grade_math, holds_gold_value, repeats_prompt
from covey.runlog.files import parse_json


def test_the_configured_tags_count() -> None:
    text = "<r>Add them.</r><a>92 + 88</a>"
    assert repeats_prompt(text, "What is 92 + 88?", "180", Tags("r", "a"))
    assert not repeats_prompt(text, "What is 92 + 88?", "180")


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
