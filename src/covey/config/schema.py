"""What a run is: frozen dataclasses, every field documented where it stands and checked when the object is made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from covey.config.training import TrainingConfig
from covey.config.values import BadKeyError, check_choice, check_range, coerce

MAX_SEED = 2**32 - 1  # numpy takes no larger one


def _option(
    default: Any = dataclasses.MISSING,
    *,
    choices: tuple[Any, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> Any:
    """A dataclass field with the values that it may take."""
    checks = {"choices": choices, "low": low, "high": high, "above": above}
    return field(default=default, metadata=checks)


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Checks every field against its own annotation and `_option` when the object is made."""

    PREFIX: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, _Group | TrainingConfig):
                continue
            key = self.PREFIX + item.name
            value = coerce(key, value, str(item.type))
            if item.metadata.get("choices"):
                check_choice(key, value, item.metadata["choices"])
            check_range(key, value, *(item.metadata.get(bound) for bound in ("low", "high", "above")))
            object.__setattr__(self, item.name, value)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Group):
    """Which model is trained and how it is loaded."""

    PREFIX: ClassVar[str] = "model."

    name: str = "starter"
    """A name on the Hugging Face hub, a local folder, or `starter` for the small model that comes with Covey."""
    revision: str | None = None
    """Branch, tag or commit of a hub model; null means its main branch."""
    dtype: str | None = _option(None, choices=("float32", "bfloat16", "float16", "auto"))
    """Number type the weights are loaded in; `auto` takes the one they were saved in, null leaves it to the run."""
    attn_implementation: str | None = None
    """Attention code, as transformers names it (`sdpa`, `eager`, `flash_attention_2`, ...); null lets it choose."""
    trust_remote_code: bool = False
    """Whether a hub model may run Python code of its own on this machine."""
    chat_template: str | None = None
    """A chat template, or the file that holds one, in place of the tokenizer's own."""


@dataclass(frozen=True, kw_only=True)
class DifficultyConfig(_Group):
    """What the problems of a built-in task look like."""

    PREFIX: ClassVar[str] = "dataset.difficulty."

    min_digits: int = _option(2, low=1, high=18)
    """Fewest digits of an operand."""
    max_digits: int = _option(4, low=1, high=18)
    """Most digits of an operand."""
    min_operands: int = _option(2, low=2, high=16)
    """Fewest operands of a problem."""
    max_operands: int = _option(2, low=2, high=16)
    """Most operands of a problem."""
    operators: tuple[str, ...] = _option(("+", "-"), choices=("+", "-", "*"))
    """Operators that problems are made with."""
    allow_negative: bool = False
    """Whether an answer may be below zero."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for low, high in (("min_digits", "max_digits"), ("min_operands", "max_operands")):
            least, most = getattr(self, low), getattr(self, high)
            if least > most:
                raise BadKeyError(self.PREFIX + low, f"={least} must not be above {self.PREFIX}{high}={most}.")
        if not self.operators:
            raise BadKeyError(self.PREFIX + "operators", "=[] is empty: name one or more of +, -, *.")


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(_Group):
    """Which problems are trained on and held out. The source is one of `task`, `id` and `path`; `path` beats `id`."""

    PREFIX: ClassVar[str] = "dataset."

    task: str | None = _option(None, choices=("arithmetic",))
    """A task built into Covey."""
    id: str | None = None
    """A data set on the Hugging Face hub."""
    path: str | None = None
    """A local json, jsonl, csv or parquet file, or a folder of such files; read in place of `id` when both are set."""
    test_path: str | None = None
    """A local file with the held-out problems that belong to `path`."""
    config: str | None = None
    """Configuration of the hub data set (its subset), where it has several."""
    revision: str | None = None
    """Branch, tag or commit of the hub data set."""
    train_split: str = "train"
    """The split that is trained on."""
    test_split: str | None = "test"
    """The split that is held out for evaluation; null takes the held-out problems from the training split."""
    prompt_column: str | None = None
    """The column that holds the problem; null looks for one under the usual names."""
    answer_column: str | None = None
    """The column that holds the answer or the worked solution; null looks for one under the usual names."""
    answer_extractor: str = _option("none", choices=("none", "gsm8k", "boxed", "answer_tag"))
    r"""Where the answer stands in that column: all of it, after `####`, in `\boxed{}`, or in `<answer>` tags."""
    system_prompt: str | None = None
    """A system message put before every problem."""
    user_prompt_template: str | None = None
    """What the user's message looks like; `{prompt}` stands for the problem."""
    max_train_samples: int | None = _option(None, low=1)
    """Train on the first so many rows only."""
    test_size: int = _option(256, low=0)
    """Held-out problems at most."""
    train_size: int = _option(8192, low=1)
    """How many training problems a built-in task draws."""
    hard_size: int = _option(0, low=0)
    """Size of the harder held-out set of a built-in task; 0 means none."""
    difficulty: DifficultyConfig = field(default_factory=DifficultyConfig)
    """What the problems of a built-in task look like."""
    hard_difficulty: DifficultyConfig = field(default_factory=lambda: DifficultyConfig(min_digits=5, max_digits=5))
    """What the harder held-out problems look like."""

    @property
    def label(self) -> str:
        """A short name of the source, without slashes: for titles and run names."""
        return self.task or (Path(self.path).stem if self.path else str(self.id).rpartition("/")[2])

    def __post_init__(self) -> None:
        super().__post_init__()
        other = "path" if self.path else "id"
        if not (self.task or self.path or self.id):
            raise BadKeyError(
                "dataset",
                " has no source: set dataset.task (built in: arithmetic), dataset.id (a name on the hub) or "
                "dataset.path (a local file).",
            )
        if self.task and (self.path or self.id):
            raise BadKeyError(
                f"dataset.{other}",
                f"={getattr(self, other)} and dataset.task={self.task} both name a source: to use dataset.{other}, set "
                "dataset.task=null as well, or choose another group such as dataset=gsm8k.",
            )
        if self.test_path and not self.path:
            raise BadKeyError("dataset.test_path", f"={self.test_path} belongs to dataset.path, which is not set.")
        if self.user_prompt_template is not None and "{prompt}" not in self.user_prompt_template:
            raise BadKeyError("dataset.user_prompt_template", " must contain {prompt}, where the problem goes.")


