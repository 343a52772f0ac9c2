"""Slurm jobs: the job script, submitting it, and requeueing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from covey.advice import command
from covey.config import Config
from covey.errors import ConfigError
from covey.launch.machine import LaunchError, Machine
from covey.model.starter import STARTERS
from covey.runlog.files import write_atomically

WARNING_SIGNAL = "USR1"
"""The signal that Slurm sends before the time limit."""
_TEMPLATE = Path(__file__).with_name("job.sbatch.jinja")
_SECONDS = 60
STARTER_JOB = "COVEY_STARTER_JOB"
"""Environment variable in which `training.sh` puts the id of a job with the CPUs and memory of its own header."""
_SMALL_MODEL = 500e6  # bytes
_GPUS_FOR_EXAMPLE = 7


def render(
    config: Config, run_name: str, gpus: int, command: Sequence[str], folder: Path, content: str = "", file: str = ""
) -> str:
    """The job's script.

    Args:
        run_name: the run's name.
        gpus: GPUs per node.
        command: the command that every node runs.
        folder: the working directory, which relative paths in the config start from.
        content: of a config file that the script writes first.
        file: that file, as the command names it.
    """
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        options=job_options(config, run_name, gpus),
        folder=shlex.quote(str(folder)),
        setup=config.launch.slurm.setup,
        nodes=config.launch.nodes,
        cpus=config.launch.slurm.cpus,
        image=config.launch.image,
        volume=config.launch.volume,
        content=content,
        file=file,
        command=shlex.join(command),
    )


def job_options(config: Config, run_name: str, gpus: int) -> list[str]:
    """The options of sbatch, in the order in which they are written."""
    launch, slurm = config.launch, config.launch.slurm
    gres = slurm.gres or (f"gpu:{gpus}" if gpus else None)
    found = [
        _text("job-name", f"covey-{run_name}"),
        _text("account", slurm.account),
        _text("partition", slurm.partition),
        _text("qos", slurm.qos),
        _text("constraint", slurm.constraint),
        f"--nodes={launch.nodes}",
        "--ntasks-per-node=1",
        _text("gres", gres),
        _text("cpus-per-task", slurm.cpus),
        _text("mem", slurm.mem),
        _text("time", slurm.time),
        "--exclusive" if slurm.exclusive else None,
        _text("output", str(Path(launch.log_dir) / "slurm_%j.out")),
        "--open-mode=append",
        "--requeue" if slurm.requeue else "--no-requeue",
    ]
    if slurm.signal_seconds:
        # On one node only the launcher, which replaces the batch script, gets it; in srun steps all processes do, and
        # only launchers handle it.
        only = "B:" if launch.nodes == 1 else ""
        found.append(f"--signal={only}{WARNING_SIGNAL}@{slurm.signal_seconds}")
    options = [option for option in found if option is not None] + list(slurm.options)
    for option in options:
        if len(option.splitlines()) > 1:  # the shell would run what follows the line break
            raise ConfigError(
                f"The Slurm option {option!r} has several lines: give run_name and launch.* one line each."
            )
    return options


def check_starter_job(config: Config, machine: Machine, environ: Mapping[str, str] = os.environ) -> str:
    """Check that a model fits into a job for which `training.sh` has asked for the starter's needs only.

    Args:
        machine: this machine, as far as the job may use it.
        environ: the environment variables.

    Returns:
        A note for a job that has GPUs and may lack CPUs and memory; else an empty text.

    Raises:
        LaunchError: the job has no GPU, and the model is not a small one.
    """
    name, folder = config.model.name, Path(config.model.name)
    stored = sum(file.stat().st_size for file in folder.glob("*") if file.is_file())
    fits = name in STARTERS or 0 < stored < _SMALL_MODEL or config.launch.gpus == 0 or config.training.use_cpu
    if job_id(environ) is None or environ.get(STARTER_JOB) != environ["SLURM_JOB_ID"] or fits:
        return ""
    gpus = config.launch.gpus or len(machine.gpus) or _GPUS_FOR_EXAMPLE
    kept = ("--nodes", "--gres", "--cpus-per-task", "--mem", "--time", "--exclusive")
    options = " ".join(option for option in job_options(config, "run", gpus) if option.startswith(kept))
    has = "4 CPUs and 8 GB, which is what training.sh asks for, for the starter"
    again = command("launch … --slurm launch.gpus={n}", n=gpus)
    more = f"`sbatch {options} training.sh …`, or `{again}` (launch.slurm.*)"
    if machine.gpus:
        return f"This Slurm job has only {has}. Should model.name={name} need more: {more}."
    raise LaunchError(
        f"This Slurm job has {has}, and no GPU. model.name={name} needs more; ask for it before the script's name: "
        f"{more}. Add launch.gpus=0 to train it in such a job all the same."
    )


def check_sbatch() -> str:
    """The path of sbatch. Raises a `LaunchError` if it is not installed."""
    path = shutil.which("sbatch")
    if path is None:
        raise LaunchError(
            "There is no sbatch on this machine, so no Slurm job can be submitted from here. Run this on a login node "
            "of the cluster; --dry-run prints the job script anywhere."
        )
    return path


def write_private(path: Path, content: str) -> None:
    """Write a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = os.umask(0o077)
    try:
        write_atomically(path, content)
    finally:
        os.umask(before)


def submit(script: Path, environment: Mapping[str, str]) -> str:
    """Submit a job; returns its id.

    Args:
        script: the job script.
        environment: variables added to this process's environment, which Slurm passes to the job.

    Raises:
        LaunchError: sbatch rejects it.
    """
    command = [check_sbatch(), "--parsable", str(script)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, env={**os.environ, **environment}
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"sbatch did not answer within {_SECONDS} s: check whether Slurm is up (sinfo).") from None
    if done.returncode != 0:
        error = " ".join(done.stderr.split()).removeprefix("sbatch: ")
        raise LaunchError(f"sbatch rejected {script}: {error}. Its options are set by launch.slurm.*.")
    return done.stdout.strip().partition(";")[0]


def job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """The id of the batch job that this process runs in; None outside of one.

    None too in an interactive allocation (`salloc`, `srun --pty bash`), which cannot be requeued.
    """
    if "SLURM_JOB_ID" not in environ or environ.get("SLURM_JOB_NAME") in ("interactive", "bash"):
        return None
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ["SLURM_JOB_ID"]


def was_requeued(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this job has been requeued, so that its run has to be resumed."""
    return environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")


def requeue(job: str) -> str | None:
    """Requeue a job; returns the error, or None."""
    command = ["scontrol", "requeue", job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else " ".join((done.stderr or done.stdout).split())


def _text(name: str, value: object) -> str | None:
    return None if value is None else f"--{name}={shlex.quote(str(value))}"
