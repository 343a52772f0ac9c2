"""The groups `evaluation`, `profile`, `sft`, `logging` and `launch`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from covey.config.groups.dataset import DATA_FILES
from covey.config.groups.sampling import check_engine
from covey.config.values import MAX_SECONDS, MAX_TOKENS, BadKeyError, Group, option, show

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


@dataclass(frozen=True, kw_only=True)
class ProfileConfig(Group):
    """What `covey profile` samples, as training would, to say whether a run could learn its problems."""

    PREFIX: ClassVar[str] = "profile."

    group: int | None = option(None, low=2, high=1_000_000)
    """Completions of a group, the G of pass@G; null takes `training.num_generations`."""
    samples: int | None = option(None, low=2, high=1_000_000)
    """Completions of each problem, not fewer than a group; null takes as many."""
    split: str = option("train", choices=("train", "test", "validation", "hard", "single"))
    """Which problems: those to train on, in a random order, or one of the held-out sets."""
    problems: int | None = option(None, low=1)
    """Most problems; null means 256, or with `--keep` every row, as far as the time allows."""
    minutes: float = option(5.0, above=0, high=MAX_SECONDS / 60)
    """Minutes of sampling and grading, after which no further round of problems begins; one round is always made."""


@dataclass(frozen=True, kw_only=True)
class SftConfig(Group):
    """Supervised training (`covey sft`): what is learnt, and what TRL's SFTConfig has beyond the fields of `training`.

    Of `training`, what only GRPO has is not read; the defaults of `covey sft` are those of `training=sft`.
    """

    PREFIX: ClassVar[str] = "sft."
    LIVE: ClassVar[str] = "sft.rows"

    rows: str | None = None
    """What is learnt: a data file, a folder or a data set on the hub with `prompt` and `completion`, or `messages`; or
    a run, whose completions are. Null trains with GRPO."""
    right_only: bool = True
    """Of rows that were judged, take those that were right: by `outcome`, else by a reward of at least 1."""
    per_prompt: int | None = option(None, low=1)
    """Most completions of one prompt, different ones, drawn with `seed`; null takes all that differ."""
    max_length: int | None = option(1024, low=2, high=MAX_TOKENS)
    """Longest row in tokens, prompt and completion: longer ones are left out; null has no limit. With `packing`, the
    length of what they are packed into."""
    completion_only_loss: bool = True
    """Whether only what the model writes is learnt, its end of turn included; else the prompt too."""
    every_turn: bool = True
    """Whether every turn of the assistant in `messages` is learnt; else the last one."""
    loss_type: str = option("nll", choices=("nll", "dft"))
    """`nll`: the negative log-likelihood; `dft`: each token's weighted by its probability (arXiv:2508.05629)."""
    packing: bool = False
    """Whether rows are packed into blocks of `max_length` tokens."""
    packing_strategy: str = option("bfd", choices=("bfd", "bfd_split", "wrapped"), live="sft.packing")
    """How rows are packed: `bfd`, whole rows; `bfd_split`, long ones split; `wrapped`, cut where a block ends, whose
    rows see each other."""
    padding_free: bool = False
    """Whether the rows of a micro-batch are one sequence without padding; needs FlashAttention."""
    neftune_noise_alpha: float | None = option(None, low=0)
    """Noise on the embeddings while training (arXiv:2310.05914); null for none."""
    group_by_length: bool = False
    """Whether micro-batches hold rows of about the same length, with less padding."""
    activation_offloading: bool = False
    """Whether activations wait in the CPU's memory for the backward pass."""

    @property
    def from_hub(self) -> bool:
        """Whether the rows are those of a data set on the hub, and of no file here."""
        path = Path(self.rows or "").expanduser()
        named = str(self.rows).count("/") == 1 and not str(self.rows).endswith(DATA_FILES)
        return named and not path.exists() and not path.parent.is_dir()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows is not None and not self.rows.strip():
            raise BadKeyError("sft.rows", "='' names nothing: give a file, a data set on the hub or a run.")
        if self.packing and self.max_length is None:
            raise BadKeyError("sft.packing", "=true needs the length of a block: set sft.max_length.")


