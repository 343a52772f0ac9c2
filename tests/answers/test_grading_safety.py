r"""No completion is right without the answer's value, makes the grader raise, or makes it run for long.

Every case here did one of these before sizes were bounded and the parser stopped evaluating. The full lists are
benchmarks: grading_hacks.py (all datasets) and grading_fuzz.py (20,000 expressions).
"""

from __future__ import annotations

import importlib.util
import random
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

from covey.answers import Outcome, answers_agree, grade_math
from covey.answers.maths.arithmetic import NoValueError
from covey.answers.maths.evaluation import evaluate
from covey.answers.maths.expression import parse
from covey.rewards import get_reward

GOLDS = (
    "72", "0", "1", "-3", "9975", "1,200", "0.5", r"\frac{7}{12}", r"2\sqrt{3}", r"\pi", "x^2+1", "(1, 2)", "1, 2, 3",
    r"\{1, 2\}", "[0, 1)", r"(-\infty, 3)", "x = 5", r"x \ge 5", "B", r"\text{(E)}", r"\text{odd}", r"50\%", "3 : 4",
    "12:30", "204_5", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "3+4i", r"\frac{n(n+1)}{2}",
    r"(-\infty,0)\cup(0,\infty)",
)  # fmt: skip


def module(root: Path, name: str) -> ModuleType:
    """A benchmark, as a module."""
    spec = importlib.util.spec_from_file_location(name, root / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def hacks(root: Path) -> ModuleType:
    return module(root, "grading_hacks")


@pytest.mark.slow
def test_no_hack_is_right(hacks: ModuleType) -> None:
    assert len(hacks.fixed()) >= 500
    count, hits = hacks.hits(hacks.fixed(), list(GOLDS))
    assert count > len(GOLDS) * 500
    assert hits == []


def test_no_hack_of_a_sample_is_right(hacks: ModuleType) -> None:
    every = hacks.fixed()
    for i, gold in enumerate(GOLDS):
        assert hacks.hits(every[i :: len(GOLDS)], [gold])[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gsm8k_test", "math500_test", "aime24", "amc23", "deepscaler_10k"])
def test_no_hack_is_right_on_gold_answers_of_data_sets(hacks: ModuleType, shared_data: Path, name: str) -> None:
    golds = hacks.gold_answers(shared_data, name, 25, seed=1)
    assert hacks.hits(random.Random(2).sample(hacks.fixed(), 100), golds)[1] == []


def test_random_expressions_are_graded(root: Path) -> None:
    """Whatever is in a box, the reward is a number, and right only where the text has the value or the words."""
    fuzz = module(root, "grading_fuzz")
    rng, reward = random.Random(5), get_reward("accuracy")
    for _ in range(500):
        text, gold = fuzz.candidate(rng), rng.choice(fuzz.GOLDS)
        (value,) = reward(prompts=[""], completions=[rf"\boxed{{{text}}}"], answer=[gold])
        assert value in (0.0, 1.0), text
        if r"\infty" in text and "infty" not in gold:
            assert value == 0.0, (text, gold)


@pytest.mark.parametrize(
    "text",
    [
        r"\max(1,\infty)", r"|\infty-\sqrt{\infty}|", r"\frac{|\ln 0|}{|\ln 0|}", r"|\infty|", r"\infty^0", "0^0",
        r"\frac{0}{0}", r"\ln 0", r"\log_1 2", r"\tan(\frac{\pi}{2})", r"1/\tan(\frac{\pi}{2})", r"\frac{1}{\infty}",
        r"\sup", r"\lim_{x \to 0} x", r"\Gamma(0)", "(-1)!", r"5 \bmod 0", r"\gcd(0, 0)", r"\max(1, i)", r"\sqrt{-1}",
        r"\frac{1}{\sqrt{2}^2-2}", r"\frac{1}{\sin(\pi)}", r"\lfloor \frac{1}{0} \rfloor", r"\sqrt[0]{2}", "72_5",
        r"\binom{5}{7}", r"\gamma^{10^{10}}",
    ],
)  # fmt: skip
def test_what_is_infinite_or_undefined_has_no_value(text: str) -> None:
    node = parse(text)
    assert node is not None
    with pytest.raises((NoValueError, KeyError)):
        evaluate(node)


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}", "10^{10^{10}}", "3!!!!", "(10^9)!",
        r"\binom{10^9}{10^8}", r"\binom{10^9}{e}", "e^{e^{e^{10}}}",
        r"\sinh(10^9)", r"\sin(10^{400})\cdot\pi", r"\sqrt{2}^{10^{10}}", r"2^{-10^{10}}", r"7^{10^6}",
        r"\Gamma(99999999999)", r"(1+10^{-300})^{10^{320}}", r"\sin(10^{1000}i)",
    ],
)  # fmt: skip
def test_large_values_are_refused_before_they_are_computed(text: str) -> None:
    node = parse(text)
    assert node is not None
    with pytest.raises(NoValueError):
        evaluate(node, imaginary=True)


