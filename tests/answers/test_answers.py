"""Extracting and grading answers: small cases decided by hand. The public corpora are in test_grading_corpus.py."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from covey.answers import (
    Outcome,
    Tags,
    answers_agree,
    canonical_number,
    extract_answer_tag,
    extract_boxed,
    extract_prediction,
    extractor,
    grade_exact,
    grade_math,
    has_reasoning_format,
)
from covey.errors import ConfigError


def test_a_runaway_completion_is_searched_in_linear_time() -> None:
    """A pattern that tries every opening tag would need ten to the eleven steps here, and the test would never end."""
    assert extract_answer_tag("<answer>" * 300_000) is None
    assert extract_boxed(r"\boxed{" * 300_000) is None
    assert not has_reasoning_format("<think>" * 300_000)
    assert canonical_number("1," * 300_000) == "1," * 300_000


def test_exact_grading_takes_other_tags_and_can_require_the_whole_format() -> None:
    tags = Tags("reasoning", "result")
    whole = "<reasoning>…</reasoning><result>7</result>"
    assert grade_exact(whole, "7", tags, strict=True) is Outcome.RIGHT
    assert grade_exact("so " + whole, "7", tags) is Outcome.RIGHT
    assert grade_exact("so " + whole, "7", tags, strict=True) is Outcome.WRONG_FORM
    assert grade_exact("<answer>8</answer>", "7", strict=True) is Outcome.WRONG_FORM
    assert grade_exact("so it is 7", "7", strict=True) is Outcome.UNPARSABLE_PREDICTION
    assert grade_exact(whole, "7", strict=False) is Outcome.UNPARSABLE_PREDICTION
    assert has_reasoning_format(whole, tags)
    assert not has_reasoning_format(whole)


def test_extractors_by_name() -> None:
    assert extractor("boxed")(r"\boxed{3}") == "3"
    assert extractor(r"regex:Answer: (\d+)")("Answer: 1, no: Answer: 2") == "2"
    assert extractor(r"regex:\d+")("1 and 23") == "23"
    assert extractor(r"regex:(\d+)?x")("x") is None  # the group took no part in the match
    assert extractor("regex:z")("x") is None
    with pytest.raises(ConfigError, match="must be one of none, gsm8k"):
        extractor("box")
    with pytest.raises(ConfigError, match="not a valid regular expression"):
        extractor("regex:(")


def test_predictions_are_found_between_the_configured_tags() -> None:
    tags = Tags("reasoning", "result")
    text = "<reasoning><answer>1</answer></reasoning><result>2</result>"
    assert extract_prediction(text, tags) == "2"
    assert grade_math(text, "2", tags) is Outcome.RIGHT


def test_gold_answers_may_be_worked_solutions() -> None:
    for gold in (r"We add, so \boxed{7}.", "3 + 4 = 7\n#### 7", "<answer>7</answer>", "$7$", " 7. "):
        assert grade_math("<answer>7</answer>", gold) is Outcome.RIGHT, gold
        assert grade_math("<answer>8</answer>", gold) is Outcome.WRONG, gold


def test_an_unreadable_gold_answer_gives_no_free_point() -> None:
    gold = "Answer is forty three."
    assert grade_math(r"\boxed{43}", gold) is Outcome.UNPARSABLE_GOLD
    assert grade_math("<answer>answer is  forty three</answer>", "answer is forty three.") is Outcome.RIGHT
    assert grade_math("", gold) is Outcome.UNPARSABLE_PREDICTION
    assert grade_math("<answer>7</answer>", "") is Outcome.UNPARSABLE_GOLD
    assert grade_math("<answer>because I say so</answer>", "43") is Outcome.UNPARSABLE_PREDICTION


HOSTILE = {
    "power tower": "9**9**9**9",
    "power tower in LaTeX": "2^{2^{2^{49}}}",
    "factorials": "3!!!!!!",
    "binomial": "\\binom{100000000}{5000000}",
    "large exponent": "1e999999999",
    "long sum": "\\sum_{i=1}^{10^9} i",
    "deep parentheses": "(" * 5_000 + "1" + ")" * 5_000,
    "deep roots": "\\sqrt{" * 60 + "2" + "}" * 60,
    "a million digits": "1" * 1_000_000,
    "open brackets": "(1," * 20_000,
    "open mathematics": "\\[" * 40_000,
    "many boxes": "\\boxed{" * 50_000,
    "many answers": "the answer is " * 50_000,
    "long list": ",".join(f"x^{{{i}}}+\\sqrt{{{i}}}" for i in range(60)),
    "control characters": "\x00\ud800",
    "Python": "__import__('os').mkdir('evaluated')",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_never_evaluated_and_never_right(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the bounds, each of these would run for minutes or fill the memory."""
    monkeypatch.chdir(tmp_path)
    for gold in ("0", "x + 1", "(1, 2)"):
        for completion in (text, rf"\boxed{{{text}}}", f"<answer>{text}</answer>"):
            assert grade_math(completion, gold) is not Outcome.RIGHT
    assert grade_math("<answer>7</answer>", text) is not Outcome.RIGHT
    assert not list(tmp_path.iterdir())


def test_grading_works_in_any_thread() -> None:
    """math-verify's timer needs the main thread; in others it scores everything wrong."""
    found: list[Outcome] = []
    vectors = [rf"\begin{{pmatrix}} {a} \\ {b} \end{{pmatrix}}" for a, b in ((1, 2), (1, 1), (2, 3))]
    pairs = [(f"{vectors[0]} + {vectors[1]}", vectors[2]), (r"\sqrt{8}", r"2\sqrt2")]
    work = threading.Thread(target=lambda: found.extend(answers_agree(*pair) for pair in pairs))
    work.start()
    work.join()
    assert found == [Outcome.RIGHT, Outcome.RIGHT]
