"""What a run is: frozen dataclasses, every field documented where it stands and checked when the object is made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from covey.config.dataset import DatasetConfig
from covey.config.fields import Group, option
from covey.config.launch import LaunchConfig
from covey.config.model import ModelConfig
from covey.config.objective_checks import check_objective
from covey.config.speed_checks import check_speed
from covey.config.training import TrainingConfig
from covey.config.values import BadKeyError, check_tags, show

EARLY_STOPPING = "early_stopping"
"""The callback that comes with Covey."""

MAX_SEED = 2**32 - 1  # numpy takes no larger one


@dataclass(frozen=True, kw_only=True)
class RewardsConfig(Group):
    """What a completion is rewarded for. The weights are `training.reward_weights`, TRL's own name."""

    PREFIX: ClassVar[str] = "rewards."

    funcs: tuple[str, ...] = ("exact_match", "format")
    """Reward functions: by name, as `file.py:function` or as `package.module:function`; their rewards are added up with
    `training.reward_weights`."""
    on_error: str = option("stop", choices=("stop", "skip"))
    """What a reward function that fails does to the run: end it (`stop`), or leave those rewards out (`skip`)."""
    workers: int | None = option(None, low=0)
    """Worker processes for reward functions given by name; null goes by the number of cores, 0 runs them in the process
    of the trainer, without deadlines."""
    timeout: float = option(5.0, above=0)
    """Seconds that grading one completion may take before its worker is killed and replaced."""
    batch_timeout: float = option(60.0, above=0)
    """Seconds that one call of a function that takes a whole batch may take."""
    think_tag: str = "think"
    """Tag of the thinking part: `think` stands for `<think>` and `</think>`."""
    answer_tag: str = "answer"
    """Tag of the final answer."""
    cosine_min_value_wrong: float = 0.0
    """`cosine_scaled`: reward of the shortest wrong completion, as open-r1 and TRL use the name."""
    cosine_max_value_wrong: float = -0.5
    """`cosine_scaled`: reward of a wrong completion as long as `cosine_max_len`."""
    cosine_min_value_correct: float = 0.5
    """`cosine_scaled`: reward of a right completion as long as `cosine_max_len`."""
    cosine_max_value_correct: float = 1.0
    """`cosine_scaled`: reward of the shortest right completion."""
    cosine_max_len: int = option(1000, low=1)
    """`cosine_scaled`: length of a completion, in characters, at which the cosine ends."""
    repetition_n_grams: int = option(3, low=1)
    """`repetition_penalty`: how many words make one n-gram."""
    repetition_max_penalty: float = option(-1.0, high=0)
    """`repetition_penalty`: the penalty when nothing but repetition is left."""
    soft_overlong_max_length: int | None = option(None, low=1)
    """`soft_overlong`: length in tokens that is punished fully; null takes `training.max_completion_length`."""
    soft_overlong_cache: int | None = option(None, low=1)
    """`soft_overlong`: how many tokens before that the punishment begins; null takes a fifth of the length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.funcs or not all(self.funcs):
            raise BadKeyError("rewards.funcs", f"={list(self.funcs)} must name one or more reward functions.")
        check_tags({"rewards.think_tag": self.think_tag, "rewards.answer_tag": self.answer_tag})


@dataclass(frozen=True, kw_only=True)
class KLConfig(Group):
    """Whether the weight β of the KL divergence stays or follows a target."""

    PREFIX: ClassVar[str] = "objective.kl."

    controller: str = option("fixed", choices=("fixed", "adaptive"))
    """`fixed` keeps β at `training.beta`; `adaptive` starts there and moves it so that the KL stays at `kl_target`."""
    kl_target: float = option(0.07, above=0)
    """The KL divergence, per completion token, that `adaptive` aims at."""
    kl_horizon: int = option(10_000, low=1)
    """How slowly `adaptive` moves: the number of completions over which β could change by its full step."""
    kl_ctl_step_size: float = option(0.2, above=0)
    """Largest relative deviation from the target that `adaptive` reacts to."""
    stop_above: float | None = option(None, above=0)
    """Ends the run, with its last good checkpoint named, when a step's KL is above this; null never does."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Group):
    """How the rewards of a group become advantages."""

    PREFIX: ClassVar[str] = "objective."

    name: str = option("grpo", choices=("grpo", "maxent"))
    """`grpo` leaves TRL's own advantages as they are; `maxent` fits the policy to a maximum-entropy target."""
    maxent_tau: float = option(0.3, low=0)
    """Entropy weight τ: the larger, the more evenly the target spreads over a group."""
    maxent_q_temperature: float = option(1.0, above=0)
    """Temperature of the softmax that turns a group's rewards into the distribution q."""
    maxent_q_epsilon: float = option(1e-6, low=0)
    """Least probability that q gives to every completion; times the group's size it must stay below 1."""
    maxent_length_normalize_ref: bool = True
    """Whether the reference's log-probability of a completion is its mean per token instead of the sum."""
    maxent_fit: str = option("listwise", choices=("mle", "listwise"))
    """How the target is fitted: weighted maximum likelihood (`mle`), or cross-entropy with the policy's own
    distribution over the group (`listwise`)."""
    resample_groups: int = option(0, low=0)
    """Most further prompts drawn for one generation batch to replace groups whose rewards are all alike, which teach
    nothing (DAPO's dynamic sampling); 0 keeps every group."""
    kl: KLConfig = field(default_factory=KLConfig)
    """How the weight β of the KL divergence behaves; where it starts is `training.beta`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name != "maxent":
            for item in fields(self):
                if item.name.startswith("maxent_") and getattr(self, item.name) != item.default:
                    raise BadKeyError(
                        f"objective.{item.name}",
                        f"={show(getattr(self, item.name))} belongs to objective=maxent, and this run has "
                        f"objective.name={self.name}: choose objective=maxent, or leave it out.",
                    )


@dataclass(frozen=True, kw_only=True)
class SpeedConfig(Group):
    """Which repeated work is done once only. Nothing here changes the numbers."""

    PREFIX: ClassVar[str] = "speed."

    shared_prefill: bool = True
    """Whether sampling reads the prompt of a group once and drops completions that have ended; false takes
    transformers' own `generate`. Has no effect with vLLM."""
    shared_scoring: bool = True
    """Whether log-probabilities and gradients compute the prompt of a group once, and no padding at all."""
    trim: bool = True
    """Whether micro-batches hold whole groups where the sizes allow it, and are cut to their own longest row."""
    skip_zero: bool = True
    """Whether completions whose gradient is exactly zero skip the forward and backward pass of the loss. The logged
    `entropy` is then that of the others."""
    max_tokens: int | None = option(None, low=1)
    """Most tokens in one forward and backward pass, padding included where the model reads it; a micro-batch above it
    is cut into several, and the gradient stays the same. null cuts by rows only."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Group):
    """When and how held-out problems are answered. How many there are is `dataset.test_size`."""

    PREFIX: ClassVar[str] = "evaluation."

    every_steps: int | str = option(50, low=0)
    """Evaluate before the first step, after every so many steps, and at the end; `epoch` means after every pass over
    the data, 0 means never."""
    before_training: bool = True
    """Whether the first evaluation comes before the first step."""
    benchmarks: tuple[str, ...] = ()
    """Benchmarks to run after training, by name; `covey eval` runs them in place of the held-out problems."""
    benchmark_paths: dict[str, str] = field(default_factory=dict)
    """Local files of benchmarks by name, in place of the hub: `{gsm8k: data/gsm8k_test.jsonl}`."""
    num_samples: int = option(1, low=1)
    """Completions per problem."""
    k: tuple[int, ...] = option((), low=1)
    """The k of pass@k and maj@k, as in `[1,8]`; none of them may be above `num_samples`. Empty takes 1, 2, 4, … up to
    `num_samples`."""
    max_problems: int | None = option(None, low=1)
    """Evaluate on the first so many problems only."""
    temperature: float = option(1.0, low=0)
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float = option(1.0, above=0, high=1)
    """Sample from the likeliest tokens that make up this share of the probability."""
    top_k: int = option(0, low=0)
    """Sample from so many likeliest tokens; 0 means all."""
    max_completion_length: int | None = option(None, low=1)
    """Longest completion in tokens; null takes `training.max_completion_length`."""
    batch_size: int = option(64, low=1)
    """Completions generated at a time."""
    early_stopping_patience: int = option(3, low=1)
    """With `callbacks=[early_stopping]`: end the run after so many evaluations in a row without a new best accuracy on
    the held-out problems."""
    early_stopping_threshold: float = option(0.0, low=0, high=1)
    """How much higher an accuracy must be to count as a new best there, as a share of the problems."""
    engine: str = option("local", choices=("local", "vllm"))
    """What `covey eval` samples with: Covey's own engine (`local`), or `vllm`, which takes whole weights only."""
    keep_best: bool = True
    """Whether the checkpoint with the best accuracy on the held-out problems is kept, whatever
    `training.save_total_limit` says, and linked as `best_model`. A new best is saved at once;
    `training.save_strategy=no` saves none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.every_steps, str) and self.every_steps != "epoch":
            raise BadKeyError(
                "evaluation.every_steps",
                f"={show(self.every_steps)} is not possible: it must be a number of steps or epoch.",
            )
        if max(self.k, default=0) > self.num_samples:
            raise BadKeyError(
                "evaluation.k",
                f"={show(self.k)} is not possible with evaluation.num_samples={self.num_samples}: pass@{max(self.k)} "
                f"takes at least {max(self.k)} completions of every problem. Set "
                f"evaluation.num_samples={max(self.k)}, or a smaller k.",
            )


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Group):
    """What is kept and shown while training. Trackers are `training.report_to`."""

    PREFIX: ClassVar[str] = "logging."

    completions_every_steps: int = option(1, low=0)
    """Write the completions of every so many steps into the run directory; 0 means never."""
    sample_completions: int = option(3, low=0)
    """Completions shown in the live display."""
    project: str | None = None
    """Project that trackers log to (W&B, Trackio); null leaves it to the tracker."""
    entity: str | None = None
    """User or team that the W&B project belongs to."""
    group: str | None = None
    """Group of W&B runs that this one belongs to."""
    tags: tuple[str, ...] = ()
    """Tags of the run in W&B."""
    notes: str | None = None
    """Notes on the run in W&B."""
    mode: str = option("online", choices=("online", "offline", "disabled"))
    """Whether trackers send what they log, keep it in files, or do nothing."""


@dataclass(frozen=True, kw_only=True)
class Config(Group):
    """A run, resolved and checked."""

    run_name: str | None = None
    """Folder of the run below `output_dir`; null makes one from the time and the recipe."""
    output_dir: str = "out"
    """Folder that holds the run directories."""
    seed: int = option(0, low=0, high=MAX_SEED)
    """Fixes the order of the data, the sampling and every other random draw."""
    resume: str | bool = "auto"
    """`auto` goes on from a checkpoint of the same config, `true` demands one, `false` starts anew, or a path."""
    stop_after_steps: int | None = option(None, low=1)
    """End this invocation cleanly after so many steps, with a checkpoint; the schedule stays as it is."""
    overwrite: bool = False
    """Whether a run directory that belongs to another run may be replaced."""
    callbacks: tuple[str, ...] = ()
    """Trainer callbacks: `early_stopping`, and your own, as `file.py:Class` or `package.module:Class`."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Which model is trained."""
    dataset: DatasetConfig
    """Which problems are trained on and held out."""
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    """What a completion is rewarded for."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """How rewards become advantages."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Every other field of TRL's GRPOConfig."""
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    """Which repeated work is done once only."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """When and how held-out problems are answered."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """What is kept and shown."""
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    """How the run is started."""

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.run_name
        if name is not None and (not name.strip() or name in (".", "..") or "/" in name or "\\" in name):
            raise BadKeyError("run_name", f"={name!r} names no folder below output_dir: use a name without slashes.")
        for key in ("output_dir", "resume"):
            if getattr(self, key) == "":
                raise BadKeyError(key, "='' is empty.")
        if EARLY_STOPPING in self.callbacks and self.evaluation.every_steps == 0:
            raise BadKeyError(
                "callbacks",
                f"=[{EARLY_STOPPING}] goes by the accuracy on held-out problems, and evaluation.every_steps=0 never "
                "measures it: set that to a number of steps, or leave the callback out.",
            )
        weights = self.training.reward_weights
        if weights is not None and len(weights) != len(self.rewards.funcs):
            raise BadKeyError(
                "training.reward_weights",
                f"={weights} has {len(weights)} weights, but rewards.funcs names {len(self.rewards.funcs)} functions "
                f"({', '.join(self.rewards.funcs)}): set one weight for each, or take them "
                "away with ~training.reward_weights.",
            )
        check_objective(self.objective, self.training)
        check_speed(self.speed, self.training)
