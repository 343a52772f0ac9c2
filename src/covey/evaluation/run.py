"""Evaluating a model on held-out problems: sample, grade, estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covey.answers import Outcome, Tags, grade_exact, has_reasoning_format
from covey.evaluation.estimators import Estimate, accuracy_estimate, mean
from covey.evaluation.grading import Grade, is_near, stated_answer
from covey.rewards.reward import with_opening
from covey.rollout import Generation, SamplingSettings, generate


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
    sample: int = 0
    """Which of the problem's completions this is."""
    extracted: str | None = None
    """The answer that it states, numbers in one spelling."""
    partial: bool = False
    """Right, or a number within 10% of the answer."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which batches of an evaluation this process makes, where several make it together: every `count`-th.

    A batch has its own seed, so that the completions are those of one process.
    """

    index: int
    count: int
    gather: Callable[[Any], list[Any]]
    """Gives the values of all processes, in their order."""
    any_works: Callable[[bool], bool] | None = None
    """As for `covey.rollout.sample`: where the weights are sharded, every forward needs every process."""


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


Write = Callable[[list[Any], int], list[Generation]]
"""Prompts and a seed to one completion each."""

_Batch = Sequence[tuple[int, int, Mapping[str, Any]]]
"""The number of a problem, which of its completions this is, and the problem's row."""


def evaluate(
    model: PreTrainedModel | None,
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
    on_batch: Callable[[Sequence[GradedCompletion]], None] | None = None,
    done: Sequence[GradedCompletion] = (),
    share: Share | None = None,
    shared_prefill: bool = True,
    write: Write | None = None,
) -> EvaluationResult:
    """Sample `num_samples` completions of every problem and grade them.

    The caller's random state is untouched, and the same seed always draws with the same random numbers, so that two
    evaluations differ by the model only. Every batch has a seed of its own, so that an evaluation that was stopped goes
    on to the same completions.

    Args:
        problems: rows with `prompt` (conversation or string) and `answer`.
        grade: grades completions against their rows; None compares the last answer tag with the answer, numbers in
            any spelling.
        tags: what a well-formed completion is tagged with; None means `<think>` and `<answer>`.
        opened: what the prompts open for the model, such as `<think>`; it belongs to what is graded, and to the form.
        on_progress: called with (completions done, completions in all).
        on_batch: called with every batch once it is graded.
        done: completions that are there already, from the beginning of the same evaluation; whole batches of them
            count, and the others are made again.
        share: make only a part of the batches here, and have the result of all of them; the two callbacks then hear of
            this process's completions.
        shared_prefill: as for `covey.rollout.generate`, which draws other tokens without it.
        write: samples one completion of every prompt, from a seed, in place of the model and Covey's own engine.
    """
    share = share or Share(0, 1, lambda value: [value])
    total = len(problems) * num_samples
    kept = len(done) if len(done) == total else len(done) // batch_size * batch_size
    batches = _batches(problems, num_samples, batch_size, kept)
    write = write or partial(_written, model, tokenizer, sampling, batch_size, share.any_works, shared_prefill)
    judge = partial(_graded, grade=grade or _grade_exact, tags=tags or Tags(), opened=opened)
    made: dict[int, list[GradedCompletion]] = {}
    for number, graded in _made(batches, share, write, judge, seed + kept, batch_size):
        made[number] = graded
        if on_batch is not None:
            on_batch(graded)
        if on_progress is not None:
            on_progress(kept + sum(map(len, made.values())), total)
    for theirs in share.gather(made):
        made |= theirs
    return summarise([*done[:kept], *(completion for number in sorted(made) for completion in made[number])])


def _batches(problems: Dataset, num_samples: int, batch_size: int, kept: int) -> list[_Batch]:
    """What is left to be made after the first `kept` completions, in the order of the problems."""
    every = ((index, sample, row) for index, row in enumerate(problems) for sample in range(num_samples))
    rows = islice(every, kept, None)
    return list(iter(lambda: list(islice(rows, batch_size)), []))


def _made(
    batches: Sequence[_Batch],
    share: Share,
    write: Write,
    judge: Callable[[_Batch, Sequence[Generation]], list[GradedCompletion]],
    seed: int,
    batch_size: int,
) -> Iterator[tuple[int, list[GradedCompletion]]]:
    """This process's batches by number, graded."""
    for first in range(0, len(batches), share.count):
        number = first + share.index
        here = min(number, len(batches) - 1)  # one too many, where the others need this process's forwards
        if number != here and share.any_works is None:
            continue
        texts = write([row["prompt"] for _, _, row in batches[here]], seed + here * batch_size)
        if number == here:
            yield number, judge(batches[number], texts)


def _written(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sampling: SamplingSettings,
    batch_size: int,
    any_works: Callable[[bool], bool] | None,
    shared_prefill: bool,
    prompts: list[Any],
    seed: int,
) -> list[Generation]:
    """One completion of every prompt, by Covey's own engine."""
    return generate(
        model,
        tokenizer,
        prompts,
        sampling,
        batch_size=batch_size,
        seed=seed,
        any_works=any_works,
        shared_prefill=shared_prefill,
    )


def _graded(
    batch: _Batch,
    generations: Sequence[Generation],
    *,
    grade: Grade,
    tags: Tags,
    opened: str,
) -> list[GradedCompletion]:
    wholes = [with_opening(generation.text, opened) for generation in generations]
    outcomes = grade(wholes, [row for _, _, row in batch])
    graded = []
    for (index, sample, row), generation, whole, outcome in zip(batch, generations, wholes, outcomes, strict=True):
        stated = stated_answer(whole, tags)
        graded.append(
            GradedCompletion(
                problem=index,
                prompt=last_user_message(row["prompt"]),
                answer=row["answer"],
                completion=generation.text,
                outcome=outcome,
                well_formed=has_reasoning_format(whole, tags),
                length=generation.length,
                truncated=generation.truncated,
                sample=sample,
                extracted=stated,
                partial=is_near(stated, row["answer"], outcome),
            )
        )
    return graded


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
