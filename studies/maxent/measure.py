"""The figures of a trained model: accuracy, pass@8, and its number of distinct right answers per problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expressions import canonical
from task import SEED, held_out

from covey.answers import Outcome, extract_answer_tag
from covey.evaluation.completions.graded import HeldOutGrade
from covey.evaluation.estimators import mean
from covey.evaluation.passk import pass_at_k

SAMPLES = 16
"""Completions of each problem."""
K = 8
MAX_LENGTH = 48
"""Longest completion in tokens, here and in training."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A model's figures on the held-out problems, at temperature 1."""

    accuracy: float
    """Share of completions that are right."""
    pass_at_8: float
    """Share of problems that one of eight completions solves."""
    distinct: float
    """Distinct right answers among `SAMPLES` completions of a problem; mean over problems."""
    truncated: float
    """Share of truncated completions."""


def distinct_right(completions: Sequence[str], outcomes: Sequence[Outcome]) -> int:
    """Distinct answers among the right completions of one problem; see `expressions.canonical`."""
    answers = set()
    for completion, outcome in zip(completions, outcomes, strict=True):
        expression = extract_answer_tag(completion)
        if outcome is Outcome.RIGHT and expression is not None:
            answers.add(canonical(expression))
    return len(answers)


def summarise(graded: Sequence[Any]) -> Figures:
    """Figures over graded completions (`evaluation.grading.GradedCompletion`), the same number for every problem."""
    by_problem: dict[int, list[Any]] = {}
    for item in graded:
        by_problem.setdefault(item.problem, []).append(item)
    right = {problem: sum(one.outcome is Outcome.RIGHT for one in items) for problem, items in by_problem.items()}
    return Figures(
        accuracy=mean([right[problem] / len(items) for problem, items in by_problem.items()]),
        pass_at_8=mean([pass_at_k(len(items), right[problem], K) for problem, items in by_problem.items()]),
        distinct=mean(
            [
                float(distinct_right([one.completion for one in items], [one.outcome for one in items]))
                for items in by_problem.values()
            ]
        ),
        truncated=mean([float(item.truncated) for item in graded]),
    )


def measure(model_path: Path) -> Figures:
    """Sample completions of the held-out problems with a saved model, and grade them."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from covey.evaluation.run import evaluate
    from covey.rollout import LocalEngine, SamplingSettings

    model = AutoModelForCausalLM.from_pretrained(model_path)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    rows = [{"prompt": [{"role": "user", "content": one.text}], "answer": one.answer} for one in held_out()]
    result = evaluate(
        LocalEngine(model, tokenizer),
        tokenizer,
        Dataset.from_list(rows),
        SamplingSettings(max_completion_length=MAX_LENGTH),
        num_samples=SAMPLES,
        batch_size=512,
        seed=SEED,
        grade=_grade,
    )
    return summarise(result.completions)


def _grade(texts: Sequence[str], rows: Sequence[Mapping[str, Any]], completions: Sequence[Any]) -> list[HeldOutGrade]:
    from covey.rewards import RewardSettings
    from covey.rewards.library.countdown import countdown

    settings = RewardSettings()
    outcomes = [countdown(text, row, settings).outcome for text, row in zip(texts, rows, strict=True)]
    return [HeldOutGrade(outcome or Outcome.CRASHED) for outcome in outcomes]
