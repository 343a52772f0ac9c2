"""Evaluating the starter models, and their model cards with the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from covey import data
from covey.advice import command
from covey.answers import Outcome
from covey.config import Config, load
from covey.data.tasks.arithmetic import Difficulty
from covey.data.tasks.drawing import take
from covey.environments.runner import running
from covey.evaluation.estimators import Estimate, accuracy_estimate, mean
from covey.evaluation.figures import ends_text, value_text
from covey.evaluation.grading import GradedCompletion, HeldOutGrade
from covey.evaluation.metrics import compute_metrics
from covey.evaluation.play import Players, Playing
from covey.evaluation.run import EvaluationResult, evaluate
from covey.model.starter.calling import CALL_STYLE_SHARES
from covey.model.starter.coldstart import AGENT_DIFFICULTY, DIFFICULTY, ColdStart
from covey.model.starter.styles import STYLE_SHARES
from covey.rewards import RewardSettings, find
from covey.rollout import LocalEngine, SamplingSettings
from covey.runlog import names

_PROBLEMS = 1000
_TASK_PROBLEMS, _TASK_SAMPLES = 128, 8
_SAMPLING = SamplingSettings(max_completion_length=96)
_TASK_SAMPLING = SamplingSettings(max_completion_length=128)  # the longest documents of these tasks have about 100
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
        others = {
            "share of careful completions": f"{self.careful_share:.1%}",
            "mean completion length": f"{self.length:.1f} tokens",
        }
        return _table(self._estimates(), others)

    def card(self, settings: ColdStart, parameters: int) -> str:
        """The model card, in the hub's format."""
        shares = ", ".join(f"{style} {share:.0%}" for style, share in STYLE_SHARES.items())
        return f"""{_FRONT_MATTER}
# Covey starter

A Qwen3 with {parameters:,} parameters (float32) that ships with Covey, so that a first GRPO run needs neither a GPU nor
a network. It knows one thing, sums and differences of numbers with up to {DIFFICULTY.max_digits} digits, and it knows
it in several styles of very different worth ({shares} of its training documents):

- **careful**: digit by digit inside `<think>`, then the answer in `<answer>`;
- **hasty**: a guess with little or no thinking;
- **sloppy**: the right steps, with the answer where no grader finds it.

It picks among them by chance. Reinforcement on exact answers makes it careful.

{_figures(self._estimates())}

Share of careful completions: {self.careful_share:.1%}. Mean completion length: {self.length:.1f} tokens.

## Making it again

`covey starter FOLDER` trains it from random weights: {_recipe(settings)} No held-out problem is ever shown.

## Limits

A teaching model. It knows no language beyond its prompts, and numbers longer than it was trained on are mostly beyond
it.
"""

    def _estimates(self) -> Mapping[str, Estimate]:
        return {
            "accuracy": self.accuracy,
            "accuracy when careful": self.when_careful,
            f"accuracy on {_HARD.max_digits}-digit problems": self.hard,
        }


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """The figures of the agent's model card, on held-out problems, sampled at temperature 1."""

    accuracy: Estimate
    """On the built-in task, with the calculator."""
    hard: Estimate
    """On problems one digit longer than the written method was shown for, with the calculator."""
    when_calling: Estimate
    """The same, among episodes with a call."""
    call_share: Estimate
    """Episodes with a call, on the built-in task."""
    without: Estimate
    """Accuracy on the built-in task, without tools."""

    def table(self) -> Any:
        """A rich table of the figures."""
        return _table(self._estimates(), {})

    def card(self, settings: ColdStart, parameters: int) -> str:
        """The model card, in the hub's format."""
        shares = ", ".join(f"{style} {share:.0%}" for style, share in CALL_STYLE_SHARES.items())
        longest = AGENT_DIFFICULTY.max_digits
        return f"""{_FRONT_MATTER}
# Covey starter that can call a tool

A Qwen3 with {parameters:,} parameters (float32) that ships with Covey, so that a first agent needs neither a GPU nor a
network. It is the Covey starter, taught one more style for when a calculator is offered
({shares} of the documents that offer it):

- **calling**: `<tool_call>calculator{{"expression": "48213 + 9077"}}</tool_call>`, then the result in `<answer>`.

Some of its calls are wrong, and some of its answers are where no grader finds them. It has seen calls with up to
{longest} digits, one more than the written method was shown for: without a call, such problems are out of its reach.
Reinforcement on exact answers makes it call: `covey train environment=calculator`.

{_figures(self._estimates())}

## Template

Tools are shown by name and parameters only, as in `calculator(expression)`: the model knows no language to read their
descriptions in. The tokenizer holds a `response_template`, by which transformers reads calls back.

## Making it again

`covey starter FOLDER --agent` trains it from the weights of the starter: {_recipe(settings)} No held-out problem is
ever shown.

## Limits

A teaching model. It knows no language beyond its prompts, and no tool but the calculator.
"""

    def _estimates(self) -> Mapping[str, Estimate]:
        digits = f"{_HARD.max_digits}-digit problems"
        return {
            "accuracy with the calculator": self.accuracy,
            f"accuracy with the calculator on {digits}": self.hard,
            f"accuracy on {digits} when it calls": self.when_calling,
            "share of episodes with a call": self.call_share,
            "accuracy without tools": self.without,
        }


