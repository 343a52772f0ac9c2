"""Running as a Slurm job: the script, handing it in, and putting a job back into the queue."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from covey.config import Config
from covey.launch.machine import LaunchError

WARNING_SIGNAL = "USR1"
"""What Slurm sends before the time limit."""
_TEMPLATE = Path(__file__).with_name("job.sbatch.jinja")
_SECONDS = 60


def render(config: Config, run_name: str, gpus: int, command: Sequence[str], folder: Path) -> str:
    """The job's script.

    Args:
        config: the run's config.
        run_name: the run's name.
        gpus: of every node.
        command: what every node runs.
        folder: where it runs: files that the config names are looked for from there.
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
        # To the launcher alone where it stands in place of the script; in steps of srun everything gets it, and only
        # the launchers listen.
        only = "B:" if launch.nodes == 1 else ""
        found.append(f"--signal={only}{WARNING_SIGNAL}@{slurm.signal_seconds}")
    return [option for option in found if option is not None] + list(slurm.options)


def check_sbatch() -> str:
    """The path of sbatch.

    Raises:
        LaunchError: it is not here.
    """
    path = shutil.which("sbatch")
    if path is None:
        raise LaunchError(
            "There is no sbatch on this machine, so no Slurm job can be handed in from here. Run this on a login node "
            "of the cluster; --dry-run prints the job's script anywhere."
        )
    return path


def submit(script: Path) -> str:
    """Hand a job in; returns its number.

    Raises:
        LaunchError: what sbatch says against it.
    """
    command = [check_sbatch(), "--parsable", str(script)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"sbatch did not answer within {_SECONDS} s: see whether Slurm is up (sinfo).") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split()).removeprefix("sbatch: ")
        raise LaunchError(f"sbatch does not take {script}: {said}. What it asks for is set by launch.slurm.*.")
    return done.stdout.strip().partition(";")[0]


def job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """The number of the Slurm job that this process runs in, as `sbatch` gave it; None outside of one.

    An interactive allocation (`salloc`, `srun --pty bash`) is none: nobody could put it back into the queue.
    """
    if "SLURM_JOB_ID" not in environ or environ.get("SLURM_JOB_NAME") in ("interactive", "bash"):
        return None
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ["SLURM_JOB_ID"]


def is_again(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this job was in the queue before: what it had done is to be gone on from."""
    return environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")


def requeue(job: str) -> str | None:
    """Put a job back into the queue; returns what stood against it, or None."""
    command = ["scontrol", "requeue", job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else " ".join((done.stderr or done.stdout).split())


def _text(name: str, value: object) -> str | None:
    return None if value is None else f"--{name}={shlex.quote(str(value))}"
