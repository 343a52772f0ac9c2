"""`launch.backend=ray`: each node of a run as an actor of a Ray cluster, and each job of a sweep as a task.

An actor runs the `covey launch` of its node as a process under a guard (`guard.py`), which stops it when the actor is
gone; the driver asks every actor once a second for new output and for the exit code. What the launchers say to each
other travels as on any cluster, through the run's log folder (`nodes.py`).
"""

from __future__ import annotations

import dataclasses
import os
import platform
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from covey._version import __version__
from covey.advice import install
from covey.config import Config, to_yaml
from covey.config.compose.build import flatten
from covey.config.secrets import RUN_KEY, VARIABLE, for_children
from covey.errors import CoveyError
from covey.launch.machine import RESUME_COMMAND, LaunchError, Machine
from covey.launch.plan import TRAINER, LaunchPlan, make_plan
from covey.launch.process import ManagedProcess
from covey.launch.slurm import write_private
from covey.launch.supervise import LaunchConsole
from covey.runlog.directory import RunDirectory
from covey.workers.signals import STOPS, signal_handler

THREADS = "OMP_NUM_THREADS"
"""Ray sets it to an actor's or a task's number of CPUs; Covey chooses for each of its processes."""
COMMAND = ("-m", "covey.cli.main", "launch")
"""What a node runs, with the arguments of its `covey launch`."""
_CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_SEEN_SECONDS = 5.0
"""After which another machine sees a new file on shared storage."""
_SILENT_SECONDS = 60.0
"""A node that Ray calls alive, and that answers nothing for so long, is lost."""
_GRACE_SECONDS = 45.0
"""How long the launchers of other nodes may take to end by themselves, once one has failed."""


def connect() -> Any:
    """The module `ray`, connected to the cluster of `RAY_ADDRESS`, of the Ray job that this is, or of this machine.

    Raises:
        LaunchError: Ray is not installed, there is no cluster, or it has another version.
    """
    try:
        import ray
    except ImportError:
        raise LaunchError(f"launch.backend=ray needs Ray, which is not installed here: {install('ray')}.") from None
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS") or "auto"
    try:
        host, _, port = address.rpartition(":")
        if address != "auto":  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        said = str(error).partition("\n")[0].strip().rstrip(".")
        raise LaunchError(
            f"launch.backend=ray found no usable Ray cluster ({address}): {said}. Start this on a node of the "
            "cluster, set RAY_ADDRESS=HOST:PORT (of the cluster, not of its dashboard), or submit it: "
            "`ray job submit -- covey launch …`."
        ) from None
    return ray


def folder_of_driver(ray: Any, config: Config) -> Path | None:
    """The folder that relative paths start from on every node; None where Ray gives each node a copy of it.

    Raises:
        LaunchError: the run would be written into such copies.
    """
    if not ray.get_runtime_context().runtime_env.get("working_dir"):
        return Path.cwd()
    for key, value in (("output_dir", config.output_dir), ("launch.log_dir", config.launch.log_dir)):
        if not Path(value).is_absolute():
            raise LaunchError(
                f"{key}={value} is relative, and Ray's working_dir gives every node a copy of its own to start from: "
                "give the whole path of a folder that all nodes share."
            )
    return None


def threads_of_driver(ray: Any) -> str | None:
    """`OMP_NUM_THREADS` as the user has set it; None where Ray has."""
    of_job = ray.get_runtime_context().runtime_env.get("env_vars", {}).get(THREADS)
    return of_job or (None if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else os.environ.get(THREADS))


def enter(folder: Path | None, threads: str | None) -> None:
    """In an actor or a task: its folder, and the variable that Ray has set for it."""
    os.environ.pop(THREADS, None)
    if threads is not None:
        os.environ[THREADS] = threads
    if folder is None:
        return
    try:
        os.chdir(folder)
    except OSError:
        raise LaunchError(
            f"{folder}, which relative paths start from, is not there on {socket.gethostname()}: start `covey launch` "
            "in a folder that all nodes share, or give Ray a working_dir and whole paths."
        ) from None


