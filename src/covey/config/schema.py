"""The config of a run: all groups, and the keys outside of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from covey.config.groups.dataset import TASKS, DatasetConfig
from covey.config.groups.environment import EnvironmentConfig
from covey.config.groups.model import ModelConfig
from covey.config.groups.objectives import ObjectiveConfig, check_objective
from covey.config.groups.rewards import RewardsConfig
from covey.config.groups.running import EvaluationConfig, LaunchConfig, LoggingConfig, ProfileConfig, SftConfig
from covey.config.groups.sampling import RolloutConfig, SpeedConfig, check_rollout, check_token_budget
from covey.config.groups.training import TrainingConfig
from covey.config.values import BadKeyError, Group, option, show

EARLY_STOPPING = "early_stopping"
"""The built-in callback."""

CHECKS = (
    *("stop_tokens", "prompt_form", "vocabulary", "lengths", "answers", "gold_answers", "reward_calls", "environment"),
    *("memory", "all"),
)
"""The checks before a run that judge it, so that it could be started all the same."""

_LONGEST_RUN_NAME = 200
"""Bytes; file systems allow 255, and a timestamp or a suffix may be added."""


@dataclass(frozen=True, kw_only=True)
class Config(Group):
    """A run, resolved and checked."""

    run_name: str | None = None
    """Folder of the run below `output_dir`; null makes one from the time and the recipe."""
    output_dir: str = "out"
    """Folder that holds the run directories."""
    seed: int = option(0, low=0)
    """Seed of every random draw (training problems, their order, the sampling, …) but those of `dataset.seed`."""
    resume: str | bool = "auto"
    """`auto` resumes from the newest checkpoint of the same config, if there is one; `true` requires one, and accepts
    other values of the config; `false` rejects an existing run; or the path of a checkpoint."""
    stop_after_steps: int | None = option(None, low=1)
    """End this invocation cleanly after so many steps, with a checkpoint; the schedule is not changed."""
    overwrite: bool = False
    """Whether an existing run is deleted first. No key of another tool sets it."""
    ignore_checks: tuple[str, ...] = option((), choices=CHECKS)
    """Checks whose result does not stop the run: names from `covey doctor`, or `all`."""
    callbacks: tuple[str, ...] = ()
    """Trainer callbacks: `early_stopping`, and your own, as `file.py:Class` or `package.module:Class`."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Which model is trained."""
    dataset: DatasetConfig
    """Which problems are trained on and held out."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    """Which environments and tools the model meets."""
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    """What a completion is rewarded for."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """How rewards become advantages."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Every other field of TRL's GRPOConfig."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """What generates the completions in training."""
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    """Which repeated work is saved."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """When and how the model is evaluated on held-out problems."""
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    """What `covey profile` samples."""
    sft: SftConfig = field(default_factory=SftConfig)
    """What `covey sft` learns, and how."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """What is logged and shown."""
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    """How the run is started."""

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.run_name
        if name is not None and (not name.strip() or name in (".", "..") or "/" in name or "\\" in name):
            raise BadKeyError(
                "run_name", f"={name[:64]!r} does not name a folder below output_dir: use a name without slashes."
            )
        if name is not None and len(name.encode()) > _LONGEST_RUN_NAME:
            raise BadKeyError(
                "run_name", f"={show(name)} is too long: at most {_LONGEST_RUN_NAME} bytes make a folder."
            )
        if isinstance(self.resume, str) and not self.resume.strip():
            raise BadKeyError("resume", f"='{self.resume}' is empty.")
        if EARLY_STOPPING in self.callbacks and self.evaluation.every_steps == 0:
            raise BadKeyError(
                "callbacks",
                f"=[{EARLY_STOPPING}] needs the accuracy on held-out problems, which evaluation.every_steps=0 never "
                "measures: set that to a number of steps, or leave the callback out.",
            )
        self._check_rewards()
        check_objective(self.objective, self.training)
        check_token_budget(self.speed.max_tokens, self.training)
        check_rollout(self.rollout, self.training)
        if self.sft.rows is not None:
            self._check_supervised()
        elif not self.dataset.has_source and self.environment.factory is None:
            raise BadKeyError(
                "dataset",
                f" has no source: set dataset.task (built in: {', '.join(TASKS)}), dataset.id (a name on the hub), "
                "dataset.path (a local file) or dataset.mixture.datasets; dataset=none is for an environment that "
                "makes its own prompts (environment.factory).",
            )
        if self.model.reasoning_vocab_size and self.training.use_vllm and self.training.vllm_mode == "server":
            raise BadKeyError(
                "model.reasoning_vocab_size",
                f"={self.model.reasoning_vocab_size} with training.vllm_mode=server: the server must start with the "
                "expanded model, which the run has not written yet. Write it first (covey expand-vocab MODEL FOLDER "
                "--size N), and use model.name=FOLDER without model.reasoning_vocab_size; or set "
                "training.vllm_mode=colocate.",
            )

    def _check_supervised(self) -> None:
        """Check that `sft.rows` can be learnt by this run."""
        environment, vocabulary = self.environment, self.model.reasoning_vocab_size
        others = {"environment": environment.used or environment.rollout_func, "model.reasoning_vocab_size": vocabulary}
        others |= {"training.use_vllm": self.training.use_vllm, "training.staleness": self.training.staleness}
        if used := next((key for key, is_used in others.items() if is_used), None):
            raise BadKeyError(
                used,
                f" cannot be used with sft.rows={show(self.sft.rows)}: supervised training reads its completions, and "
                "evaluates with Covey's own engine. Leave one of the two out.",
            )

    def _check_rewards(self) -> None:
        """Check that something rewards a completion, and that there is one weight for each function."""
        funcs, weights = self.rewards.funcs, self.training.reward_weights
        if not funcs and self.environment.factory is None:
            raise BadKeyError("rewards.funcs", "=[] must name one or more reward functions.")
        if weights is not None and len(weights) != len(funcs):
            own = " An environment's own reward has the weight 1." if self.environment.factory is not None else ""
            raise BadKeyError(
                "training.reward_weights",
                f"={show(weights)} has {len(weights)} weights, but rewards.funcs names {len(funcs)} functions "
                f"({show(', '.join(funcs))}): set one weight for each, or remove them with ~training.reward_weights."
                f"{own}",
            )