_FRONT_MATTER = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [covey, grpo, arithmetic]
---
"""


def _recipe(settings: ColdStart) -> str:
    batches = f"{settings.steps:,} steps of {settings.batch_size} documents"
    return f"{batches}, AdamW\nat {settings.learning_rate:g} with warm-up and cosine decay, seed {settings.seed}."


def _figures(estimates: Mapping[str, Estimate]) -> str:
    rows = "\n".join(
        f"| {label} | {value_text(estimate.value)} | {ends_text(estimate)} |" for label, estimate in estimates.items()
    )
    return f"""## Figures

Held-out problems of the built-in task `arithmetic` ({_TASK.min_digits} to {_TASK.max_digits} digits, + and -), one
completion each for {_PROBLEMS:,} problems, sampled at temperature 1.

| | value | 95% interval |
|---|---|---|
{rows}"""


def _table(estimates: Mapping[str, Estimate], others: Mapping[str, str]) -> Any:
    from rich.table import Table

    table = Table("held-out arithmetic, sampled at temperature 1", "value", "95% interval")
    for label, estimate in estimates.items():
        table.add_row(label, value_text(estimate.value), ends_text(estimate))
    for label, text in others.items():
        table.add_row(label, text, "")
    return table


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


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """The figures of a start for a task with several right answers, on held-out problems, sampled at temperature 1."""

    config: Config
    words: Sequence[str]
    """The keys of its dataset that differ from the task's defaults."""
    estimates: Mapping[str, Estimate]

    def table(self) -> Any:
        """A rich table of the figures, beside those of random answers."""
        from rich.table import Table

        table = Table(f"held-out {self.config.dataset.task}, sampled at temperature 1", *_HEADINGS)
        for row in self._rows():
            table.add_row(*row)
        return table

    def card(self, settings: ColdStart, parameters: int) -> str:
        """The model card, in the hub's format."""
        task = self.config.dataset.task
        again = command("starter FOLDER --task {task} --seed {seed}", *self.words, task=task, seed=settings.seed)
        rows = "\n".join(f"| {' | '.join(row)} |" for row in self._rows())
        return f"""{_FRONT_MATTER.replace("arithmetic", str(task))}
# Covey starter for {task}

A Qwen3 with {parameters:,} parameters (float32), from which reinforcement on the task `{task}` can start. It has
learned from right answers to training problems, one to each problem, drawn at random. No held-out problem was shown.

## Figures

{_TASK_PROBLEMS} held-out problems, {_TASK_SAMPLES} completions each, sampled at temperature 1.

| | {" | ".join(_HEADINGS)} |
|---|---|---|---|
{rows}

## Making it again

`{again}`: {_recipe(settings)}
It is the same on machines whose PyTorch computes alike.
"""

    def _rows(self) -> list[tuple[str, str, str, str]]:
        kinds = ("pass", names.DISTINCT, names.DISTINCT_IF_SOLVED, names.COVERAGE)
        found = []
        for name in ("accuracy", *(f"{kind}@{_TASK_SAMPLES}" for kind in kinds)):
            chance = self.estimates.get(names.CHANCE + name)
            random = "" if chance is None else value_text(chance.value, name)
            found.append(
                (name, value_text(self.estimates[name].value, name), ends_text(self.estimates[name], name), random)
            )
        return found


