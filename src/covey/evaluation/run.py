"""Evaluating a model on held-out problems: sample, grade, estimate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covey.answers import Outcome, Tags, grade_exact, has_reasoning_format
from covey.evaluation.estimators import Estimate, accuracy_estimate, mean
from covey.rewards.reward import with_opening
from covey.rollout import SamplingSettings, generate

Grade = Callable[[Sequence[str], Sequence[Mapping[str, Any]]], Sequence[Outcome]]
"""Completions and the rows of their problems to outcomes."""


@dataclass(frozen=True, slots=True)
class GradedCompletion:
    """One completion of one held-out problem."""

    problem: int
    """Row of the problem in its set."""
    prompt: str
    """The last user message, or the prompt string."""
    answer: str
    completion: str
    outcome: Outcome
    well_formed: bool
    length: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Figures over one held-out set, and what they were counted from."""

    accuracy: Estimate
    format: float
    """Share of completions that keep to `<think>…</think><answer>…</answer>`."""
    completion_length: float
    """Mean number of tokens."""
    truncated: float
    """Share that ran into the length limit."""
    completions: list[GradedCompletion]

    def metrics(self) -> dict[str, float]:
        """The figures by metric name."""
        return {
            "accuracy": self.accuracy.value,
            "accuracy_low": self.accuracy.low,
            "accuracy_high": self.accuracy.high,
            "format": self.format,
            "completion_length": self.completion_length,
            "truncated": self.truncated,
        }


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Dataset,
    sampling: SamplingSettings,
    *,
    num_samples: int = 1,
    batch_size: int,
    seed: int,
    grade: Grade | None = None,
    tags: Tags | None = None,
    opened: str = "",
    on_progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Sample `num_samples` completions of every problem and grade them.

    The caller's random state is untouched, and the same seed always draws with the same random numbers, so that two
    evaluations differ by the model only.

    Args:
        problems: rows with `prompt` (conversation or string) and `answer`.
        grade: grades completions against their rows; None compares the last answer tag with the answer, numbers in
            any spelling.
        tags: what a well-formed completion is tagged with; None means `<think>` and `<answer>`.
        opened: what the prompts open for the model, such as `<think>`; it belongs to what is graded, and to the form.
        on_progress: called with (completions done, completions in all).
    """
    rows = [(index, row) for index, row in enumerate(problems) for _ in range(num_samples)]
    generations = generate(
        model,
        tokenizer,
        [row["prompt"] for _, row in rows],
        sampling,
        batch_size=batch_size,
        seed=seed,
        on_progress=None if on_progress is None else lambda done: on_progress(done, len(rows)),
    )
    texts = [generation.text for generation in generations]
    wholes = [with_opening(text, opened) for text in texts]
    outcomes = (grade or _grade_exact)(wholes, [row for _, row in rows])
    graded = [
        GradedCompletion(
            problem=index,
            prompt=last_user_message(row["prompt"]),
            answer=row["answer"],
            completion=generation.text,
            outcome=outcome,
            well_formed=has_reasoning_format(whole, tags or Tags()),
            length=generation.length,
            truncated=generation.truncated,
        )
        for (index, row), generation, whole, outcome in zip(rows, generations, wholes, outcomes, strict=True)
    ]
    return summarise(graded)


def _grade_exact(texts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    return [grade_exact(text, row["answer"]) for text, row in zip(texts, rows, strict=True)]


def summarise(graded: list[GradedCompletion]) -> EvaluationResult:
    """Turn graded completions into figures."""
    by_problem: dict[int, list[bool]] = {}
    for item in graded:
        by_problem.setdefault(item.problem, []).append(item.outcome is Outcome.RIGHT)
    return EvaluationResult(
        accuracy=accuracy_estimate(list(by_problem.values())),
        format=mean([float(item.well_formed) for item in graded]),
        completion_length=mean([float(item.length) for item in graded]),
        truncated=mean([float(item.truncated) for item in graded]),
        completions=graded,
    )


def last_user_message(prompt: Any) -> str:
    """What the user asked last, for showing; a plain prompt is returned as it is."""
    if isinstance(prompt, str):
        return prompt
    return next((str(m["content"]) for m in reversed(prompt) if m["role"] == "user"), "")