class NodeActor:
    """One node of a run, within its Ray actor."""

    def about(self, folder: Path | None, threads: str | None, tokens: Mapping[Path, str]) -> dict[str, str]:
        """Enter the run's folder; this node's host, address, id and versions, and which tokens it cannot read."""
        import ray

        enter(folder, threads)
        missing, until = dict(tokens), time.monotonic() + _SEEN_SECONDS
        while missing and time.monotonic() < until:
            for file, token in tokens.items():
                with suppress(OSError):
                    list(file.parent.iterdir())  # so that NFS looks again
                    if file.read_text(encoding="utf-8") == token:
                        missing.pop(file, None)
            time.sleep(_LOOK_SECONDS / 4)
        return {
            "host": socket.gethostname(),
            "address": ray.util.get_node_ip_address(),
            "id": ray.get_runtime_context().get_node_id(),
            "missing": ", ".join(str(file.parent) for file in missing),
            **_versions(ray),
        }

    def start(
        self, config: str, words: Sequence[str], environment: Mapping[str, str], log: Path, stop_seconds: float
    ) -> None:
        """Start this node's launcher.

        Args:
            config: the resolved config as YAML.
            words: the command, whose `{config}` becomes the path of the config.
            environment: further variables.
            log: the file for its output.
            stop_seconds: time between the stop signal and SIGKILL.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="covey-ray-")
        file = Path(self._folder.name) / "config.yaml"
        write_private(file, config)
        self._log, self._read = log, log.stat().st_size if log.exists() else 0
        command = [sys.executable, *(str(file) if word == "{config}" else word for word in words)]
        self._process = ManagedProcess(command, environment, log, stop_seconds)

    def look(self) -> tuple[str, int | None]:
        """What the launcher has printed since the last call, and its exit code once it has ended."""
        code = self._process.poll()
        try:
            with self._log.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            content = b""
        if code is None:
            content = content[: content.rfind(b"\n") + 1]
        else:
            self._process.close()
            self._folder.cleanup()
        self._read += len(content)
        return content.decode(errors="replace"), code

    def stop(self, *, kill: bool = False) -> None:
        """Have the launcher stop its part of the run with a checkpoint, or kill it."""
        if kill:
            self._process.kill()
        else:
            self._process.stop()


def _versions(ray: Any) -> dict[str, str]:
    return {"Python": platform.python_version(), "Ray": ray.__version__, "Covey": __version__}


class _Nodes:
    """The actors of one attempt, in the order of their ranks."""

    def __init__(self, ray: Any, plan: LaunchPlan, console: LaunchConsole) -> None:
        self._ray, self._plan, self._console = ray, plan, console
        self._group: Any = None
        self._actors: list[Any] = []
        self._asked: dict[int, tuple[Any, float]] = {}
        self._about: list[dict[str, str]] = []
        self.codes: dict[int, int] = {}
        """Exit codes of the launchers that have ended."""
        self.lost: list[str] = []
        """What is said of nodes that were lost."""

    def place(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Reserve one bundle on each node, and make the actors; False if that was stopped."""
        ray, plan = self._ray, self._plan
        trainers = sum(process.name == TRAINER for process in plan.processes)
        bundle = {"GPU": plan.gpus, "CPU": 1} if plan.gpus else {"CPU": plan.num_processes // trainers}
        self._group = ray.util.placement_group([bundle] * plan.nodes, strategy="STRICT_SPREAD")
        wanted = f"{plan.nodes} nodes with " + " and ".join(f"{count} {name}s" for name, count in bundle.items())
        ready, began = self._group.ready(), time.monotonic()
        while not ray.wait([ready], timeout=_LOOK_SECONDS)[0]:
            if stopped():
                return False
            if time.monotonic() > began + seconds:
                there = "; ".join(
                    f"{node['NodeManagerHostname']} "
                    + " ".join(f"{node['Resources'].get(name, 0):g} {name}s" for name in bundle)
                    for node in ray.nodes()
                    if node["Alive"]
                )
                raise LaunchError(
                    f"Ray did not give {wanted} each within {seconds:g} s (launch.start_timeout). Its nodes have: "
                    f"{there}. Others may be using them (`ray status`)."
                )
            self._console.waiting(f"waiting for {wanted} each ({time.monotonic() - began:.0f} s)", [])
        self._console.waiting("", [])
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        self._actors = [
            ray.remote(NodeActor)
            .options(
                num_cpus=bundle["CPU"],
                num_gpus=plan.gpus,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=strategy(self._group, node),
            )
            .remote()
            for node in range(plan.nodes)
        ]
        return True

    def check(
        self, folder: Path | None, threads: str | None, seconds: float, stopped: Callable[[], bool]
    ) -> list[dict[str, str]]:
        """Where the nodes are; nothing if that was stopped, or one was `lost`. Raises a `LaunchError` where one has
        other versions, does not share the folders, or does not answer."""
        ray, plan = self._ray, self._plan
        tokens = {
            at.absolute() / f".covey-{secrets.token_hex(8)}": secrets.token_hex(8)
            for at in {plan.run.parent, plan.logs}
        }
        try:
            for file, token in tokens.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_private(file, token)
            asked = [actor.about.remote(folder, threads, tokens) for actor in self._actors]
            left, began = asked, time.monotonic()
            while left:
                _, left = ray.wait(left, num_returns=len(left), timeout=_LOOK_SECONDS)
                if stopped():
                    return []
                if left and time.monotonic() > began + seconds:
                    raise LaunchError(
                        f"{len(left)} of {plan.nodes} nodes of the Ray cluster started no actor within {seconds:g} s "
                        "(launch.start_timeout): `ray status` and Ray's logs may say why."
                    )
            self._about = ray.get(asked)
        except ray.exceptions.ActorDiedError as error:
            self.lost.append(f"a node is lost: {_said(error)}")
            self.codes[0] = 1
            return []
        except ray.exceptions.RayError as error:
            raise LaunchError(f"A node of the Ray cluster cannot run Covey: {_said(error)}") from None
        finally:
            for file in tokens:
                file.unlink(missing_ok=True)
        ours = _versions(ray)
        for node, about in enumerate(self._about):
            if about["missing"]:
                raise LaunchError(
                    f"Node {node} ({about['host']}) does not see what this machine has written in {about['missing']}: "
                    "output_dir and launch.log_dir must be on storage that all nodes share (NFS, Lustre), by the same "
                    "path."
                )
            for name, version in ours.items():
                if about[name] != version:
                    raise LaunchError(
                        f"Node {node} ({about['host']}) has {name} {about[name]}, and this machine {version}: install "
                        "the same on all."
                    )
        return self._about

    def start(self, config: Config, words: Sequence[Sequence[str]], environment: Mapping[str, str]) -> None:
        """Start the launchers, with the command of each."""
        seconds = config.launch.stop_timeout + _GRACE_SECONDS
        text, logs = to_yaml(config), self._plan.logs.absolute()
        asked = [
            actor.start.remote(text, words[node], environment, logs / f"ray-{node}.log", seconds)
            for node, actor in enumerate(self._actors)
        ]
        try:
            self._ray.get(asked)
        except self._ray.exceptions.RayActorError:
            return  # `look` names the node
        except self._ray.exceptions.RayError as error:
            raise LaunchError(f"A node of the Ray cluster cannot start Covey: {_said(error)}") from None

    def look(self) -> None:
        """Print what is new, and note which launchers have ended and which nodes are lost."""
        ray = self._ray
        for node in self._running():
            self._asked.setdefault(node, (self._actors[node].look.remote(), time.monotonic()))
        if not self._asked:
            return
        refs = [ref for ref, _ in self._asked.values()]
        done, _ = ray.wait(refs, num_returns=len(refs), timeout=_LOOK_SECONDS)
        for node, (ref, since) in sorted(self._asked.items()):
            why = ""
            if ref in done:
                del self._asked[node]
                try:
                    text, code = ray.get(ref)
                    self._print(node, text)
                    if code is not None:
                        self.codes[node] = code
                except ray.exceptions.ActorUnavailableError:  # perhaps for a moment
                    self._asked[node] = (self._actors[node].look.remote(), since)
                except ray.exceptions.RayActorError as error:
                    why = str(error).strip().splitlines()[0]
            if node in self._asked and not why:
                if not any(one["Alive"] and one["NodeID"] == self._about[node]["id"] for one in ray.nodes()):
                    why = "Ray says that the node is gone."
                elif time.monotonic() > since + _SILENT_SECONDS:
                    why = f"it has not answered for {_SILENT_SECONDS:g} s."
            if why:
                self._asked.pop(node, None)
                self.codes[node] = 1
                host = self._about[node]
                self.lost.append(f"node {node} ({host['host']}, {host['address']}, {host['id'][:8]}) is lost: {why}")
                self._console.say(self.lost[-1])
        time.sleep(_LOOK_SECONDS / 4)

    def ended(self) -> bool:
        return not self._running()

    def stop(self, *, kill: bool = False) -> None:
        """Have all launchers that run stop with a checkpoint, or kill them."""
        for node in self._running():
            self._actors[node].stop.remote(kill=kill)

    def release(self) -> None:
        """Give the nodes back; a launcher that still runs gets the stop signal."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)

    def _running(self) -> list[int]:
        return [node for node in range(len(self._actors)) if node not in self.codes]

    def _print(self, node: int, text: str) -> None:
        name = "" if node == 0 else f"[node {node}] "
        sys.stdout.write("".join(f"{name}{line}\n" for line in text.splitlines()))
        sys.stdout.flush()


def machine_of_cluster(nodes: int) -> Machine:
    """A node of the cluster: with the GPUs that each of so many has. Raises a `LaunchError` if fewer have any."""
    there = connect().nodes()
    counts = sorted((int(node["Resources"].get("GPU", 0)) for node in there if node["Alive"]), reverse=True)
    found = counts[min(nodes, len(counts)) - 1]
    if counts[0] and not found:
        raise LaunchError(
            f"launch.nodes={nodes}, and fewer nodes of the Ray cluster have GPUs ({', '.join(map(str, counts))}). Set "
            "launch.nodes or launch.gpus."
        )
    return Machine.of(found)


def run_on_ray(config: Config, run_name: str, machine: Machine, resume: str, command: Sequence[str] = COMMAND) -> int:
    """Run all nodes of a launch on a Ray cluster; returns the exit code.

    Args:
        run_name: the run's name where the config gives none.
        machine: each node.
        resume: the command that resumes the run.
        command: what each node runs, as arguments of Python.

    Raises:
        LaunchError: the cluster cannot run it, or was not given what it needs.
    """
    ray = connect()
    folder, threads = folder_of_driver(ray, config), threads_of_driver(ray)
    launch = config.launch
    gpus = len(machine.gpus) if launch.gpus is None else launch.gpus
    output, logs = (str(Path(name).absolute()) for name in (config.output_dir, launch.log_dir))
    local = dataclasses.replace(launch, backend="local", gpus=gpus, log_dir=logs, node_rank=None, master=None)
    config = dataclasses.replace(config, run_name=config.run_name or run_name, output_dir=output, launch=local)
    plan = make_plan(config, run_name, Machine.of(gpus))
    environment = {RESUME_COMMAND: resume, **for_children(flatten(config))}
    if plan.server is not None and plan.server.is_ours:
        environment[RUN_KEY] = secrets.token_urlsafe(32)
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    restarts = launch.node_restarts
    with LaunchConsole(plan.logs / "driver.log") as console, signal_handler(STOPS, stop):
        while True:
            nodes = _Nodes(ray, plan, console)
            try:
                if not nodes.place(launch.start_timeout, lambda: bool(asked)):
                    return 128 + asked[0]
                about = nodes.check(folder, threads, launch.start_timeout, lambda: bool(asked))
                if about:
                    hosts = ", ".join(f"node {node} {one['host']}" for node, one in enumerate(about))
                    console.say(f"on Ray: {hosts}.")
                    commands = [_words(command, plan, node, about[0]["address"]) for node in range(plan.nodes)]
                    nodes.start(config, commands, environment)
                    _watch(nodes, asked)
            finally:
                nodes.release()
            code = next((nodes.codes[node] for node in sorted(nodes.codes) if nodes.codes[node]), 0)
            if asked and (code or not about):
                return 128 + asked[0]
            if not nodes.lost or not code:
                return code
            if restarts == 0:
                raise LaunchError(
                    f"{nodes.lost[0]} launch.node_restarts={launch.node_restarts} allows no further start. To resume "
                    f"from the newest checkpoint: {resume}"
                )
            restarts -= 1
            until = time.monotonic() + launch.stop_timeout + _GRACE_SECONDS
            while RunDirectory(plan.logs).is_locked() and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)  # a launcher that lost its actor alone is still stopping
            console.say(f"the run is placed again and resumes ({restarts} such restarts left).")
            config = dataclasses.replace(config, resume="auto", overwrite=False)


def _words(command: Sequence[str], plan: LaunchPlan, node: int, address: str) -> list[str]:
    seat = [f"launch.node_rank={node}", f"launch.master={address}"] if plan.nodes > 1 else []
    return [*command, "--config", "{config}", *seat]


def _watch(nodes: _Nodes, asked: list[int]) -> None:
    """Until all launchers have ended: pass stop requests on, and end those that outlive the failure of another."""
    stopping, deadline = 0, float("inf")
    while not nodes.ended():
        nodes.look()
        if any(nodes.codes.values()):
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if len(asked) > stopping:
            stopping = len(asked)
            nodes.stop(kill=asked.count(signal.SIGINT) > 1)
        elif time.monotonic() > deadline:
            nodes.stop()
            deadline = time.monotonic() + _GRACE_SECONDS


def run_jobs(runner: Callable[[Any], Any], numbers: Sequence[int], config: Config) -> None:
    """Run the jobs of a sweep as tasks of a Ray cluster, as many at a time as have a place; wait for all.

    Args:
        runner: runs the job of a number, here or elsewhere.
        numbers: those to run.
        config: of a job; `launch.gpus` is what each needs (default: one GPU where the cluster has any).

    Raises:
        KeyboardInterrupt: the sweep was stopped; the jobs have stopped with a checkpoint.
    """
    ray = connect()
    folder, threads = folder_of_driver(ray, config), threads_of_driver(ray)
    gpus = config.launch.gpus
    if gpus is not None and gpus > 1:
        raise LaunchError(f"launch.gpus={gpus}: each job of a sweep is one process, on one GPU or none (0).")
    if gpus is None:
        gpus = int(ray.cluster_resources().get("GPU", 0) > 0)
    variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLE)}
    task = ray.remote(_run_job).options(num_cpus=1, num_gpus=gpus, max_retries=config.launch.node_restarts)
    waiting = [task.remote(runner, number, folder, threads, variables) for number in numbers]
    lost = []
    try:
        while waiting:
            done, waiting = ray.wait(waiting, timeout=_LOOK_SECONDS)
            for ref in done:
                try:
                    ray.get(ref)
                except ray.exceptions.RayError as error:
                    lost.append(_said(error))
    except KeyboardInterrupt:
        for ref in waiting:
            ray.cancel(ref)
        ray.wait(waiting, num_returns=len(waiting), timeout=config.launch.stop_timeout)
        raise
    if lost:
        raise LaunchError(f"{len(lost)} of {len(numbers)} jobs were lost on Ray: {lost[0]}")


def _run_job(
    runner: Callable[[Any], Any], number: int, folder: Path | None, threads: str | None, variables: Mapping[str, str]
) -> None:
    enter(folder, threads)
    os.environ.update(variables)
    runner(SimpleNamespace(job=number))


def _said(error: Exception) -> str:
    """The line of an error of Ray's that says what happened."""
    cause = getattr(error, "cause", None)
    lines = str(cause if isinstance(cause, CoveyError) else error).strip().splitlines()
    return lines[-1] if lines else repr(error)
