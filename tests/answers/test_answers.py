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
    extract_gsm8k,
    extract_prediction,
    extractor,
    grade_exact,
    grade_math,
    has_reasoning_format,
    has_think_format,
)
from covey.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 42 </answer>", "42"),
        ("<think>x</think>\n<answer>\n42\n</answer>\n", "42"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1 <answer>2</answer>", "2"),  # opened twice: the inner one counts
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
        (r"\boxed{\left\{1,2\right.}}", r"\left\{1,2\right."),  # an escaped brace is text
        (r"\boxed{1 \\}", r"1 \\"),  # the backslash is escaped, not the brace
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
    "written", ["1334", " 1,334 ", "+1334", "1334.0", "1334.", "$1334", "$ 1,334.00", "+$1334", "01334"]
)
def test_formats_of_one_number(written: str) -> None:
    assert canonical_number(written) == "1334"


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
        ("²", "²"),  # a digit to Python only
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


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("<think>a</think> free text", True),
        ("<think>a</think>", True),
        ("<think>a", False),
        ("so <think>a</think>", False),
        ("<think>a</think><think>b</think>", False),
        ("</think><think>", False),
        ("", False),
    ],
)
def test_think_format(text: str, fits: bool) -> None:
    assert has_think_format(text) is fits


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


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<think>…</think><answer>7</answer>", "7"),
        (r"<answer>It is \boxed{7}.</answer> or \boxed{8}", "7"),
        (r"\boxed{5} hm, \boxed{6}", "6"),
        (r"\boxed{5} and \boxed{6}", "5, 6"),
        (r"\boxed{5} and then \boxed{6}", "6"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{5} \boxed{6", "5"),
        (r"<think>\boxed{5}</think> It is \boxed{6}", "6"),
        (r"<think>it is \boxed{5}", None),  # thinking is not closed
        (r"<think>\boxed{5}</think>", None),  # only thinking
        ("so 48/2 = 24\n#### 24", "24"),
        ("7 * 2 = 14\nA: 14", "14"),
        ("The answer is 42 because it is.", "42"),
        ("The answer is $x = 3$. I hope it is correct.", "x = 3"),
        ("Answer: 41, no. Answer: 42", "42"),
        ("x = 7", "x = 7"),
        ("So she has 42 apples.", "42"),
        (r"Therefore it is $\frac{1}{2}$ or $2$.", r"\frac{1}{2}, 2"),
        ("I cannot tell.", "I cannot tell."),  # the gold answer may be this text
        ("", None),
        ("__import__('os').system('rm') or 0", None),  # a program states no answer
    ],
)
def test_the_answer_that_a_completion_states(completion: str, answer: str | None) -> None:
    assert extract_prediction(completion) == answer


def test_predictions_are_found_between_the_configured_tags() -> None:
    tags = Tags("reasoning", "result")
    text = "<reasoning><answer>1</answer></reasoning><result>2</result>"
    assert extract_prediction(text, tags) == "2"
    assert grade_math(text, "2", tags) is Outcome.RIGHT


