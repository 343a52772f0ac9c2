"""The group `launch`: on how many processes and machines a run is started, and how it is supervised."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from covey.config.groups.base import Group, option
from covey.config.values import MAX_SECONDS, BadKeyError, show

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

    gpus: int | None = option(None, low=0, high=1024)
    """GPUs per node; null takes as many as this machine has, 0 none."""
    nodes: int = option(1, low=1, high=4096)
    """Machines; more than one need Slurm, and then a vLLM server runs on the last one."""
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
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """What a Slurm job requests."""