_IN_WANDB = "'wandb' in trackers"


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(Group):
    """What is logged and shown while training. Trackers are set by `training.report_to`, or by a mode of W&B."""

    PREFIX: ClassVar[str] = "logging."

    completions_every_steps: int = option(1, low=0)
    """Write the completions of every so many steps into the run directory; 0 means never."""
    sample_completions: int = option(3, low=0)
    """Completions shown in the live display."""
    sampler_gap: bool = option(
        False, live="not training.use_vllm or not training.vllm_importance_sampling_correction or truncates"
    )
    """Measure at every generation how far the sampler's log-probs are from the trainer's (`sampling/logp_gap`), where
    that needs a forward pass of its own; where it does not, as with vLLM, it is always measured."""
    run_name: str | None = option(None, live="trackers")
    """Name of the run in trackers; null means `run_name`."""
    project: str | None = option(None, live="trackers")
    """Project that trackers log to (W&B, Trackio); null leaves it to the tracker."""
    entity: str | None = option(None, live=_IN_WANDB)
    """User or team that the W&B project belongs to."""
    group: str | None = option(None, live=_IN_WANDB)
    """Group of W&B runs that this one belongs to."""
    tags: tuple[str, ...] = option((), live=_IN_WANDB)
    """Tags of the run in W&B."""
    notes: str | None = option(None, live=_IN_WANDB)
    """Notes on the run in W&B."""
    mode: str = option("online", choices=("online", "offline", "disabled"))
    """Whether trackers upload their logs, keep them in files, or do nothing. `online` and `offline` turn W&B on where
    no tracker is named."""


