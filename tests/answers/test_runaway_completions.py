"""Text that a model repeats endlessly is read in linear time; a backtracking pattern would take hours."""

from __future__ import annotations

import itertools

import pytest

from covey.answers import extract_prediction
from covey.answers.maths import notation
from covey.answers.maths.notation import tidy

RUNAWAY = {
    "blanks after the word answer": ("answer", "\t", "5"),
    "blanks after a statement": ("the answer is 5", " ", "x"),
    "boxes over one long run of braces": ("\\boxed{" * 40, "{}", ""),
    "underscores": ("", "__", "5"),
    "calls": ("", "x.", "y("),
    "anonymous functions": ("", "=lambda ", ""),
    "corrections": ("The answer is 5", ". No, ", ""),
    "choices": ("", "(A) ", ""),
    "alternatives": ("It is ", "5 or ", "6"),
    "tags": ("", "<answer>1</answer> or ", ""),
    "emphasis": ("**", "* ", "**"),
    "fractions of one character": ("", "\N{VULGAR FRACTION ONE HALF}", ""),
    "questions that are answered no": ("", "? No 5", ""),
    "denials": ("", "5 is not ", ""),
    "suppositions": ("", "if I said 5, but not ", ""),
    "fences": ("", "```python\n", ""),
}


@pytest.mark.parametrize(("before", "repeated", "after"), RUNAWAY.values(), ids=RUNAWAY)
def test_a_runaway_completion_is_read_in_linear_time(before: str, repeated: str, after: str) -> None:
    """A megabyte, for which a quadratic pattern would need minutes to years."""
    extract_prediction(before + repeated * (1_000_000 // len(repeated)) + after)
    tidy(before + repeated * (3_900 // len(repeated)) + after)


@pytest.mark.parametrize("text", ["\\frac{", "\\sqrt(", "^(", "\\frac", "\\text{"])
def test_commands_that_never_close_are_tidied_in_linear_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: scanning every command to the end of the text would take thousands of searches for a closing brace."""
    calls = itertools.count()
    for name in ("closing_brace", "_closing_parenthesis"):
        search = getattr(notation, name)
        monkeypatch.setattr(notation, name, lambda *given, search=search: (next(calls), search(*given))[1])
    tidy(text * (3_900 // len(text)))
    assert next(calls) <= 60