@pytest.mark.parametrize(
    "text", ["1E400000", "1e99999", "1E-5000000", "1 2", "2^3^4", "0x48", "1|2|3", r"\zzz", "(1", "1)"]
)
def test_other_texts_are_not_parsed_as_expressions(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/2x", Fraction(1, 4)),  # at x = 2; juxtaposition binds more tightly
        (r"3\frac{1}{2}", Fraction(7, 2)),
        (r"\frac{1}{2}3", Fraction(3, 2)),
        ("-x^2", Fraction(-4)),
        ("2|x-5|", Fraction(6)),
        (r"\sqrt[3]{-8}", Fraction(-2)),
        (r"\binom{10}{3}", Fraction(120)),
        ("{5 \\choose 2}", Fraction(10)),
        (r"\lfloor -\frac{1}{2} \rfloor + \lceil \sqrt{4} \rceil", Fraction(1)),
        (r"\lfloor \log_2 8 \rfloor", Fraction(3)),
        (r"-7 \bmod 5", Fraction(3)),
        (r"\gcd(12, 18)\cdot \lcm(4, 6)", Fraction(72)),
        ("2E3", Fraction(2000)),
        (r"50\%", Fraction(1, 2)),
        ("3!", Fraction(6)),
    ],
)
def test_exact_values(text: str, value: Fraction) -> None:
    node = parse(text)
    assert node is not None
    assert evaluate(node, {"x": Fraction(2)}) == value


@pytest.mark.parametrize("depth", [60, 1_300, 1_990])
@pytest.mark.parametrize("brackets", ["()", "[]", "{}"])
def test_deeply_nested_brackets_are_refused(brackets: str, depth: int) -> None:
    text = brackets[0] * depth + "1" + brackets[1] * depth
    assert answers_agree(text, "72") is not Outcome.RIGHT
    assert answers_agree("72", text) is not Outcome.RIGHT


@pytest.mark.parametrize("mark", ["!", "%", r"\%!", "^2!", "/1", "*1", r"\cdot 1", "^{1}", "-1", "'"])
def test_deep_expressions_without_brackets_are_refused(mark: str) -> None:
    text = ("1" + mark * 490)[:490]
    assert get_reward("accuracy")(prompts=[""], completions=[rf"\boxed{{{text}}}"], answer=["72"]) == [0.0]
    assert grade_math(rf"\boxed{{{text}}}", "72") is not Outcome.RIGHT
    assert grade_math(r"\boxed{72}", text) is not Outcome.RIGHT
    assert parse(text) is None or mark == "-1"