_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}|UNLIMITED", re.IGNORECASE)
_ONE_LINE = ("account", "partition", "qos", "constraint", "gres", "mem")


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(Group):
    """What a Slurm job requests (`covey launch --slurm`). Number of nodes and GPUs: `launch.nodes`, `launch.gpus`."""

    PREFIX: ClassVar[str] = "launch.slurm."

    account: str | None = None
    """Account that the job is charged to; null takes the user's default."""
    partition: str | None = None
    """Partition to run in; null takes the cluster's default."""
    qos: str | None = None
    """Quality of service; null takes the default."""
    constraint: str | None = None
    """Features that the nodes must have, for instance `a100`."""
    gres: str | None = None
    """Generic resources of every node, for instance `gpu:a100:8`; null asks for `gpu:` and the number of GPUs."""
    cpus: int | None = option(64, low=1)
    """CPUs of every node; null leaves it to the cluster."""
    mem: str | int | None = "256G"
    """Memory of every node, in megabytes or with a unit, 0 for all of it; null leaves it to the cluster."""
    time: str | int = "72:00:00"
    """Time limit, as Slurm writes it: `hours:minutes:seconds` or `days-hours`; in a file, put it in quotes."""
    exclusive: bool = True
    """Whether the job has its nodes to itself."""
    signal_seconds: int = option(300, low=0, high=65_535)
    """Seconds before the time limit at which the run writes a checkpoint and is requeued; 0: never."""
    requeue: bool = True
    """Whether the job is requeued when it is pre-empted, reaches its time limit, or its node fails."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, for instance `--mail-type=END`."""
    setup: tuple[str, ...] = ()
    """Shell commands to run first, for instance `module load cuda`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.time, int):
            raise BadKeyError(
                "launch.slurm.time",
                f"={self.time} is a number, which is what YAML makes of 72:00:00 without quotes: write '72:00:00'.",
            )
        if not _TIME.fullmatch(self.time):
            raise BadKeyError(
                "launch.slurm.time",
                f"={show(self.time)} is not a Slurm time limit: write hours:minutes:seconds or days-hours, such as "
                "72:00:00 or 3-0.",
            )
        for name in _ONE_LINE:
            value = getattr(self, name)
            if isinstance(value, str) and (not value.strip() or "\n" in value):
                raise BadKeyError(f"launch.slurm.{name}", f"={show(value)} must be one line of text, or null.")
        for line in self.options:
            if not line.startswith("-") or "\n" in line:
                raise BadKeyError(
                    "launch.slurm.options",
                    f": {show(line)} is not an sbatch option: each is one text that starts with a dash, such as "
                    "--mail-type=END.",
                )


_OF_OUR_SERVER = "vllm in ('server', 'open')"


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(Group):
    """On how many processes and machines the run is started, and how it is supervised (`covey launch`)."""

    PREFIX: ClassVar[str] = "launch."

    backend: str = option("local", choices=("local", "slurm", "ray"))
    """Where `covey launch` starts the run: on this machine, as a Slurm job (as `--slurm` does), or on a Ray cluster."""
    gpus: int | None = option(None, low=0, high=1024)
    """GPUs per node; null takes as many as this machine has, 0 none."""
    nodes: int = option(1, low=1, high=4096)
    """Machines, each with a `covey launch`; a vLLM server then runs on the last one."""
    node_rank: int | None = option(None, low=0, live="launch.nodes > 1")
    """Which of several nodes this is, from 0; null takes it from the variables of torchrun, SkyPilot or Slurm."""
    master: str | None = option(None, live="launch.nodes > 1")
    """Address of node 0, `HOST` or `HOST:PORT`, with several nodes; null takes it from these variables."""
    start_timeout: float = option(600.0, above=0, high=MAX_SECONDS, live="launch.nodes > 1 or launch.backend == 'ray'")
    """Seconds that several nodes wait for each other at the start, and that Ray has to provide them."""
    node_restarts: int = option(0, low=0, live="launch.backend == 'ray'")
    """How often the run is placed again on Ray and resumed after a node was lost."""
    num_processes: int | None = option(None, low=1, high=1024)
    """Training processes per node; null means one for each GPU not used by a vLLM server, or one without GPUs."""
    vllm_model: str | None = option(None, live=_OF_OUR_SERVER)
    """Model that a vLLM server loads; null means `model.name`."""
    vllm_own_gpu: bool = option(False, live="vllm in ('server', 'open', 'elsewhere')")
    """Whether vLLM gets GPUs of its own where a node has enough and `training.vllm_mode` is not set: then `covey
    launch` takes `vllm_mode=server`. Recipes with `vllm_device` set it."""
    accelerate: str | None = None
    """How training is distributed: `ddp`, `fsdp2`, `zero2` or `zero3`, or an accelerate config file of your own, in
    which the number of processes is replaced; null means `ddp` with several processes, and `fsdp2` where
    `model.mesh_shape` shards the model."""
    main_process_port: int | None = option(None, low=1, high=65535)
    """Rendezvous port of the training processes; null picks a free one."""
    server_timeout: float = option(600.0, above=0, high=MAX_SECONDS, live="vllm in ('server', 'open', 'elsewhere')")
    """Seconds that a vLLM server may take to start."""
    server_restarts: int = option(3, low=0, live=_OF_OUR_SERVER)
    """How often a vLLM server that dies is restarted."""
    step_timeout: float | None = option(3600.0, above=0, high=MAX_SECONDS)
    """Seconds without any progress (a step, an evaluation, a checkpoint) after which training counts as hanging; null
    never does."""
    hang_restarts: int = option(1, low=0, live="launch.step_timeout")
    """How often a run that hangs is stopped and resumed."""
    stop_timeout: float = option(120.0, above=0, high=MAX_SECONDS)
    """Seconds that training has to write its checkpoint on a stop signal, before it is killed."""
    sync_tolerance: float | None = option(None, above=0, live="training.use_vllm")
    """Largest mean difference between the log-probabilities of vLLM and of the trainer, in nats per token, right after
    a weight sync: beyond it the run stops. Null means 0.001 where both compute in float32, else 0.1."""
    log_dir: str = "logs"
    """Folder for the logs of the launcher, the server, the training processes and Slurm."""
    image: str | None = None
    """Container image that `--render` writes into a manifest."""
    volume: str | None = None
    """Shared storage that `--render` writes into a manifest, `NAME:/PATH`, with the path where the run finds it;
    relative folders of the run are put there."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """What a Slurm job requests."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image is not None and not re.fullmatch(r"\S+", self.image):
            raise BadKeyError("launch.image", f"={show(self.image)} must be one word, such as registry/name:tag.")
        if self.volume is not None and not re.fullmatch(r"[^:\s]+:/[^:\s]*", self.volume):
            raise BadKeyError(
                "launch.volume",
                f"={show(self.volume)} must be NAME:/PATH: the storage, and where the run finds it.",
            )
