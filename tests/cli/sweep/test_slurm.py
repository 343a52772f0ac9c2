"""Jobs in a real Slurm: submitted, pre-empted and requeued; the finished run equals the uninterrupted one.

Slurm runs on this machine only (see `real_slurm.py`). The run is tiny and on the CPU, so the resources of `training.sh`
are lowered on sbatch's command line. All jobs are queued at the same time.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import covey
from completed import completed
from covey.cli import config_arguments
from covey.cli.main import parse
from covey.cli.sweep import run_sweep
from covey.runlog.sweep import FINISHED
from real_slurm import Cluster, missing, running
from same_run import assert_same_run, words
from sweep_jobs import JOB, states

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

WHILE_IT_RUNS = 240.0
SMALL = ("--cpus-per-task=1", "--mem=0", "--oversubscribe", "--time=30")
"""In place of the 4 CPUs and 8 GB of the header."""
REWARD = '''
import time

def variety(completions, **columns):
    """The number of different characters; slow enough for a job to be stopped in the middle."""
    time.sleep(1)
    return [float(len(set(c[-1]["content"]))) for c in completions]
'''


class Jobs:
    """A copy of the repository, already set up, and the Slurm to which its `training.sh` is submitted."""

    def __init__(self, cluster: Cluster, root: Path, model: str, folder: Path) -> None:
        self.cluster, self.folder, self.runs = cluster, folder / "clone", folder / "runs"
        for name in (".venv/bin", "scripts", "logs"):
            (self.folder / name).mkdir(parents=True)
        self.runs.mkdir()
        shutil.copy(root / "training.sh", self.folder)
        _program(self.folder / "scripts" / "setup.sh", "#!/usr/bin/env bash\n")
        covey = f'PYTHONPATH={root / "src"} OMP_NUM_THREADS=1 exec {sys.executable} -m covey "$@"'
        _program(self.folder / ".venv" / "bin" / "covey", f"#!/usr/bin/env bash\n{covey}\n")
        reward = self.runs / "slow.py"
        reward.write_text(REWARD, encoding="utf-8")
        self._model, self._more = model, (f"rewards.funcs=[{reward}:variety]", f"launch.log_dir={self.runs / 'logs'}")
        self._numbers: dict[str, str] = {}

    def words(self, name: str) -> list[str]:
        return words(self._model, self.runs, name, *self._more)[1:]

    def sbatch(self, name: str) -> None:
        self._numbers[name] = self.cluster.submit(*SMALL, "training.sh", *self.words(name), cwd=self.folder)

    def launch(self, name: str) -> None:
        """Hand the run in by `covey launch --slurm`."""
        asked = ("launch.gpus=0", "launch.slurm.cpus=1", "launch.slurm.mem='0'", "launch.slurm.exclusive=false")
        command = [str(self.folder / ".venv" / "bin" / "covey"), "launch", *self.words(name), *asked, "--slurm"]
        done = completed(command, cwd=self.folder, env=self.cluster.environment)
        assert done.returncode == 0, done.stderr
        queue = self.cluster.call("squeue", "--noheader", "--format=%i %j").splitlines()
        (self._numbers[name],) = [line.split()[0] for line in queue if name in line]

    def number(self, name: str) -> str:
        return self._numbers[name]

    def state(self, name: str) -> dict[str, str]:
        return self.cluster.state(self.number(name))

    def wait_for_checkpoint(self, name: str) -> None:
        marker = self.runs / name / "checkpoint-1" / "complete.json"
        self.cluster.wait_for(marker.exists, WHILE_IT_RUNS, lambda: self.output(name))

    def wait_for_end(self, name: str) -> None:
        self.cluster.wait_for(
            lambda: self.state(name)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
            WHILE_IT_RUNS,
            lambda: f"{self.state(name)}\n{self.output(name)}",
        )

    def output(self, name: str) -> str:
        """What the job has printed."""
        files = [*self.folder.glob(f"logs/slurm_{self.number(name)}.out"), *self.runs.glob("logs/slurm_*.out")]
        return "\n".join(file.read_text(errors="replace") for file in files if self.number(name) in file.name)


@pytest.fixture(scope="module")
def jobs(root: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    why_not = missing()
    if why_not is not None:
        pytest.skip(f"there can be no Slurm here: {why_not}")
    folder = tmp_path_factory.mktemp("slurm")
    with running(folder / "cluster") as cluster:
        yield Jobs(cluster, root, tiny_model, folder)


@pytest.fixture(scope="module")
def ended(jobs: Jobs) -> Jobs:
    """Three finished runs: one uninterrupted, one pre-empted, one warned of its time limit."""
    jobs.sbatch("preempted")
    jobs.sbatch("warned")
    jobs.launch("straight")
    jobs.wait_for_checkpoint("preempted")
    jobs.cluster.call("scontrol", "requeue", jobs.number("preempted"))
    jobs.wait_for_checkpoint("warned")
    jobs.cluster.call("scancel", "--batch", "--signal=USR1", jobs.number("warned"))
    for name in ("straight", "preempted", "warned"):
        jobs.wait_for_end(name)
    return jobs


@pytest.mark.parametrize(("name", "restarts"), [("straight", "0"), ("preempted", "1"), ("warned", "1")])
def test_every_job_completes(ended: Jobs, name: str, restarts: str) -> None:
    state = ended.state(name)
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("COMPLETED", "0:0", restarts), ended.output(
        name
    )


@pytest.mark.parametrize("name", ["preempted", "warned"])
def test_a_stopped_job_equals_the_uninterrupted_one(ended: Jobs, name: str) -> None:
    output = ended.output(name)
    assert "Resuming from checkpoint-" in output, output
    assert_same_run(ended.runs / name, ended.runs / "straight")


def test_training_sh_requests_its_resources(jobs: Jobs) -> None:
    """Its own lines reach Slurm: the job is only inspected."""
    small = ("--hold", "--cpus-per-task=1", "--mem=0")  # the machine has no GPU, which the header must not ask for
    number = jobs.cluster.submit(*small, "training.sh", cwd=jobs.folder)
    state = jobs.cluster.state(number)
    jobs.cluster.call("scancel", number)
    assert state["JobName"] == "covey"
    assert state["TimeLimit"] == "01:00:00"
    assert state["NumNodes"] in ("1", "1-1")  # at least and at most, while it is not placed
    assert state["Requeue"] == "1"
    assert state["OverSubscribe"] != "NO"  # not exclusive
    assert "gpu" not in " ".join(value for key, value in state.items() if "TRES" in key.upper())
    assert state["StdOut"] == str(jobs.folder / "logs" / f"slurm_{number}.out")


def test_a_sweep_is_an_array_of_jobs(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through submitit, with fake jobs in place of `covey train`."""
    for name, value in jobs.cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(covey.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    words = ("seed=1,2", "run_name=s", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=main")
    request = config_arguments.read_request(parse(["train", "--multirun", *words]))
    assert run_sweep(request, words, (sys.executable, str(tmp_path / "job.py"))) == 0
    assert states(tmp_path / "out" / "s") == {"0_seed-1": FINISHED, "1_seed-2": FINISHED}
    output = jobs.cluster.call("scontrol", "--oneliner", "show", "job").splitlines()
    assert sum(" ArrayTaskId=" in line and " Partition=main " in line for line in output) == 2, output


def _program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
