"""Evaluating a model on held-out problems: load it, sample, grade, estimate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from covey.answers import Outcome, Tags
from covey.config import Config
from covey.errors import ConfigError, ModelError
from covey.evaluation.estimators import Estimate, mean, mean_estimate
from covey.evaluation.grading import GradeBatch, GradedCompletion, grade_batch
from covey.evaluation.metrics import accuracy, credit, episode_estimates, modes_at, rewards_by_problem, watch_estimates
from covey.evaluation.play import Playing, start_seed
from covey.evaluation.stored import Target, sampling_settings
from covey.model.adapters import quantization_config
from covey.model.device import autocast_dtype
from covey.model.load import check_model, own_generation_config, source_options
from covey.model.prompts import TemplateArguments
from covey.model.weight_files import quiet_weights
from covey.rollout import Completion, InferenceEngine, LocalEngine, SamplingSettings, generate
from covey.rollout.generate import make_engine


@dataclass(frozen=True, slots=True)
class Shard:
    """The batches of an evaluation that this process computes: every `count`-th.

    A batch has its own seed, so that the completions are those of a single process.
    """

    index: int
    count: int
    gather: Callable[[Any], list[Any]]
    """Returns the values of all processes, in rank order."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Metrics over one held-out set, and the completions behind them."""

    accuracy: Estimate | None
    """None without a grader."""
    format: float
    """Share of completions in the format `<think>…</think><answer>…</answer>`."""
    completion_length: float
    """Mean number of tokens."""
    truncated: float
    """Share that reached the length limit."""
    completions: list[GradedCompletion]
    reward: Estimate | None = None
    """The mean of the weighted sum of the rewards; None without any."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The mean of each reward function that gave any."""
    episodes: Mapping[str, float] = field(default_factory=dict)
    """Means and shares over episodes with tools or an environment; empty without."""
    modes: Mapping[str, Estimate] = field(default_factory=dict)
    """The figures of several right answers, see `evaluation.completions.modes`; empty where none are known."""
    watch: Mapping[str, float] = field(default_factory=dict)
    """The signs of `covey.answers.watch`."""

    def metrics(self) -> dict[str, float]:
        """The metrics by name."""
        found = {"format": self.format, "completion_length": self.completion_length, "truncated": self.truncated}
        if self.reward is not None:
            found = _with_interval("reward", self.reward) | found
        if self.accuracy is not None:
            found = _with_interval("accuracy", self.accuracy) | found
        for name, estimate in self.modes.items():
            found |= {name: estimate.value} if math.isnan(estimate.low) else _with_interval(name, estimate)
        lost = {f"grader/{outcome}": value for outcome, value in self.lost().items()}
        found |= {f"reward/{name}": value for name, value in self.rewards.items()}
        return found | dict(self.episodes) | dict(self.watch) | lost

    def lost(self) -> dict[Outcome, float]:
        """The shares of completions that could not be graded, by the reason; empty where all were."""
        counts = Counter(item.outcome for item in self.completions)
        return {outcome: counts[outcome] / counts.total() for outcome in LOST if counts[outcome]}


LOST = (Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.UNPARSABLE_GOLD)
"""Outcomes that are the grader's or the data's fault."""

_Batch = Sequence[tuple[int, int, Mapping[str, Any]]]
"""Index of the problem, index among its completions, and the problem's row."""