@dataclass(frozen=True, kw_only=True)
class RewardsConfig(_Group):
    """What a completion is rewarded for. The weights are `training.reward_weights`, TRL's own name."""

    PREFIX: ClassVar[str] = "rewards."

    funcs: tuple[str, ...] = ("exact_match", "format")
    """Reward functions by name; their rewards are added up with `training.reward_weights`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.funcs or not all(self.funcs):
            raise BadKeyError("rewards.funcs", f"={list(self.funcs)} must name one or more reward functions.")


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(_Group):
    """How the rewards of a group become advantages."""

    PREFIX: ClassVar[str] = "objective."

    name: str = _option("grpo", choices=("grpo",))
    """`grpo` leaves TRL's own advantages as they are."""


@dataclass(frozen=True, kw_only=True)
class SpeedConfig(_Group):
    """Which repeated work is done once only."""

    PREFIX: ClassVar[str] = "speed."


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(_Group):
    """When and how held-out problems are answered. How many there are is `dataset.test_size`."""

    PREFIX: ClassVar[str] = "evaluation."

    every_steps: int = _option(50, low=0)
    """Evaluate before the first step, after every so many steps, and at the end; 0 means never."""
    num_samples: int = _option(1, low=1)
    """Completions per problem."""
    max_problems: int | None = _option(None, low=1)
    """Evaluate on the first so many problems only."""
    temperature: float = _option(1.0, low=0)
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float = _option(1.0, above=0, high=1)
    """Sample from the likeliest tokens that make up this share of the probability."""
    top_k: int = _option(0, low=0)
    """Sample from so many likeliest tokens; 0 means all."""
    max_completion_length: int | None = _option(None, low=1)
    """Longest completion in tokens; null takes `training.max_completion_length`."""
    batch_size: int = _option(64, low=1)
    """Completions generated at a time."""


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(_Group):
    """What is kept and shown while training. Trackers are `training.report_to`."""

    PREFIX: ClassVar[str] = "logging."

    completions_every_steps: int = _option(1, low=0)
    """Write the completions of every so many steps into the run directory; 0 means never."""
    sample_completions: int = _option(3, low=0)
    """Completions shown in the live display."""


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(_Group):
    """On how many processes and machines the run is started."""

    PREFIX: ClassVar[str] = "launch."


@dataclass(frozen=True, kw_only=True)
class Config(_Group):
    """A run, resolved and checked."""

    run_name: str | None = None
    """Folder of the run below `output_dir`; null makes one from the time and the recipe."""
    output_dir: str = "out"
    """Folder that holds the run directories."""
    seed: int = _option(0, low=0, high=MAX_SEED)
    """Fixes the order of the data, the sampling and every other random draw."""
    resume: str | bool = "auto"
    """`auto` goes on from a checkpoint of the same config, `true` demands one, `false` starts anew, or a path."""
    stop_after_steps: int | None = _option(None, low=1)
    """End this invocation cleanly after so many steps, with a checkpoint; the schedule stays as it is."""
    overwrite: bool = False
    """Whether a run directory that belongs to another run may be replaced."""
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
        weights = self.training.reward_weights
        if weights is not None and len(weights) != len(self.rewards.funcs):
            raise BadKeyError(
                "training.reward_weights",
                f"={weights} has {len(weights)} weights, but rewards.funcs names {len(self.rewards.funcs)} functions "
                f"({', '.join(self.rewards.funcs)}): set one weight for each, or take them "
                "away with ~training.reward_weights.",
            )
