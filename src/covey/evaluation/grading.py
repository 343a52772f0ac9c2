"""How completions of held-out problems are graded: the same while training and by `covey eval`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covey.answers import Outcome, Tags, extract_prediction, grade_exact
from covey.answers.maths.numbers import read_number
from covey.rewards.registry import canonical_name
from covey.rewards.runner import RewardRunner

if TYPE_CHECKING:
    from covey.config import Config

Grade = Callable[[Sequence[str], Sequence[Mapping[str, Any]]], Sequence[Outcome]]
"""From completions and the rows of their problems to outcomes."""

SEED_OFFSET = 7919  # any constant: evaluation draws must not be the training's first draws
"""All evaluations of a run have the same seed, so that they differ by the model only."""

_NEAR = 10  # partial accuracy accepts a tenth of the answer


def grader_name(config: Config) -> str:
    """The grader of held-out problems: `exact_match`, `countdown` or `accuracy`, by the rewards of the run."""
    return grader_of_rewards(config.rewards.funcs)


def grader_of_rewards(funcs: Iterable[str]) -> str:
    """The grader that these rewards imply."""
    names = {canonical_name(name) for name in funcs if ":" not in name}
    if "countdown" in names:
        return "countdown"
    return "exact_match" if "exact_match" in names else "accuracy"


def grader_of(name: str, config: Config, runner: RewardRunner) -> Grade:
    """The function of a grader.

    With `exact_match` it reads the last answer tag alone, so that it is independent of the share of well-formed
    completions, which is reported too.
    """
    if name == "exact_match":
        tags = Tags(config.rewards.think_tag, config.rewards.answer_tag)
        return lambda texts, rows: [grade_exact(t, r["answer"], tags) for t, r in zip(texts, rows, strict=True)]

    def grade(texts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        return [graded.outcome or Outcome.CRASHED for graded in runner.grade(name, texts, rows)]

    return grade


def stated_answer(completion: str, tags: Tags) -> str | None:
    """The answer that a completion states, numbers normalised, so that equal answers are equal texts."""
    text = extract_prediction(completion, tags)
    if text is None:
        return None
    number = read_number(text)
    return " ".join(text.split()) if number is None else str(number.value)


def is_near(stated: str | None, gold: str, outcome: Outcome) -> bool:
    """Whether an answer is right, or a number within 10% of the gold number."""
    if outcome is Outcome.RIGHT:
        return True
    found, expected = read_number(stated or ""), read_number(gold)
    if found is None or expected is None:
        return False
    return abs(found.value - expected.value) * _NEAR <= abs(expected.value)
