"""Evaluating the starter model, and its model card with the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covey.answers import Outcome
from covey.data.sources.arithmetic import Difficulty, take
from covey.evaluation.completions.graded import GradedCompletion
from covey.evaluation.estimators import Estimate, accuracy_estimate, mean
from covey.evaluation.figures import ends_text, value_text
from covey.evaluation.run import EvaluationResult, evaluate
from covey.model.starter.coldstart import DIFFICULTY, ColdStart
from covey.model.starter.styles import STYLE_SHARES
from covey.rollout import LocalEngine, SamplingSettings

_PROBLEMS = 1000
_SAMPLING = SamplingSettings(max_completion_length=96)
_TASK = Difficulty()
_HARD = Difficulty(min_digits=DIFFICULTY.max_digits + 1, max_digits=DIFFICULTY.max_digits + 1)


@dataclass(frozen=True, slots=True)
class StarterFigures:
    """The figures of the model card, all on held-out problems, sampled at temperature 1."""

    accuracy: Estimate
    """On the built-in task."""
    when_careful: Estimate
    """Among completions that show their steps and keep to the format."""
    careful_share: float
    hard: Estimate
    """On problems one digit longer than anything trained on."""
    length: float
    """Mean completion length in tokens."""

    def table(self) -> Any:
        """A rich table of the figures."""
        from rich.table import Table

        table = Table("held-out arithmetic, sampled at temperature 1", "value", "95% interval")
        for label, estimate in self._estimates():
            table.add_row(label, value_text(estimate.value), ends_text(estimate))
        table.add_row("share of careful completions", f"{self.careful_share:.1%}", "")
        table.add_row("mean completion length", f"{self.length:.1f} tokens", "")
        return table

    def _estimates(self) -> list[tuple[str, Estimate]]:
        return [
            ("accuracy", self.accuracy),
            ("accuracy when careful", self.when_careful),
            (f"accuracy on {_HARD.max_digits}-digit problems", self.hard),
        ]


def measure_starter(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> StarterFigures:
    """Sample one completion for each of 1,000 held-out problems of the task, and as many harder ones."""
    task = _evaluate(model, tokenizer, _TASK, seed)
    hard = _evaluate(model, tokenizer, _HARD, seed)
    careful = [item for item in task.completions if is_careful(item)]
    return StarterFigures(
        accuracy=_accuracy(task.completions),
        when_careful=_accuracy(careful),
        careful_share=mean([float(is_careful(item)) for item in task.completions]),
        hard=_accuracy(hard.completions),
        length=task.completion_length,
    )


def _accuracy(completions: Sequence[GradedCompletion]) -> Estimate:
    return accuracy_estimate([[item.outcome is Outcome.RIGHT] for item in completions])


def is_careful(item: GradedCompletion) -> bool:
    """Whether a completion has the format and at least one step."""
    return item.well_formed and "=" in item.completion


def model_card(settings: ColdStart, figures: StarterFigures, parameters: int) -> str:
    """The model card, in the hub's format."""
    rows = "\n".join(
        f"| {label} | {value_text(estimate.value)} | {ends_text(estimate)} |"
        for label, estimate in figures._estimates()
    )
    shares = ", ".join(f"{style} {share:.0%}" for style, share in STYLE_SHARES.items())
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [covey, grpo, arithmetic]
---

# Covey starter

A Qwen3 with {parameters:,} parameters (float32) that ships with Covey, so that a first GRPO run needs neither a GPU nor
a network. It knows one thing, sums and differences of numbers with up to {DIFFICULTY.max_digits} digits, and it knows
it in several styles of very different worth ({shares} of its training documents):

- **careful**: digit by digit inside `<think>`, then the answer in `<answer>`;
- **hasty**: a guess with little or no thinking;
- **sloppy**: the right steps, with the answer where no grader finds it.

It picks among them by chance. Reinforcement on exact answers makes it careful.

## Figures

Held-out problems of the built-in task `arithmetic` ({_TASK.min_digits} to {_TASK.max_digits} digits, + and -), one
completion each for {_PROBLEMS:,} problems, sampled at temperature 1.

| | value | 95% interval |
|---|---|---|
{rows}

Share of careful completions: {figures.careful_share:.1%}. Mean completion length: {figures.length:.1f} tokens.

## Making it again

`covey starter FOLDER` trains it from random weights: {settings.steps:,} steps of {settings.batch_size} documents, AdamW
at {settings.learning_rate:g} with warm-up and cosine decay, seed {settings.seed}. No held-out problem is ever shown.

## Limits

A teaching model. It knows no language beyond its prompts, and numbers longer than it was trained on are mostly beyond
it.
"""


def _evaluate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, difficulty: Difficulty, seed: int
) -> EvaluationResult:
    problems = take(difficulty, "test", seed, _PROBLEMS, unique=True)
    rows = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": p.text}], "answer": str(p.answer)} for p in problems]
    )
    return evaluate(LocalEngine(model, tokenizer), tokenizer, rows, _SAMPLING, batch_size=250, seed=seed)
