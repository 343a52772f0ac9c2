"""Answers in the notations that completions have: signs, units, emphasis, Unicode, sentences in tags."""

from __future__ import annotations

import pytest

from covey.answers import extract_prediction
from stated import NOT_RIGHT, RIGHT, stated_right

TEXT_LIKE_CODE = {
    RIGHT: [
        ("Since 0.5(10) = 5 and 2.5(2) = 5, it is 5.", "5"),
        ("2.5(4)", "10"),
        ("1.5(2)(3) = 9", "9"),
        (r"The roots are the eigenvalues \lambda = 3.", "3"),
        (r"We find $\lambda = 3$.", "3"),
        ("The eigenvalue lambda is 3.", "3"),
        ("They import 40 cars and export 2, so the total is 38.", "38"),
        ("The import duty is 5 dollars.", "5"),
        ("import duty: 5 dollars", "5"),
        ("We define def 3 as ... so it is 7.", "7"),
        ("```python\nimport math\nprint(math.sqrt(16))\n```\nSo the value is 4.", "4"),
        ("```python\nprint(3+4)\n```\n\nThe answer is 7.", "7"),
    ],
    NOT_RIGHT: [
        ("__import__('os').system('rm') or 0", "0"),
        ("(lambda: open('marker', 'w'))() or 0", "0"),
        ("def f():\n    return 0\n", "0"),
        ("f = lambda x: 0", "0"),
        ("class A:\n    x = 0", "0"),
        ("import os\nos.system('x') or 0", "0"),
    ],
}
BOTH_SIGNS = {
    RIGHT: [
        (r"\boxed{\frac{-1\pm\sqrt5}{2}}", r"\frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}"),
        (r"\boxed{\frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}}", r"\frac{-1\pm\sqrt5}{2}"),
        (r"\boxed{x = \frac{-1\pm\sqrt5}{2}}", r"\frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}"),
        (r"\boxed{2(1\pm\sqrt3)}", r"2+2\sqrt3, 2-2\sqrt3"),
        (r"\boxed{\sqrt{2\pm\sqrt3}}", r"\sqrt{2+\sqrt3}, \sqrt{2-\sqrt3}"),
        (r"\boxed{1\pm\sqrt2, 3}", r"3, 1+\sqrt2, 1-\sqrt2"),
        (r"\boxed{\{1\pm\sqrt2\}}", r"\{1+\sqrt2, 1-\sqrt2\}"),
        (r"\boxed{\pm\frac{1}{2}}", r"\frac12, -\frac12"),
        ("x = (-1 \xb1 \u221a5)/2", r"\frac{-1\pm\sqrt5}{2}"),
    ],
    NOT_RIGHT: [
        (r"\boxed{\frac{-1\pm\sqrt5}{2}}", r"\frac{-1+\sqrt5}{2}"),
    ],
}
SENTENCES_IN_TAGS = {
    RIGHT: [
        ("<answer>The answer is 5</answer>", "5"),
        ("<answer>Answer: 5</answer>", "5"),
        (r"<answer>Answer \[ 9 \]</answer>", "9"),
        ("<answer>So x = 5.</answer>", "5"),
        (r"<answer>**Final answer:** \boxed{5}</answer>", "5"),
        ("<answer>**Final answer:** 5</answer>", "5"),
        ("<answer>**Answer: 5**</answer>", "5"),
        (r"<answer>The final answer is $\frac{1}{2}$.</answer>", "1/2"),
        ("<answer>It is 5 apples.</answer>", "5"),
        ("<answer>There are 12 ways to do it.</answer>", "12"),
        ("<answer>The correct option is (C)</answer>", "C"),
        ("<answer>Option C</answer>", "C"),
        ("<answer>(C)</answer>", "C"),
        ("<answer>C. 12</answer>", "C"),
        ("<answer>The winner is Evelyn</answer>", "Evelyn"),
        ("<answer>The answer is Evelyn.</answer>", r"\text{Evelyn}"),
        ("<answer>Therefore, the total is 12 dollars.</answer>", "12"),
        ("<answer>$5 + 3 = 8$</answer>", "8"),
        ("<answer>x = 5 or x = 6</answer>", "5, 6"),
        ("<answer>\n5\n</answer>", "5"),
        ("<answer>Result: 5</answer>", "5"),
        ("<answer>My answer: 5</answer>", "5"),
        ("<answer>= 5</answer>", "5"),
        ("<answer>Yes, 5.</answer>", "5"),
    ],
    NOT_RIGHT: [
        ("<answer>The answer is 6</answer>", "5"),
        ("<answer>x = 5 or x = 6</answer>", "5"),
        ("<answer>The answer is 5 or 6</answer>", "5"),
        ("<answer>The answer is not 5</answer>", "5"),
        ("<answer>not 5</answer>", "5"),
        ("<answer>I think it is 5 or 6, probably 6</answer>", "5"),
    ],
}
EMPHASIS = {
    RIGHT: [
        ("The total is **131**.", "131"),
        ("The total is **131** apples.", "131"),
        ("The total is **$131**.", "131"),
        ("**131**", "131"),
        ("Total: **131**", "131"),
        ("The total is ***131***.", "131"),
        ("The total is *131*.", "131"),
        ("The total is __131__.", "131"),
        ("**The answer is 131.**", "131"),
        ("**Answer:** 131", "131"),
        ("**Answer**: 131", "131"),
        ("Answer: **131 dollars**", "131"),
        ("The correct answer is **(C)**.", "C"),
        ("The correct answer is **C**.", "C"),
        ("The answer is **C. 12**", "C"),
        ("The value is $2**3$", "8"),
        ("The value is 2**3", "8"),
    ],
    NOT_RIGHT: [
        ("The total is **132**.", "131"),
    ],
}
UNITS = {
    RIGHT: [
        ("12 m", "12"),
        ("12 m^2", "12"),
        ("12 m\xb2", "12"),
        ("12 m^{2}", "12"),
        ("5 m", "5"),
        ("12 eggs/day", "12"),
        ("3 L", "3"),
        ("5 g", "5"),
        ("10 s", "10"),
        ("60 km/h", "60"),
        ("9.8 m/s^2", "9.8"),
        ("9.8 m/s\xb2", "9.8"),
        ("5 g/cm^3", "5"),
        ("5 h", "5"),
        ("100 N", "100"),
        ("60 W", "60"),
        ("12 V", "12"),
        ("5 J", "5"),
        ("3 miles per hour", "3"),
        ("3 apples per day", "3"),
        ("12 m", r"12\text{ m}"),
        ("82", r"82 \mathrm{~m}"),
        ("82 m", r"82 \mathrm{~m}"),
        ("12m", "12m"),
        ("12 m", "12m"),
        ("The height is 12 m.", "12"),
        ("The area is $12 m^2$.", "12"),
        ("The answer is 12 m.", "12"),
        (r"\boxed{12 m}", "12"),
        (r"\boxed{12\,m}", "12"),
        (r"\boxed{12~\mathrm{m}}", "12"),
        (r"\boxed{12\ \text{m}}", "12"),
        (r"\boxed{\frac{1}{2} m}", "1/2"),
        (r"\boxed{5\sqrt{3} m}", r"5\sqrt3"),
        ("36\u03c0 m\xb2", r"36\pi"),
        ("36\u03c0 cm\xb2", r"36\pi"),
        ("12 kg\xb7m/s", "12"),
        ("12 kg m", "12"),
        ("$5/hour", "5"),
        ("$5 per hour", "5"),
        ("12 m, 5 m", "12, 5"),
        ("2m", "2 m"),
    ],
    NOT_RIGHT: [
        ("12 m", "13"),
        ("12 m", "12 s"),
        ("5 m", "5 cm"),
        ("12", r"82 \mathrm{~m}"),
        ("12", "12m"),
        ("2", "2t"),
        ("2 t", "2"),
        ("2 x", "2"),
        ("2 n", "2"),
        ("0.64", "0.64N"),
        ("12 m by 5 m", "12"),
        ("5 feet 3 inches", "5"),
        ("2 + 3 m", "2"),
        ("3 s", "3 m"),
    ],
}
UNICODE = {
    RIGHT: [
        ("The answer is \uff11\uff12.", "12"),
        ("\u0661\u0662", "12"),
        ("The answer is \u0663", "3"),
        ("x\xb2", "x^2"),
        ("x\xb9\xb2", "x^{12}"),
        ("\xbd", "0.5"),
        ("The answer is \xbd.", "1/2"),
        ("1\xbd", "1.5"),
        ("\u22125", "-5"),
        ("The answer is \u22125.", "-5"),
        ("\u221a12", r"2\sqrt3"),
        ("2\u221a3", r"2\sqrt{3}"),
        ("\u03c0/4", r"\frac{\pi}{4}"),
        ("90\xb0", "90"),
        ("90\xba", "90"),
        ("x \u2264 5", r"x \le 5"),
        ("\u03b1+\u03b2", r"\alpha+\beta"),
        ("\u2154", "2/3"),
        ("10\u207b\xb3", "0.001"),
        ("\U0001d7cf\U0001d7d0", "12"),
        ("\U0001d465+1", "x+1"),
        ("\uff15\uff10\uff05", r"50\%"),
        ("\uff08\uff12\uff0c\uff13\uff09", "(2,3)"),
        ("x\u2081 = 5", "5"),
        ("5\u200b", "5"),
        ("The answer is\xa05.", "5"),
        ("3\u20134i", "3-4i"),
        ("\u06f1\u06f2", "12"),
        ("\u0967\u0968", "12"),
    ],
    NOT_RIGHT: [
        ("The answer is \u22125.", "5"),
    ],
}

GROUPS = {
    "text like code": TEXT_LIKE_CODE,
    "both signs": BOTH_SIGNS,
    "sentences in tags": SENTENCES_IN_TAGS,
    "emphasis": EMPHASIS,
    "units": UNITS,
    "unicode": UNICODE,
}

CASES = [
    pytest.param(text, gold, right, id=f"{name}: {text[-60:]!a}")
    for name, group in GROUPS.items()
    for right, pairs in group.items()
    for text, gold in pairs
]


@pytest.mark.parametrize(("completion", "gold", "right"), CASES)
def test_the_answer_that_a_completion_states(completion: str, gold: str, right: bool) -> None:
    assert stated_right(completion, gold) is right, extract_prediction(completion)
