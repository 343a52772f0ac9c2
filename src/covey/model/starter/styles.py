"""The data of the starter model's cold start: problems with answers in a mixture of styles.

Reinforcement learning amplifies what a model already does sometimes. So the starter is trained to answer in three
styles, chosen at random:

- **careful**: digit by digit inside `<think>`, then the right answer in `<answer>`;
- **hasty**: little or no thinking, then a guess;
- **sloppy**: the right steps, but the answer is not where it can be found.

Only the careful style is rewarded often, and it is also the longest: reward and completion length rise together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from covey.data.tasks.arithmetic import Problem

SYSTEM_PROMPT = "Think between <think> and </think>, then write the answer between <answer> and </answer>."

STYLE_SHARES = {"careful": 0.22, "hasty": 0.48, "sloppy": 0.30}
"""How often each style is drawn for a document. They sum to 1."""

_QUESTIONS = (("What is {}?", 0.9), ("Compute {}.", 0.05), ("{} = ?", 0.05))
_SYSTEM_PROMPT_SHARE = 0.1
_GUESS_IS_RIGHT = 0.15
_HASTY_THOUGHTS = ("easy", "quick guess", "no need to think")


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation of the cold start, and the turn that is learned from it."""

    messages: list[dict[str, Any]]
    completion: str
    style: str
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the tools that are offered."""
    given: str = ""
    """What the turn begins with, before `completion`; it carries no loss."""


def steps(problem: Problem) -> list[str]:
    """The written method, from the last digit to the first, one line per digit.

    `478 + 856` gives `8+6=14`, `7+5+1=13`, `4+8+1=13`; `503 - 78` gives `13-8=5`, `10-7-1=2`, `5-0-1=4`: a carry or a
    borrow is at the end of the next line, and a borrowed ten in front of its digit.

    Raises:
        ValueError: for anything but one sum or one non-negative difference of two numbers.
    """
    if len(problem.operands) != 2 or problem.operators[0] not in "+-" or problem.answer < 0:
        raise ValueError(f"no written method for {problem.expression}")
    left, right = (list(map(int, reversed(str(n)))) for n in problem.operands)
    width = max(len(left), len(right))
    left += [0] * (width - len(left))
    right += [0] * (width - len(right))
    adding = problem.operators[0] == "+"
    lines, carry = [], 0
    for a, b in zip(left, right, strict=True):
        tail = f"{problem.operators[0]}1" if carry else ""
        if adding:
            total = a + b + carry
            lines.append(f"{a}+{b}{tail}={total}")
            carry = total // 10
        else:
            borrowed = a - b - carry < 0
            a += 10 * borrowed
            lines.append(f"{a}-{b}{tail}={a - b - carry}")
            carry = int(borrowed)
    return lines


def careful(problem: Problem) -> str:
    return "<think>\n" + "\n".join(steps(problem)) + f"\n</think>\n<answer>{problem.answer}</answer>"


def hasty(problem: Problem, rng: random.Random) -> str:
    return guessed(problem.answer if rng.random() < _GUESS_IS_RIGHT else _near_miss(problem.answer, rng), rng)


def guessed(guess: int, rng: random.Random) -> str:
    """A guess as the answer, with little or no thinking."""
    answer = f"<answer>{guess}</answer>"
    if rng.random() < 0.5:
        return answer
    return f"<think>\n{rng.choice(_HASTY_THOUGHTS)}\n</think>\n{answer}"


def sloppy(problem: Problem, rng: random.Random) -> str:
    lines = "\n".join(steps(problem))
    return rng.choice(
        (
            f"<think>\n{lines}\n</think>\nThe answer is {problem.answer}.",
            f"<think>\n{lines}\n</think>\n<answer>{problem.answer}",
            f"{lines}\nanswer: {problem.answer}",
        )
    )


def conversation(problem: Problem, rng: random.Random) -> list[dict[str, Any]]:
    """The messages that ask for `problem`; question form and system prompt are drawn from `rng`."""
    question = rng.choices([q for q, _ in _QUESTIONS], [w for _, w in _QUESTIONS])[0].format(problem.expression)
    messages = [{"role": "user", "content": question}]
    if rng.random() < _SYSTEM_PROMPT_SHARE:
        messages.insert(0, {"role": "system", "content": SYSTEM_PROMPT})
    return messages


def document(problem: Problem, rng: random.Random) -> Document:
    """One conversation about `problem`: question form, system prompt and style are drawn from `rng`."""
    messages = conversation(problem, rng)
    style = rng.choices(list(STYLE_SHARES), list(STYLE_SHARES.values()))[0]
    if style == "careful":
        completion = careful(problem)
    else:
        completion = hasty(problem, rng) if style == "hasty" else sloppy(problem, rng)
    return Document(messages, completion, style)


def _near_miss(answer: int, rng: random.Random) -> int:
    """A wrong answer of the kind people make: one digit off, or a lost carry."""
    digits = len(str(answer))
    while True:
        place: int = 10 ** rng.randrange(digits)
        guess = answer + rng.choice((-1, 1)) * place * rng.choice((1, 1, 2, 3))
        if guess >= 0:
            return guess