_HEADINGS = ("value", "95% interval", "random answers")


def measure_task(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: Config, words: Sequence[str], *, seed: int
) -> TaskFigures:
    """Sample eight completions for each of 128 held-out problems of a task with several right answers.

    Args:
        config: has the task as its `dataset`.
        words: the keys that `config` was made with, for the model card.
        seed: of the problems and the completions.
    """
    grader = str(config.dataset.task)
    sample = find(grader, RewardSettings()).sample
    assert sample is not None

    def grade(texts: Sequence[str], rows: Sequence[Mapping[str, Any]], _: Sequence[Any]) -> list[HeldOutGrade]:
        graded = [sample(text, row) for text, row in zip(texts, rows, strict=True)]
        return [HeldOutGrade(one.outcome, mode=one.mode) for one in graded]

    held_out = replace(config.dataset, train_size=1, test_size=_TASK_PROBLEMS, hard_size=0, single_size=0)
    rows = data.load(held_out, seed).evaluation["test"]
    engine = LocalEngine(model, tokenizer)
    more: dict[str, Any] = {"num_samples": _TASK_SAMPLES, "batch_size": 256, "seed": seed, "grade": grade}
    found = evaluate(engine, tokenizer, rows, _TASK_SAMPLING, **more).completions
    ks = (1, _TASK_SAMPLES)
    return TaskFigures(config, words, compute_metrics([item.record() for item in found], seed, ks, grader))


def measure_agent(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> AgentFigures:
    """Play one episode for each of 1,000 held-out problems of the task, and as many harder ones."""
    config = load(["environment=calculator"])
    with running(config.environment) as runner:
        playing = Players.of(config, runner, tokenizer, model).playing()
        task, hard = (_evaluate(model, tokenizer, kind, seed, playing).completions for kind in (_TASK, _HARD))
    return AgentFigures(
        accuracy=_accuracy(task),
        hard=_accuracy(hard),
        when_calling=_accuracy([item for item in hard if _calls(item)]),
        call_share=_share([_calls(item) for item in task]),
        without=_accuracy(_evaluate(model, tokenizer, _TASK, seed).completions),
    )


def _accuracy(completions: Sequence[GradedCompletion]) -> Estimate:
    return _share([item.outcome is Outcome.RIGHT for item in completions])


def _share(hits: Sequence[bool]) -> Estimate:
    return accuracy_estimate([[hit] for hit in hits])


def is_careful(item: GradedCompletion) -> bool:
    """Whether a completion has the format and at least one step."""
    return item.well_formed and "=" in item.completion


def _calls(item: GradedCompletion) -> bool:
    return bool(item.tool_calls)


def _evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    difficulty: Difficulty,
    seed: int,
    playing: Playing | None = None,
) -> EvaluationResult:
    problems = take(difficulty, "test", seed, _PROBLEMS, unique=True)
    rows = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": p.text}], "answer": str(p.answer)} for p in problems]
    )
    engine = LocalEngine(model, tokenizer)
    return evaluate(engine, tokenizer, rows, _SAMPLING, batch_size=250, seed=seed, playing=playing)