SAME = [
    ("1,334", "1334.0"),
    ("1000000", "10^6"),
    ("1.25\\times10^6", "1.25e6"),
    ("1\\frac{4}{5}", "9/5"),
    ("2.\\overline{3}", "7/3"),
    ("\\frac{2}{4}", "0.5"),
    ("-\\frac12", "\\frac{1}{-2}"),
    ("\\frac{1}{3}", "0.333"),
    ("8\\pi", "25.13"),
    ("2516_8", "2516_{(8)}"),
    ("2516_8", "2516"),
    ("50\\%", "0.5"),
    ("50\\%", "50"),
    ("0.75", "75%"),
    ("\\$5.50", "5.5 dollars"),
    ("12\\text{ cm}^2", "12"),
    ("10 \\text{ inches}", "10 in"),
    ("90^\\circ", "90 degrees"),
    ("\\text{(C)}", "C"),
    ("C", "C. 12"),
    ("\\text{Evelyn}", "evelyn"),
    ("x = 5", "5"),
    ("5", "x = 2 + 3 = 5"),
    ("f(n) = n + 1", "f(x) = x + 1"),
    ("y = 2x + 3", "2x - y + 3 = 0"),
    ("1, -2", "x = -2 or x = 1"),
    ("3 \\pm 2\\sqrt2", "3-2\\sqrt{2}, 3+2\\sqrt{2}"),
    ("\\{1, 2\\}", "2, 1"),
    ("(1, 2)", "x = 1, y = 2"),
    ("(0,9)\\cup(9,36)", "(9, 36) \\cup (0, 9)"),
    ("-1 < x \\le 3", "(-1, 3]"),
    ("|x| > 3", "x < -3 \\text{ or } x > 3"),
    ("x < 1", "-x > -1"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "(1, 2)"),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "[[1, 2], [3, 4]]"),
    ("4:40 p.m.", "16:40"),
    ("1 : 14", "2:28"),
    ("\\frac{\\sqrt2}{2}", "1/\\sqrt{2}"),
    ("x^2 - 1", "(x-1)(x+1)"),
    ("\\tan x", "\\frac{\\sin x}{\\cos x}"),
    ("\\sin(90^\\circ - x)", "\\cos x"),
    ("6 - 5i", "-5i + 6"),
    ("2^{1000}", "4^{500}"),
]
DIFFERENT = [
    ("5", "-5"),
    ("100000000000", "99999999999"),
    ("2^{1000}", "2^{1000} - 1"),
    ("100", "99.99"),
    ("\\frac{1}{3}", "0.33"),
    ("\\frac{1}{8}", "0.13"),
    ("1/4", "25"),
    ("50\\%", "5"),
    ("3, 5", "3.5"),
    ("204_5", "204_6"),
    ("5 cm", "5 m"),
    ("2t", "2"),
    ("0.64N", "0.64"),
    ("C", "D"),
    ("15", "(B) 15"),
    ("\\text{even}", "odd"),
    ("x = 5", "y = 5"),
    ("a^2 + b = 0", "0"),
    ("x^2 + y^2 = 1", "x^2 - y^2 = 1"),
    ("5", "5 or 6"),
    ("2, 3", "2"),
    ("(1, 2)", "(2, 1)"),
    ("(1, 2)", "[1, 2]"),
    ("(1, 2]", "(1, 2)"),
    ("12", "(1, 2)"),
    ("\\pm 4", "4"),
    ("x > 5", "x < 5"),
    ("x > 5", "x \\ge 5"),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{pmatrix} 1 & 3 \\\\ 2 & 4 \\end{pmatrix}"),
    ("12:00", "1:00"),
    ("|x|", "x"),
    ("x^2 - 1", "(x-1)^2"),
    ("p - q", "q - p"),
    ("6 - 5i", "6 + 5i"),
    ("0", "getattr(x, 'y') or 0"),
]


@pytest.mark.parametrize(("gold", "prediction"), SAME)
def test_an_equivalent_answer_is_right(gold: str, prediction: str) -> None:
    assert answers_agree(prediction, gold) is Outcome.RIGHT
    assert grade_math(rf"So it is $\boxed{{{prediction}}}$.", gold) is Outcome.RIGHT
    assert grade_math(f"<think>…</think><answer>{prediction}</answer>", gold) is Outcome.RIGHT


@pytest.mark.parametrize(("gold", "prediction"), DIFFERENT)
def test_a_different_answer_is_not_right(gold: str, prediction: str) -> None:
    assert answers_agree(prediction, gold) in (Outcome.WRONG, Outcome.UNPARSABLE_PREDICTION)
    assert answers_agree(gold, prediction) is not Outcome.RIGHT
    assert answers_agree(gold, gold) is Outcome.RIGHT


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
