"""A real Slurm on this machine, run as plain processes out of one folder: munged, slurmctld, and a slurmd per node.

Several nodes have addresses of their own on the loopback interface, by which they are named. No cgroups and no
accounting; jobs run as the user who starts it, which must be root. Debian: `slurm-wlm` and `munge`.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NEEDS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue")
_SECONDS = 60.0

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
# A job that goes back into the queue waits until its credential is over: two minutes, unless set here.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2
JobRequeue=1
ReturnToService=2
KillWait=60
InactiveLimit=0
MinJobAge=600
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=YES State=UP
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs={cpus} RealMemory=1000 State=UNKNOWN\n"


def missing() -> str | None:
    """Why there can be no Slurm here; None when there can."""
    lacking = [name for name in NEEDS if _which(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed (Debian: slurm-wlm and munge)"
    return None if os.geteuid() == 0 else "Slurm's daemons must be started by root"


@dataclass(frozen=True)
class Cluster:
    """A Slurm that is up."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need to find it."""
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def call(self, *command: str, cwd: Path | None = None) -> str:
        """Run one of Slurm's commands."""
        done = subprocess.run(
            command, env=self.environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{self.logs()}"
        return done.stdout.strip()

    def submit(self, *words: str, cwd: Path) -> str:
        """Hand a job in; returns its number."""
        return self.call("sbatch", "--parsable", *words, cwd=cwd).partition(";")[0]

    def state(self, job: str) -> dict[str, str]:
        """What Slurm knows of a job: `JobState`, `Restarts`, `ExitCode` and so on."""
        words = self.call("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def wait_for(self, what: Callable[[], object], seconds: float, about: Callable[[], str]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, f"{about()}{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        """The last lines of the daemons' logs."""
        found = [self.folder / "munged.log", self.folder / "slurmctld.log", *self.folder.glob("slurmd-*.log")]
        return "".join(
            f"\n--- {file.name}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-15:])
            for file in found
            if file.exists()
        )


@contextmanager
def running(folder: Path, nodes: int = 1) -> Iterator[Cluster]:
    """Context manager: a running Slurm, which leaves nothing behind."""
    host = socket.gethostname().partition(".")[0]
    names = [f"127.0.0.{number + 2}" for number in range(nodes)] if nodes > 1 else [host]
    for name in ("state", *(f"spool-{name}" for name in names)):
        (folder / name).mkdir(parents=True)
    control, *ports = _free_ports(1 + nodes)
    conf = _CONF.format(folder=folder, host=host, user=getpass.getuser(), port=control)
    for name, port in zip(names, ports, strict=True):
        address = name if nodes > 1 else "127.0.0.1"
        conf += _NODE.format(name=name, host=host, address=address, port=port, cpus=os.cpu_count())
    (folder / "slurm.conf").write_text(conf, encoding="utf-8")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n", encoding="utf-8")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    folder.chmod(0o755)
    cluster = Cluster(folder)
    munged = [
        *("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}"),
        *(f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"),
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in (munged, ["slurmctld", "-D", "-c"], *(["slurmd", "-D", "-c", "-N", name] for name in names)):
            started.append(_start(command, cluster))
            if command is munged:
                cluster.wait_for((folder / "munge.socket").exists, 10, lambda: "munged does not come up")
        cluster.wait_for(lambda: _idle(cluster) == nodes, _SECONDS, lambda: "the nodes do not come up")
        yield cluster
    finally:
        if len(started) > 1:
            subprocess.run([str(_which("scancel")), "--user", getpass.getuser(), "--full"], env=cluster.environment)
            time.sleep(0.5)
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _idle(cluster: Cluster) -> int:
    done = subprocess.run(
        ["scontrol", "--oneliner", "show", "node"], env=cluster.environment, capture_output=True, text=True, check=False
    )
    return done.stdout.count("State=IDLE ")


def _start(command: Sequence[str], cluster: Cluster) -> subprocess.Popen[bytes]:
    program = _which(command[0])
    assert program is not None
    log = (cluster.folder / f"{command[0]}.out").open("ab")
    with log:
        return subprocess.Popen(
            [program, *command[1:]], env=cluster.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
