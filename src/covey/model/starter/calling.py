"""The data of the agent's cold start: the starter's styles, and a further one when a calculator is offered.

- **calling**: a call of the calculator with the problem copied, then its result in `<answer>`.

It is drawn about once in ten, some of its calls are wrong, and some of its answers are not where they can be found. The
careful style is rare here. So calls are what reinforcement on exact answers finds. Problems one digit longer than the
written method is taught for are called or guessed, never worked out: without the tool they stay out of reach.

A document is one turn: after a call, the turn that reads its result is a document of its own.
"""

from __future__ import annotations

import random
from typing import Any

from covey.data.tasks.arithmetic import Problem
from covey.model.starter.styles import Document, careful, conversation, document, guessed, hasty, sloppy

CALL_STYLE_SHARES = {"calling": 0.11, "careful": 0.01, "hasty": 0.55, "sloppy": 0.33}
"""How often each style is drawn when the calculator is offered. They sum to 1."""

WRITTEN_DIGITS = 4
"""Longest numbers that the written method is shown for."""

CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "The expression."}},
            "required": ["expression"],
        },
    },
}

_KINDS = {"without tools": 0.2, "first turn": 0.4, "call only": 0.2, "after the result": 0.2}
_WRONG_CALL = 0.2
_FAILED_CALL = 0.05
_MISREAD = 0.2  # share of second turns whose answer is not where it can be found
_THINKS = 0.8  # of the others, the share in the format that is rewarded


def agent_document(problem: Problem, rng: random.Random) -> Document:
    """One turn about `problem`; kind, question form, system prompt and style are drawn from `rng`."""
    kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    long = max(problem.operands) >= 10**WRITTEN_DIGITS
    if kind == "without tools" and not long:
        return document(problem, rng)
    messages = conversation(problem, rng)
    if kind == "after the result":
        return _answer(problem, messages, rng)
    if kind == "call only":  # teaches how to call, and not how often
        call = call_text(problem.expression)
        opening, rest = call[: len("<tool_call>")], call[len("<tool_call>") :]
        return Document(messages, rest, "calling", tools=(CALCULATOR,), given=opening)
    style = rng.choices(list(CALL_STYLE_SHARES), list(CALL_STYLE_SHARES.values()))[0]
    if style == "calling":
        completion = _call(problem, rng)
    elif long or style == "hasty":
        style, completion = "hasty", wild(problem, rng) if long else hasty(problem, rng)
    else:
        completion = careful(problem) if style == "careful" else sloppy(problem, rng)
    return Document(messages, completion, style, tools=(CALCULATOR,))


def wild(problem: Problem, rng: random.Random) -> str:
    """A guess of the right length and nothing else; near misses would teach the sum."""
    digits = len(str(problem.answer))
    while (guess := rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)) == problem.answer:
        pass
    return guessed(guess, rng)


def call_text(expression: str, name: str = "calculator") -> str:
    return f'<tool_call>{name}{{"expression": "{expression}"}}</tool_call>'


def _call(problem: Problem, rng: random.Random) -> str:
    """A call, sometimes with a wrong digit or operator, of a tool that there is not, or never closed."""
    right = call_text(problem.expression)
    if rng.random() >= _WRONG_CALL:
        return right
    return rng.choice(
        (
            call_text(_miscopied(problem.expression, rng)),
            call_text(problem.expression.translate(str.maketrans("+-", "-+"))),
            call_text(problem.expression, "calculate"),
            right.removesuffix('"}</tool_call>'),
        )
    )


def _answer(problem: Problem, messages: list[dict[str, Any]], rng: random.Random) -> Document:
    """The turn after a call: its result as the answer, or a guess where the call has failed."""
    failed = rng.random() < _FAILED_CALL
    call = {"name": "calculate" if failed else "calculator", "arguments": {"expression": problem.expression}}
    result = str({"error": "Tool calculate not found."}) if failed else str(problem.answer)
    messages = [
        *messages,
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "name": call["name"], "content": result},
    ]
    if failed:
        completion = wild(problem, rng)
    elif rng.random() < _MISREAD:
        completion = rng.choice((f"The answer is {result}.", f"<answer>{result}", result))
    else:
        thinking = "<think>\ncalculated\n</think>\n" if rng.random() < _THINKS else ""
        completion = f"{thinking}<answer>{result}</answer>"
    return Document(messages, completion, "calling", tools=(CALCULATOR,))


def _miscopied(expression: str, rng: random.Random) -> str:
    """The expression with one digit changed."""
    places = [i for i, c in enumerate(expression) if c.isdigit()]
    place = rng.choice(places)
    other = rng.choice([d for d in "0123456789" if d != expression[place]])
    return expression[:place] + other + expression[place + 1 :]
