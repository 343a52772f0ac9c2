"""The group `rewards`: the reward functions, and the limits of the workers that run them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from covey.config.values import MAX_SECONDS, BadKeyError, Group, check_tags, option, show

_COSINE = "'cosine_scaled' in rewards"
_REPETITION = "'repetition_penalty' in rewards"
_OVERLONG = "'soft_overlong' in rewards"
_IN_WORKERS = "rewards.workers != 0"


@dataclass(frozen=True, kw_only=True)
class CodeConfig(Group):
    """The programs that the rewards `code`, `binary_code` and `cf_code` run."""

    PREFIX: ClassVar[str] = "rewards.code."
    LIVE: ClassVar[str] = "'code' in graders"

    timeout: float = option(5.0, above=0, high=MAX_SECONDS)
    """Timeout in seconds for one input, or for the asserts of a row; waiting for a core does not count."""
    memory_mb: int = option(512, low=16)
    """Megabytes of address space of each process, and of files."""
    processes: int = option(16, low=1, high=1024)
    """Processes and threads of a program."""
    output_kb: int = option(1024, low=1)
    """Kilobytes that a run may write to standard output."""
    max_tests: int | None = option(None, low=1)
    """Inputs of a row that are tried, the first ones; null means all."""
    commands: dict[str, str] = field(default_factory=dict)
    """How programs of other languages than Python are run, by sh in the sandbox: `{javascript: "node {file}"}`."""
    paths: tuple[str, ...] = ()
    """Folders that programs may read, besides the interpreter and system libraries."""
    language: str = "python"
    """Language of the programs where a row has no column `language`; `cpp` is compiled with g++."""


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(Group):
    """How reward models, `model:FOLDER` or `model:OWNER/NAME` among `rewards.funcs`, are loaded and run."""

    PREFIX: ClassVar[str] = "rewards.model."
    LIVE: ClassVar[str] = "reward_models"

    name: str | None = None
    """A reward model that becomes the first of `rewards.funcs`: TRL's `reward_model_name_or_path`."""
    dtype: str = option("float32", choices=("float32", "bfloat16", "float16", "auto"))
    """Number type of the weights."""
    batch_size: int = option(32, low=1)
    """Conversations of one forward pass."""
    device: str | None = None
    """Where it runs, such as `cuda:1` or `cpu`; null takes the device of training."""
    chat_template: str | None = None
    """A Jinja template, or a file that holds one, in place of the reward tokenizer's own."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    trust_remote_code: bool = False
    """Whether code of the model's repository is run."""


@dataclass(frozen=True, kw_only=True)
class RewardsConfig(Group):
    """The reward functions. Their weights are `training.reward_weights`, as in TRL."""

    PREFIX: ClassVar[str] = "rewards."

    funcs: tuple[str, ...] = ("exact_match", "format")
    """Reward functions: by name, as `file.py:function` or `package.module:function`, and reward models, as
    `model:FOLDER` or `model:OWNER/NAME`; their rewards are summed with `training.reward_weights`. With `[]`, the
    environment's own reward is the only one."""
    on_error: str = option("stop", choices=("stop", "skip"))
    """What happens when a reward function fails: end the run (`stop`), or leave those rewards out (`skip`)."""
    workers: int | None = option(None, low=0, high=1024)
    """Worker processes for reward functions given by name; null derives it from the number of cores, 0 runs them in
    the trainer's process, without timeouts."""
    timeout: float = option(5.0, above=0, high=MAX_SECONDS, live=_IN_WORKERS)
    """Timeout in seconds for one completion, after which its worker is killed and replaced."""
    batch_timeout: float = option(60.0, above=0, high=MAX_SECONDS, live=_IN_WORKERS)
    """Timeout in seconds for one call of a function that takes a whole batch."""
    memory_mb: int | None = option(4096, low=1, live=_IN_WORKERS)
    """Megabytes that a worker may use beyond its memory once the reward is loaded (on Linux); null means no limit."""
    think_tag: str = "think"
    """Tag of the thinking part: `think` stands for `<think>` and `</think>`."""
    answer_tag: str = "answer"
    """Tag of the final answer."""
    unevaluated: str = option("reject", choices=("reject", "accept"), live="'accuracy' in graders")
    """What `accuracy` does with an answer that is equal to the gold answer but left to be evaluated (`92 + 88` for
    180) or copied out of the question: count it as the outcome `unevaluated`, with reward 0 (`reject`), or as right
    (`accept`), in evaluations too."""
    cosine_min_value_wrong: float = option(0.0, live=_COSINE)
    """`cosine_scaled`: reward of the shortest wrong completion, as open-r1 and TRL use the name."""
    cosine_max_value_wrong: float = option(-0.5, live=_COSINE)
    """`cosine_scaled`: reward of a wrong completion as long as `cosine_max_len`."""
    cosine_min_value_correct: float = option(0.5, live=_COSINE)
    """`cosine_scaled`: reward of a correct completion as long as `cosine_max_len`."""
    cosine_max_value_correct: float = option(1.0, live=_COSINE)
    """`cosine_scaled`: reward of the shortest correct completion."""
    cosine_max_len: int = option(1000, low=1, live=_COSINE)
    """`cosine_scaled`: length of a completion, in characters, at which the cosine ends."""
    repetition_n_grams: int = option(3, low=1, live=_REPETITION)
    """`repetition_penalty`: words per n-gram."""
    repetition_max_penalty: float = option(-1.0, high=0, live=_REPETITION)
    """`repetition_penalty`: the penalty of pure repetition."""
    soft_overlong_max_length: int | None = option(None, low=1, live=_OVERLONG)
    """`soft_overlong`: length in tokens with the full penalty; null means `training.max_completion_length`."""
    soft_overlong_cache: int | None = option(None, low=1, live=_OVERLONG)
    """`soft_overlong`: how many tokens before that the penalty begins; null means a fifth of the length."""
    code: CodeConfig = field(default_factory=CodeConfig)
    """What programs may use that are run for a reward."""
    model: RewardModelConfig = field(default_factory=RewardModelConfig)
    """How reward models are loaded and run."""

    def __post_init__(self) -> None:
        tags = {"rewards.think_tag": self.think_tag, "rewards.answer_tag": self.answer_tag}
        if all(isinstance(name, str) for name in tags.values()):
            check_tags(tags)
        super().__post_init__()
        if self.model.name is not None:
            object.__setattr__(self, "funcs", (f"model:{self.model.name}", *self.funcs))
            object.__setattr__(self, "model", replace(self.model, name=None))
        if not all(self.funcs):
            raise BadKeyError("rewards.funcs", f"={show(self.funcs)} must name one or more reward functions.")
