"""Random expressions, graded in this process: none may raise, be right where it cannot be, or take long.

    python benchmarks/grading_fuzz.py [--count 20000] [--seed 0]

Writes `benchmarks/grading_fuzz.md`; takes about a minute. There are no workers and no deadlines. The expressions nest
arithmetic, functions, huge and tiny exponents, infinities, factorials, binomials, Gamma, sums, limits, matrices, sets
and lists; one in four is cut, doubled, or has characters of LaTeX added or removed; one in twenty repeats a fragment
until the text has thousands of characters. Each is graded through `get_reward("accuracy")` against a gold answer that
is drawn for it: numbers, expressions, lists, intervals, choices, words.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from covey import __version__
from covey.rewards import get_reward

TABLE = Path(__file__).resolve().parent / "grading_fuzz.md"
GOLDS = (
    "72", "0", "1", "-3", "1,200", "0.5", "3.1416", r"\frac{7}{12}", r"2\sqrt{3}", r"\pi", r"\frac{\pi}{4}", "x^2+1",
    r"\frac{n(n+1)}{2}", "2^{100}", r"\binom{20}{10}", "(1, 2)", "1, 2, 3", r"\{1, 2\}", "[0, 1)", r"(-\infty, 3)",
    r"\infty", r"-\infty", "x = 5", "y = 2x + 1", r"x \ge 5", "B", r"\text{odd}", r"50\%", "3 : 4", "12:30", "204_5",
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "3+4i", r"n \equiv 5 \pmod{17}", "10 cm", r"(-\infty,0)\cup(0,\infty)",
)  # fmt: skip
NUMBERS = (
    "0", "1", "2", "3", "7", "12", "72", "100", "0.5", "3.14", "1000000007", "99999999999", "9" * 30, "1" * 80, "10^9",
    "10^{-9}", "2^{100}", "2^{-200}", "10^{300}", "10^{-400}", "10^{10^{10}}", "1E50", "1E400000", "1E-5000000", "1e5",
    r"\infty", r"-\infty", "oo", "nan", "i", "e", r"\pi", "x", "y", "n", r"\theta", r"\gamma", r"\frac{1}{0}", "0^0",
)  # fmt: skip
UNARY = (
    r"\sqrt{%s}", r"\sqrt[3]{%s}", r"\left|%s\right|", "|%s|", "(%s)!", "%s!", "-%s", "(%s)",
    "{%s}", r"\ln %s", r"\ln(%s)",
    r"\log_{2} %s", r"\log(%s)", r"\sin %s", r"\sin(%s)", r"\cos^2(%s)", r"\tan(%s)", r"\cot(%s)", r"\arcsin(%s)",
    r"\arctan %s", r"\sinh(%s)", r"\exp(%s)", "e^{%s}", r"\Gamma(%s)", r"\lfloor %s \rfloor", r"\lceil %s\rceil",
    r"\lim_{x \to 0} %s", r"\lim_{n\to\infty} %s", r"\sum_{i=1}^{n} %s", r"\sum_{i=1}^{10^9} %s", r"\prod_{k} %s",
    r"\int_0^1 %s dx", r"\overline{%s}", r"\text{%s}", r"%s\%%", r"%s^\circ", r"%s \text{ cm}",
    r"\boxed{%s}", r"\{%s\}",
    r"[%s]", r"\begin{pmatrix}%s\end{pmatrix}", r"\det(%s)", r"\operatorname{eye}(%s)", r"\zeta(%s)", "f(%s)", "%s'",
    r"\frac{d}{dx}(%s)", r"x = %s", r"%s = x", r"\pm %s", r"x \ge %s", r"%s \pmod{17}", r"\approx %s", r"%s_{5}",
)  # fmt: skip
BINARY = (
    "%s+%s", "%s-%s", r"%s \cdot %s", r"%s\times %s", "%s/%s", "%s %s", "(%s)(%s)", r"\frac{%s}{%s}", "{%s}^{%s}",
    "(%s)^{%s}", "%s^%s", r"\binom{%s}{%s}", r"{%s \choose %s}", r"\max(%s, %s)", r"\min(%s,%s)", r"\gcd(%s, %s)",
    r"\operatorname{lcm}(%s,%s)", r"%s \bmod %s", r"\log_{%s} %s", r"\sqrt[%s]{%s}", "%s, %s",
    "%s,%s", r"%s \text{ or } %s",
    "%s and %s", r"\{%s, %s\}", "(%s, %s)", "[%s, %s)", r"(%s, %s) \cup (3, 4)", r"\{%s\} \cup \{%s\}",
    r"\mathbb{R} \setminus \{%s, %s\}", r"\begin{pmatrix} %s \\ %s \end{pmatrix}",
    r"\begin{cases} %s \\ %s \end{cases}",
    "%s = %s", r"%s \equiv %s", r"%s \approx %s", "%s < %s", r"%s \le x \le %s", r"%s \ne %s", "%s : %s", r"%s \pm %s",
    "(A) %s (B) %s", r"\int_{%s}^{%s} x\,dx", r"\sum_{k=%s}^{%s} k", "%s;%s",
)  # fmt: skip
PIECES = (
    "\\", "{", "}", "(", ")", "[", "]", "|", "^", "_", "!", ",", "=", "-", "+", "/", "'", "%", "&",
    "$", " ", "9", "x", "a",
    ".", ":", r"\frac", r"\sqrt", r"\left", r"\right", r"\text{", r"\begin{", r"\\", r"\infty", "\x00", "\u221e", "e",
)  # fmt: skip


def expression(rng: random.Random, depth: int) -> str:
    """A random expression, nested at most so deep."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(NUMBERS)
    if rng.random() < 0.5:
        return rng.choice(UNARY) % expression(rng, depth - 1)
    return rng.choice(BINARY) % (expression(rng, depth - 1), expression(rng, depth - 1))