SMALL_DIFFERENCES = [
    ("1", "1-2^{-200}"),
    ("1", r"\cos(2^{-150})"),
    ("2^{100}", "2^{100}+x"),
    ("n+2^{50}", "n+2^{50}+1"),
    ("f(x) = x^2", "f(x) = x^2+2^{-200}"),
    ("x^2+y^2=1", "x^2+y^2=1+2^{-200}"),
    ("27", "27.00001"),
    ("27", "26.999999999"),
    ("1000000", "1000000.5"),
    ("12.25", "12.25000001"),
    (r"\sqrt{2}", r"\sqrt{2}+10^{-60}"),
    ("0", "10^{-300}"),
    (r"m \ne 1", r"m \ne 1+2^{-200}"),
    ("0", r"\ln(1+10^{-80})"),
    ("1", r"\tanh(200)"),
    ("x^2+1", r"x^2+\sqrt{1+10^{-99}x}"),
]


@pytest.mark.parametrize(("gold", "prediction"), SMALL_DIFFERENCES)
def test_a_small_difference_is_a_difference(gold: str, prediction: str) -> None:
    assert answers_agree(prediction, gold) is Outcome.WRONG
    assert answers_agree(gold, prediction) is not Outcome.RIGHT


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("10200", "(10, 200)"),
        ("1200", r"\{1,200\}"),
        ("1200", "1, 200"),
        ("10,200", "(10, 200)"),
        (r"\frac{5}{2}", r"2, \frac{1}{2}"),
        (r"m \ne 1", r"\text{not } m \ne 1"),
        ("n = 1, 2", r"\neg n = 1, 2"),
        ("10,200", "10, 200"),
        ("3 1/2", "31/2"),
        ("12", "1 2"),
        ("12", r"1\text{ }2"),
        ("12", r"1\text{ 2}"),
        ("3.5", "3-1/2"),
        ("2", "(2, 2)"),
        ("2a", "2A"),
        ("x", "X"),
        ("11a+c", "7 = 11a+c"),
        ("5", "5 = 5"),
        ("5", "1 = 2 = 5"),
        ("2", "x = 1 = 2"),
        ("72", "73 = 72"),
        ("0", "a^2 + b = 0"),
        ("A", "(A), (B), (C), (D), (E)"),
        ("A", "(A) or (B)"),
        ("A", "A. No, B"),
        ("A", "A/B"),
        ("B", "A = B"),
        ("A", r"\{A, B, C\}"),
        (r"\text{(E)}", r"\text{(E)}+0"),
        ("e", "(E)"),
        ("72", "72 squared"),
        ("72", "72 minus one"),
        ("72", "72 twice"),
        ("72", r"72 \approx 73"),
        ("72", "72,0"),
        ("72", "72:01"),
        ("72", r"72 \text{ or 73}"),
        ("72", r"\ne 72"),
        ("72", r"\not= 72"),
        ("72", r"72 \in \mathbb{R}"),
        ("72", r"72 \bmod 5"),
        ("72", "72_5"),
        ("1", "x/x"),
        ("f(x) = x", r"\{x | x = x\}"),
        ("(0, 0), (1, 1)", r"\emptyset \cup \emptyset"),
        ("0", "0x48"),
        ("6", "1|2|3"),
        ("9", r"\{0=1=2=3=9\}"),
        ("10,003", "x = 123457 = 10,003"),
        ("3.0", "3.04"),
        ("27.00", "27.004"),
        ("18.25", "18.251"),
        ("5.292", "5.2921"),
        ("5", r"x = 5 \approx 7"),
        ("20", r"m = 20 \approx 987654"),
        ("72", r"x = 72 \approx 73"),
        ("f", "f'"),
        ("x", "x''"),
        (r"30^\circ", "30'"),
        ("2a", "2a'"),
        ("5", "5..."),
        ("5", "5\N{HORIZONTAL ELLIPSIS}"),
        ("1,2", "1,2,..."),
        ("12", "12 dozen"),
        ("12", r"12\text{ dozen}"),
        ("5", "5 gross"),
        ("5", "5 score"),
        ("5", "5 lakh"),
        ("5", "5 crores"),
        ("5", "5 quadrillion"),
        ("12", "12 per cent less"),
        (r"12\text{ m}^2", "12 m^3"),
        (r"12\text{ cm}^2", r"12\text{ cm}^3"),
        ("[0,1]", "0,1"),
        ("[0,1)", "0,1"),
        ("(1, 2)", "x=1, x=2"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"),
        ("B", "(B) is wrong"),
        ("B", "B. incorrect"),
        ("C", "C. maybe d"),
    ],
)
def test_another_value_is_wrong(gold: str, prediction: str) -> None:
    assert answers_agree(prediction, gold) is not Outcome.RIGHT
    assert answers_agree(prediction, gold) is not Outcome.UNPARSABLE_GOLD
    assert grade_math(rf"So it is $\boxed{{{prediction}}}$.", gold) is not Outcome.RIGHT


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("5", "a+b=5"),
        ("5", r"n \equiv 5 \pmod{17}"),
        (r"n \equiv 5 \pmod{17}", "5"),
        ("0.47", r"\sin G \approx 0.47"),
        (r"\frac{-1\pm\sqrt5}{2}", r"\frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}"),
        ("10,000, 20,000", "20000, 10000"),
        (r"1,000\sqrt{2}", r"1000\sqrt2"),
        ("[0,2]", r"[0,1]\cup[1,2]"),
        (r"\{1,2,3\}", r"\{1,2\}\cup\{3\}"),
        (r"(-\infty,0)\cup(0,\infty)", r"\mathbb{R}\setminus\{0\}"),
        (r"x \ne 0", r"(-\infty,0)\cup(0,\infty)"),
        ("1<2x<4", "0.5<x<2"),
        (r"\infty", "+oo"),
        (r"(-\infty, 3)", "x < 3"),
        ("-2", r"\sqrt[3]{-8}"),
        (r"\cos x (1+\sin x)", r"\cos x+\sin x\cos x"),
        (r"\binom{n}{k}", r"\frac{n!}{k!(n-k)!}"),
        ("(-1)^n", r"\cos(n\pi)"),
        ("3^{20000}", "9^{10000}"),
        (r"\gamma+\alpha", r"\alpha+\gamma"),
        (r"\sum_{k=1}^n k", r"\sum_{k=1}^{n}k"),
        ("(C)", "C. $-5$"),
        ("52_8", "52"),
        ("3.143", r"\frac{22}{7}"),
        (r"\frac13", "0.333..."),
        (r"\frac13", "0.3333\N{HORIZONTAL ELLIPSIS}"),
        ("5", "'5'."),
        ("12", "12 more apples"),
        ("12 cm^2", r"12\text{ cm}^2"),
        ("(0,1)", "0,1"),
        ("5", r"\text{5 apples}"),
        ("5", r"\text{x = 5}"),
        ("C", r"\text{Option C}"),
        ("C", "(C): 12"),
        ("C", "(C), 12"),
        ("5", r"n\equiv 5\ (\text{mod }7)"),
        ("5", "=5"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\[4pt]2\end{pmatrix}"),
        ("3.1416", "3.14159"),
        ("0.3333", r"\frac13"),
        ("5", r"x = 5 \approx 5.0"),
        ("12", r"x = 12 \text{ ft} \approx 3.66 \text{ m}"),
        (r"\sqrt2", r"x = \sqrt2 \approx 1.41"),
    ],
)
def test_the_same_value_is_right(gold: str, prediction: str) -> None:
    assert answers_agree(prediction, gold) is Outcome.RIGHT


def test_a_verdict_does_not_depend_on_what_was_graded_before() -> None:
    """Work is counted, also where a cache saves it."""
    pairs = [
        (r",".join(rf"\sin({i})" for i in range(60)), r",".join(rf"\cos({i})" for i in range(60))),
        ("2", r"\sqrt4"),
    ]
    assert [answers_agree(*pair) for pair in pairs * 2] == [Outcome.WRONG, Outcome.RIGHT] * 2