def evaluate(
    engine: InferenceEngine,
    tokenizer: PreTrainedTokenizerBase,
    problems: Dataset,
    sampling: SamplingSettings,
    *,
    num_samples: int = 1,
    batch_size: int,
    seed: int,
    start: int | None = None,
    grade: GradeBatch | None = None,
    tags: Tags | None = None,
    prompt_prefix: str = "",
    on_progress: Callable[[int, int], None] | None = None,
    on_batch: Callable[[Sequence[GradedCompletion]], None] | None = None,
    done: Sequence[GradedCompletion] = (),
    shard: Shard | None = None,
    chat_template_kwargs: TemplateArguments = None,
    vocab_size: int | None = None,
    playing: Playing | None = None,
    ks: Sequence[int] = (),
    grader: str | None = None,
) -> EvaluationResult:
    """Sample `num_samples` completions of every problem and grade them.

    The caller's random state is untouched, and the same seed gives the same random numbers, so that two evaluations
    differ by the model only. Every batch has a seed of its own, so that a resumed evaluation gets the same completions.

    Args:
        engine: samples the completions, `batch_size` at a time.
        tokenizer: of its model.
        problems: rows with `prompt` (conversation or string), and with what `grade` reads.
        start: seed of the environments' starts; None takes `seed`.
        grade: grades completions against their rows, and rewards them; None compares the last answer tag with the
            row's `answer`, numbers by value.
        tags: the tags of a well-formed completion; None means `<think>` and `<answer>`.
        prompt_prefix: the end of the prompts that belongs to the completion, such as `<think>`; it counts for grading
            and format.
        on_progress: called with (completions done, completions in all).
        on_batch: called with every batch once it is graded.
        done: completions from the beginning of the same evaluation, to resume from; those of an incomplete batch are
            sampled again.
        shard: compute only these batches here, and gather the result of all; the callbacks then get this process's
            completions.
        chat_template_kwargs: arguments of the chat template besides the messages.
        vocab_size: rows of the model's embedding; None counts the tokenizer's tokens.
        playing: the environments and tools that the completions are episodes with; None for none. A problem's
            environment starts from a seed of its own.
        ks: the k of distinct@k and coverage@k, see `compute_metrics`.
        grader: what `grade` grades by; some graders know every right answer of a problem.
    """
    shard = shard or Shard(0, 1, lambda value: [value])
    total = len(problems) * num_samples
    kept = whole_batches(len(done), total, batch_size)
    batches = _batches(problems, num_samples, batch_size, kept)

    together = engine.capabilities.collective

    def generate_batch(batch: _Batch, seed_of_batch: int) -> Sequence[Completion]:
        rows = [row for _, _, row in batch]
        if playing is None:
            more: dict[str, Any] = {"chat_template_kwargs": chat_template_kwargs, "vocab_size": vocab_size}
            return generate(engine, tokenizer, [row["prompt"] for row in rows], sampling, seed=seed_of_batch, **more)
        starts = [start_seed(seed if start is None else start, problem) for problem, _, _ in batch]
        more = {"vocab_size": vocab_size} | ({"largest": lambda count: max(shard.gather(count))} if together else {})
        return playing.sample(engine, rows, sampling, seed=seed_of_batch, starts=starts, **more)

    made: dict[int, list[GradedCompletion]] = {}
    with getattr(engine, "unchanging", nullcontext)():
        for first in range(0, len(batches), shard.count):
            number = first + shard.index
            here = min(number, len(batches) - 1)  # out of range where the other processes need this one
            if number != here and not together:
                continue
            in_vain = number != here and playing is not None  # with episodes it need not sample
            batch = [] if in_vain else batches[here]
            completions = generate_batch(batch, seed + kept + here * batch_size)
            if number != here:
                continue
            how: dict[str, Any] = {"grade": grade, "tags": tags or Tags(), "prompt_prefix": prompt_prefix}
            made[number] = grade_batch(batch, completions, **how)
            if on_batch is not None:
                on_batch(made[number])
            if on_progress is not None:
                on_progress(kept + sum(map(len, made.values())), total)
    for theirs in shard.gather(made):
        made |= theirs
    graded = [*done[:kept], *(completion for number in sorted(made) for completion in made[number])]
    return summarise(graded, ks, grader)


def whole_batches(done: int, total: int, batch_size: int) -> int:
    """The number of existing completions that an evaluation resumes from."""
    return done if done == total else done // batch_size * batch_size


def _batches(problems: Dataset, num_samples: int, batch_size: int, kept: int) -> list[_Batch]:
    """The batches after the first `kept` completions, in the order of the problems."""
    every = ((index, sample, row) for index, row in enumerate(problems) for sample in range(num_samples))
    rows = islice(every, kept, None)
    return list(iter(lambda: list(islice(rows, batch_size)), []))