def damaged(rng: random.Random, text: str) -> str:
    """The text with a few characters of LaTeX put in, taken out, or doubled."""
    for _ in range(rng.randint(1, 4)):
        begin = rng.randrange(len(text) + 1)
        end = min(len(text), begin + rng.randint(0, 6))
        text = text[:begin] + rng.choice(["", rng.choice(PIECES), text[begin:end] * 2]) + text[end:]
    return text


def candidate(rng: random.Random) -> str:
    """What a model may have put in a box."""
    text = expression(rng, rng.randint(0, 4))
    if rng.random() < 0.25:
        text = damaged(rng, text)
    if rng.random() < 0.05:
        piece = rng.choice([text, rng.choice(PIECES), rng.choice(UNARY)[:6], rng.choice(NUMBERS), text + ","])
        text = (piece * (rng.choice([100, 480, 3_900, 20_000]) // max(1, len(piece)) + 1)) + rng.choice(
            ["", "1", "!", ")"]
        )
    return text


def main() -> None:
    """Grade the expressions, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, reward = random.Random(arguments.seed), get_reward("accuracy")
    reward(prompts=[""], completions=[r"\boxed{\sqrt{2}}"], answer=["2^{1/2}"])  # loads what it needs
    times, rewards = [], []
    for _ in range(arguments.count):
        text, gold = candidate(rng), rng.choice(GOLDS)
        form = rng.choice([r"\boxed{%s}", "<answer>%s</answer>", "The answer is $%s$.", "%s"])
        started = time.perf_counter()
        (value,) = reward(prompts=[""], completions=[form.replace("%s", text)], answer=[gold])
        times.append((time.perf_counter() - started, text))
        rewards.append(value)
        if value == 1.0:
            print(f"right: {text[:100]!r} for {gold}")
    times.sort(reverse=True)
    print(*(f"{seconds:.3f} s: {text[:150]!r} ({len(text)} characters)" for seconds, text in times[:10]), sep="\n")
    seconds = [one for one, _ in times]
    TABLE.write_text(
        f"""# Grading random expressions

Made by `python benchmarks/grading_fuzz.py --count {arguments.count} --seed {arguments.seed}`; covey {__version__}.
In one process, without workers or deadlines.

| expressions | raised | None | right | mean | 99.9% under | slowest |
|---|---|---|---|---|---|---|
| {len(times)} | 0 | {rewards.count(None)} | {rewards.count(1.0)} | {1000 * sum(seconds) / len(seconds):.2f} ms | \
{1000 * seconds[len(seconds) // 1000]:.0f} ms | {1000 * seconds[0]:.0f} ms |
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
