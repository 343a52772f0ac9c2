"""The documents of the cold starts for tasks with several right answers: a problem, and one of its right answers.

A problem that is drawn again has another answer, so that the model learns a spread over them. Its training stops while
it is still wrong more often than right: reinforcement has something to gain, and a diversity to lose.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Any

from covey.answers.tasks import COLORS
from covey.config import DatasetConfig
from covey.data.prompts import conversation
from covey.data.tasks.builtin import task_problems
from covey.data.tasks.countdown import CountdownProblem
from covey.data.tasks.graph_coloring import ColoringProblem
from covey.model.starter.styles import Document

_SIGNS: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def countdown_answer(problem: CountdownProblem) -> str:
    """One operation a line, then the expression: `<think>\\n3*8=24\\n…\\n</think>\\n<answer>3*8-5+1</answer>`."""
    lines: list[str] = []
    _walk(ast.parse(problem.solution, mode="eval").body, lines)
    expression = problem.solution.replace(" ", "")
    return "<think>\n" + "\n".join(lines) + f"\n</think>\n<answer>{expression}</answer>"


def _walk(node: ast.expr, lines: list[str]) -> int:
    """The value of a part of a solution; its operations join `lines`, inner ones first."""
    if not isinstance(node, ast.BinOp):
        return int(ast.literal_eval(node))
    left, right = _walk(node.left, lines), _walk(node.right, lines)
    sign = _SIGNS[type(node.op)]
    value = {"+": left + right, "-": left - right, "*": left * right}.get(sign)
    value = left // right if value is None else value
    lines.append(f"{left}{sign}{right}={value}")
    return value


def coloring_answer(problem: ColoringProblem) -> str:
    """Each hidden vertex with its neighbours, as the question lists them, their colours so far, and its own; then the
    colours: `<think>\\nB: A=red C=? B=green\\nD: C=? D=red\\n</think>\\n<answer>B=green D=red</answer>`."""
    graph, lines = problem.graph, list[str]()
    known = {name: color or "?" for name, color in zip(graph.vertices, graph.given, strict=True)}
    for pair in problem.solution.split():
        name, _, color = pair.partition("=")
        seen = " ".join(f"{other}={known[other]}" for other in graph.neighbours(name))
        lines.append(f"{name}: {seen} {pair}")
        known[name] = color
    return "<think>\n" + "\n".join(lines) + f"\n</think>\n<answer>{problem.solution}</answer>"


ANSWERS: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {"countdown": countdown_answer, "graph_coloring": coloring_answer}
)
"""The tasks that a start can be made for, besides arithmetic, each with how it answers."""
_TOKENS: Mapping[str, Sequence[str]] = MappingProxyType({"graph_coloring": [f"={color}" for color in (*COLORS, "?")]})
"""Texts of a task that are one token: a vertex is followed by its colour, which attention to the token after an earlier
occurrence finds (an induction head)."""


def task_documents(dataset: DatasetConfig, seed: int) -> Iterator[Document]:
    """Training problems of a built-in task as its run asks them, with answers, without end."""
    answer = ANSWERS[str(dataset.task)]
    for problem in task_problems(dataset, "train", seed):
        yield Document(conversation(problem.text, dataset), answer(problem), style="right")


def own_tokens(dataset: DatasetConfig, seed: int) -> list[str]:
    """The texts of a task that are one token each: what all its prompts share (the system prompt, and the question's
    beginning and end), and `_TOKENS`."""
    texts = [problem.text for problem in islice(task_problems(dataset, "train", seed), 200)]
    begin = _common_start(texts).rpartition(" ")[0]
    end = _common_start([text[::-1] for text in texts])[::-1]
    return [text for text in (dataset.system_prompt, begin, end, *_TOKENS.get(str(dataset.task), ())) if text]


def _common_start(texts: Sequence[str]) -> str:
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in same)