def summarise(graded: list[GradedCompletion], ks: Sequence[int] = (), grader: str | None = None) -> EvaluationResult:
    """Aggregate graded completions; other arguments as of `evaluate`."""
    by_problem: dict[int, list[GradedCompletion]] = {}
    for item in graded:
        by_problem.setdefault(item.problem, []).append(item)
    credits = [
        [credit(item.outcome, item.score) for item in p if item.outcome is not None] for p in by_problem.values()
    ]
    played = episode_estimates([[item.episode_record() for item in problem] for problem in by_problem.values()])
    reward, rewards = rewards_by_problem((item.problem, item.reward, item.rewards) for item in graded)
    has_grader = not graded or any(item.outcome is not None for item in graded)
    answered = [[item.record() for item in p] for p in by_problem.values() if any(item.outcome for item in p)]
    signs = [[(item.repeats_prompt, item.holds_gold) for item in problem] for problem in by_problem.values()]
    watched = watch_estimates(signs, grader)
    return EvaluationResult(
        accuracy=accuracy(credits) if has_grader else None,
        format=mean([float(item.well_formed) for item in graded]),
        completion_length=mean([float(item.length) for item in graded]),
        truncated=mean([float(item.truncated) for item in graded]),
        completions=graded,
        reward=mean_estimate(reward) if reward else None,
        rewards={name: mean(values) for name, values in rewards.items()},
        episodes={name: estimate.value for name, estimate in played.items()},
        modes=modes_at(answered, ks, grader),
        watch={name: estimate.value for name, estimate in watched.items()},
    )


def _with_interval(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def load_policy(config: Config, target: Target) -> Any:
    """The model with its weights, in the dtype of the run; adapters are not merged.

    Weights are quantised as in the run; a checkpoint of quantised weights has its own settings.

    Raises:
        ModelError: it cannot be loaded, or not on this machine.
    """
    import torch
    from transformers import AutoModelForCausalLM

    source = check_model(config.model)
    more: dict[str, Any] = {"quantization_config": quantization_config(config.model)}
    more |= {"dtype": config.model.dtype or "float32", **source_options(config.model)}
    if config.model.attn_implementation:
        more["attn_implementation"] = config.model.attn_implementation
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if more["quantization_config"] is not None:
        more["device_map"] = {"": 0 if device is not None else "cpu"}
    try:
        with quiet_weights():
            model = AutoModelForCausalLM.from_pretrained(source, **more)
            if target.adapter is not None:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, str(target.adapter))
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        where = target.adapter or target.source
        raise ModelError(f"The weights of {where} cannot be loaded: {' '.join(str(error).split())}") from error
    # Quantised weights are placed as they are loaded, and some kinds refuse to be moved.
    return model if device is None or getattr(model, "is_quantized", False) else model.to(device)


def engine_of(
    config: Config, target: Target, tokenizer: Any, name: str, model: Any = None, *, batch_size: int | None = None
) -> InferenceEngine:
    """The engine that samples completions of a target.

    Args:
        config: `model.name` is `target.source`.
        target: the weights.
        tokenizer: of the model.
        name: see `evaluation.engine`.
        model: for `local`, the target's model, if it is loaded already.
        batch_size: completions at a time; None takes `evaluation.batch_size`.

    Raises:
        ConfigError: there is no such engine, or the weights are adapters, or quantised on loading, and it needs others.
        EngineError: it does not take the model.
        ModelError: the model cannot be loaded.
    """
    batch_size = batch_size or config.evaluation.batch_size
    if name == "local":
        policy = model if model is not None else load_policy(config, target)
        # Mixed precision as in training: flash attention, for one, takes no float32.
        autocast = autocast_dtype(policy.device, config.training.bf16, bool(config.training.fp16), config.model.dtype)
        shared = config.speed.shared_prefill
        return LocalEngine(policy, tokenizer, batch_size=batch_size, shared_prefill=shared, autocast=autocast)
    settings = config.model
    if target.adapter is not None or settings.load_in_4bit or settings.load_in_8bit:
        raise ConfigError(
            f"evaluation.engine={name} needs merged, unquantised weights, and {target.label} has adapters or weights "
            "that are quantised on loading. Merge them (covey export RUN FOLDER) and evaluate that folder, or "
            "use evaluation.engine=local."
        )
    return make_engine(
        name,
        "evaluation.engine",
        model_name=check_model(settings),
        tokenizer=tokenizer,
        dtype=settings.dtype,
        batch_size=batch_size,
        revision=settings.revision,
        trust_remote_code=settings.trust_remote_code,
    )


def sampling_of(config: Config) -> SamplingSettings:
    """The sampling settings of evaluations with this config; what has no key is that of the model's own config."""
    own = own_generation_config(config.model)
    more = {name: getattr(own, name, None) for name in ("min_p", "repetition_penalty")}
    return SamplingSettings(
        **sampling_settings(config), **{name: value for name, value in more.items() if value is not None}
    )
