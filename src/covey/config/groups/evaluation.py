"""The group `evaluation`: when and how the model is evaluated on held-out problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from covey.config.groups.base import Group, option
from covey.config.groups.rollout import check_engine
from covey.config.values import MAX_TOKENS, BadKeyError, show

_SAMPLED = "evaluation.temperature != 0"
_IN_TRAINING = "evaluation.every_steps != 0"
_EARLY_STOPPING = "'early_stopping' in callbacks"


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Group):
    """When and how the model is evaluated on held-out problems, of which `dataset.test_size` sets the number."""

    PREFIX: ClassVar[str] = "evaluation."

    every_steps: int | str = option(50, low=0)
    """Evaluate before the first step, after every so many steps, and at the end; `epoch` means after every pass over
    the data, 0 means never."""
    before_training: bool = option(True, live=_IN_TRAINING)
    """Whether the first evaluation comes before the first step."""
    benchmarks: tuple[str, ...] = ()
    """Benchmarks to run after training, by name; `covey eval` runs them in place of the held-out problems."""
    benchmark_paths: dict[str, str] = field(default_factory=dict, metadata={"live": "evaluation.benchmarks"})
    """Local files of benchmarks by name, in place of the hub: `{gsm8k: data/gsm8k_test.jsonl}`."""
    grader: str | None = None
    """What decides which held-out answers are right: `exact_match`, `accuracy`, `countdown`, `graph_coloring`,
    `check_answer`, `check_numbers`, or a function of your own with the signature of a reward, as `file.py:function` or
    `package.module:function`. Null takes the one that the built-in rewards imply; with only other rewards there is no
    accuracy."""
    right_at: float | None = option(None, live="':' in grader or environment.gives_prompts")
    """A grader of your own, and an environment with `get_reward`, give numbers: a completion is right from this one on.
    Null means 1, and where an environment rewards, that the accuracy is the mean of its rewards."""
    best_by: str | None = option(None, live=_IN_TRAINING)
    """The metric of the held-out problems that decides the best checkpoint and early stopping, the highest being the
    best: `accuracy`, `reward`, `reward/<function>` or another by its name after `eval/`. Null takes the accuracy where
    there is a grader, else the mean reward."""
    num_samples: int = option(1, low=1, high=1_000_000)
    """Completions per problem."""
    k: tuple[int, ...] = option((), low=1)
    """The k of pass@k, maj@k, distinct@k and coverage@k, as in `[1,8]`; none may exceed `num_samples`. Empty means 1,
    2, 4, … up to `num_samples`."""
    max_problems: int | None = option(None, low=1)
    """Evaluate on the first so many problems only."""
    temperature: float = option(1.0, low=0)
    """Sampling temperature; 0 is greedy decoding."""
    top_p: float = option(1.0, above=0, high=1, live=_SAMPLED)
    """Nucleus sampling: sample from the likeliest tokens with this total probability."""
    top_k: int = option(0, low=0, live=_SAMPLED)
    """Sample from the k likeliest tokens; 0 means all."""
    max_completion_length: int | None = option(None, low=1, high=MAX_TOKENS)
    """Longest completion in tokens; null takes `training.max_completion_length`."""
    batch_size: int = option(64, low=1)
    """Completions generated at a time."""
    early_stopping_patience: int = option(3, low=1, live=_EARLY_STOPPING, refused=True)
    """With `callbacks=[early_stopping]`: end the run after so many evaluations in a row without a new best on the
    held-out problems, by `best_by`."""
    early_stopping_threshold: float = option(0.0, low=0, live=_EARLY_STOPPING)
    """How much higher it must be to count as a new best there: of an accuracy as a share of the problems, of a reward
    in its own unit."""
    engine: str = "local"
    """Engine that `covey eval` samples with: Covey's own (`local`), or one that takes full weights only: `vllm`, or
    your own, as `file.py:Class` or `package.module:Class`."""
    keep_best: bool = option(True, live="evaluation.every_steps != 0 and training.save_strategy != 'no'")
    """Whether the best checkpoint on the held-out problems, by `best_by`, is kept, whatever
    `training.save_total_limit` is, and linked as `best_model`. A new best is saved at once;
    `training.save_strategy=no` saves none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.every_steps, str) and self.every_steps != "epoch":
            raise BadKeyError(
                "evaluation.every_steps",
                f"={show(self.every_steps)} is not possible: it must be a number of steps or epoch.",
            )
        check_engine("evaluation.engine", self.engine)
        if 0 < self.temperature < 1e-6:  # logits are divided by it
            raise BadKeyError(
                "evaluation.temperature", f"={self.temperature} is out of range: it must be 0 or at least 1e-6."
            )
        if max(self.k, default=0) > self.num_samples:
            raise BadKeyError(
                "evaluation.k",
                f"={show(self.k)} is not possible with evaluation.num_samples={self.num_samples}: pass@{max(self.k)} "
                f"takes at least {max(self.k)} completions of every problem. Set "
                f"evaluation.num_samples={max(self.k)}, or a smaller k.",
            )
