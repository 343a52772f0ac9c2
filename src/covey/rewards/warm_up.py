"""Answers of every usual kind, which the home process grades before its workers have to.

A process that has just begun is slow: its parser learns the grammar as it goes, and its algebra system the small
numbers. What the home has learned, all workers that are forked afterwards know. These pairs are Covey's own; nothing of
a run ever enters the home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Grader = Callable[[str, Mapping[str, Any]], Any]
"""The `sample` of a reward."""
Lesson = tuple[Grader, str, dict[str, Any]]

FIRST = (
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"3\sqrt{5}", r"11\sqrt{5}"),
    (r"\frac{x+1}{2}", "x/2+1/2"),
    ("x^2+3x+2", "(x+1)(x+2)"),
    ("x^2+5x+6", "(x+1)(x+5)"),
    ("x^2-1", "x^2+2x"),
    (r"\frac{\pi}{4}+1", r"\frac{\pi+4}{4}"),
    (r"\frac{3}{7}", r"\frac{1}{2}"),
    ("x^2+1023x+4567", "(x+89)(x+10)"),
    (r"\sqrt{4567}", r"289\sqrt{103}"),
    ("[0,1)", r"0 \leq x < 1"),
)
"""Gold answers and predictions, equal and not, for which graders load and set up their mathematics: what every worker
needs, so that the first one waits for it."""

MORE = (
    # numbers, money, units, percent, bases, large and small
    ("1,234", "1234.0"),
    ("-17", "17"),
    ("3.14159", r"\pi"),
    (r"50\%", "0.5"),
    (r"12\frac{1}{2}\%", r"\frac{1}{8}"),
    (r"\$18.90", "18.9 dollars"),
    (r"12\text{ cm}^2", r"12 \mathrm{~m}^2"),
    (r"45^\circ", "45 degrees"),
    ("204_5", "204_{(5)}"),
    (r"1.2 \times 10^{5}", "120000"),
    (r"2^{10}-1", "1023"),
    (r"10^{-3}", "0.001"),
    (r"0.\overline{3}", r"\frac13"),
    ("3:4", r"\frac{6}{8}"),
    ("4:40 p.m.", "16:40"),
    # fractions, roots, powers
    (r"-\frac{5}{6}", r"\frac{-10}{12}"),
    (r"3\frac{1}{2}", "3.5"),
    (r"\frac{\frac{1}{2}}{\frac{3}{4}}", r"\frac{2}{3}"),
    (r"\frac{1}{1+\frac{1}{1+\frac{1}{x}}}", r"\frac{x+1}{2x+1}"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"\frac{1+\sqrt{5}}{2}", r"\frac{2}{\sqrt{5}-1}"),
    (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"),
    (r"5-2\sqrt{6}", r"(\sqrt{3}-\sqrt{2})^2"),
    (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
    (r"8^{\frac{2}{3}}", "4"),
    (r"2^{-\frac{1}{2}}", r"\frac{\sqrt{2}}{2}"),
    (r"\sqrt{7}", r"7\sqrt{2}"),
    (r"\frac{7\sqrt{11}}{13}", r"\frac{\sqrt{539}}{13}"),
    (r"-4\sqrt{10}", r"-\sqrt{160}"),
    (r"\sqrt{\frac{9}{14}}", r"\frac{3}{\sqrt{14}}"),
    # polynomials and rational functions
    ("2x+3", "3+2x"),
    ("x^2-4", "(x-2)(x+2)"),
    ("x^2+17x+72", "(x+8)(x+9)"),
    ("x^2+40x+39", "(x+39)(x+2)"),
    ("2x^2-7x+3", "(2x-1)(x-3)"),
    ("x^3-1", "(x-1)(x^2+x+1)"),
    ("(a+b)^2", "a^2+2ab+b^2"),
    ("x^4-y^4", "(x^2+y^2)(x+y)(x-y)"),
    ("-3x^3+12x^2-x+5", "5-x+12x^2-3x^3"),
    (r"\frac{x^2-1}{x+1}", "x-1"),
    (r"\frac{2}{x-1}-\frac{1}{x+1}", r"\frac{x+3}{x^2-1}"),
    (r"\frac{a}{b}+\frac{c}{d}", r"\frac{ad+bc}{bd}"),
    ("n(n+1)/2", r"\frac{n^2+n}{2}"),
    ("6xy^2z", "6 x y^{2} z"),
    ("4p(p-q)", "4p^2-4pq"),
    ("2(m+n)-m", "m+2n"),
    (r"3 \cdot 7 \times t", "21t"),
    ("x^{2n}", "(x^n)^2"),
    # functions and constants
    (r"\sin^2 x+\cos^2 x", "1"),
    (r"\sin(2x)", r"2\sin x\cos x"),
    (r"\sin 30^\circ", r"\frac{1}{2}"),
    (r"\tan\frac{\pi}{3}", r"\sqrt{3}"),
    (r"\arctan 1", r"\frac{\pi}{4}"),
    (r"\cos\theta", r"\sin\left(\frac{\pi}{2}-\theta\right)"),
    (r"\log_2 8", "3"),
    (r"\ln 6", r"\ln 2+\ln 3"),
    (r"\log 100", "2"),
    ("e^{2x}", "(e^x)^2"),
    (r"e^{\pi}", r"\pi^e"),
    (r"12\pi", r"144\pi"),
    (r"\frac{4}{3}\pi r^3", r"\frac{4\pi r^3}{3}"),
    (r"\frac{25\pi-48}{6}", r"\frac{25\pi}{6}-8"),
    ("|x-2|", "|2-x|"),
    (r"\lfloor 3.7 \rfloor", "3"),
    (r"\lceil x \rceil", r"\lfloor x \rfloor"),
    # counting
    ("5!", "120"),
    (r"\binom{6}{2}", "15"),
    (r"\dbinom{10}{3}", r"\frac{10!}{3!\,7!}"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
    (r"\frac{3!}{5!}", r"\frac{1}{20}"),
    # complex numbers
    ("3+4i", "4i+3"),
    ("(1+i)^2", "2i"),
    (r"\frac{1}{1-i}", r"\frac{1+i}{2}"),
    (r"-\frac{1}{2}+\frac{\sqrt{3}}{2}i", r"\frac{-1+i\sqrt{3}}{2}"),
    # equations, inequalities, intervals
    ("x=5", "5"),
    ("y=2x+1", "2x-y+1=0"),
    ("x^2+y^2=25", "y^2+x^2-25=0"),
    (r"\frac{x^2}{9}+\frac{y^2}{4}=1", "4x^2+9y^2=36"),
    ("f(x)=3x-2", "3x-2"),
    ("x>3", r"(3,\infty)"),
    (r"x \le -2", r"(-\infty,-2]"),
    (r"-1<x\leq 3", "(-1,3]"),
    (r"x \in [2, 5]", "[2,6]"),
    (r"(-\infty,-1)\cup(1,\infty)", r"(1,\infty) \cup (-\infty,-1)"),
    (r"\left[\frac{1}{2},\sqrt{3}\right)", r"[0.5,\sqrt{3})"),
    (r"x \neq 4", r"x \ne 4"),
    (r"\mathbb{R}", r"(-\infty,\infty)"),
    # tuples, lists, sets, matrices
    ("(3,-4)", r"\left(3, -4\right)"),
    ("(1,2,3)", "(3,2,1)"),
    (r"\left(\frac{1}{2},\frac{\sqrt{3}}{2}\right)", r"(0.5,\sqrt{3}/2)"),
    ("x=1,y=2", "(1,2)"),
    ("1,2,3", "3, 2, 1"),
    (r"2 \text{ or } 5", r"5,2"),
    (r"3 \pm \sqrt{2}", r"3+\sqrt{2}, 3-\sqrt{2}"),
    (r"\{1,2\}", r"\left\{2, 1\right\}"),
    (r"\{4,9\}", r"\{4,9,16\}"),
    (r"\{-\sqrt{7},\sqrt{7}\}", r"\pm\sqrt{7}"),
    (r"\emptyset", r"\varnothing"),
    (r"\{x \mid x > 2\}", r"(2,\infty)"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"),
    (r"\begin{pmatrix} -\frac{1}{2} \\ \sqrt{3} \end{pmatrix}", r"(-0.5,\sqrt{3})"),
    # words and choices
    ("C", r"\text{(C)}"),
    (r"\text{Tuesday}", "tuesday"),
    ("even", "odd"),
    (r"\text{no solution}", "no solutions"),
    # mathematics that no numbers settle, and text that is none
    (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"),
    (r"\int_0^1 x\,dx", r"\frac{1}{2}"),
    (r"\frac{1}{", r"\frac{1}{2}"),
)
"""Further ones, one construction after the other: some 1.5 s of work in all. The home grades them between two batches
once a worker was lost, for those that will replace others; a run in which none is lost does not pay for them."""


def lessons(graders: Sequence[Grader], pairs: Iterable[tuple[str, str]]) -> Iterator[Lesson]:
    """What `judging.grade` takes, for each grader and each pair of a gold answer and a prediction."""
    for grader in graders:
        for gold, answer in pairs:
            yield grader, f"<answer>{answer}</answer>", {"prompt": "", "answer": gold}
