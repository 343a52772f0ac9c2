"""The launch plan: a pure function of the config and the machines.

On one node a vLLM server takes the last GPUs and training the others. On several, the last node serves and the others
train, since accelerate needs the same number of training processes on each. With `training.staleness` and Covey's own
engine, the first node's last GPU is left to the process that samples.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from covey.config import Config
from covey.config.groups.mesh import Mesh, refuse_tensor_parallel
from covey.config.sampling_gpu import SAMPLING_GPU, samples_in_own_process
from covey.config.vllm import is_elsewhere
from covey.errors import ConfigError
from covey.launch.accelerate import accelerate_config
from covey.launch.machine import Machine, Place
from covey.launch.progress import FINISH_FILE, STACKS_FILE
from covey.launch.server import Server, placed, server_command
from covey.runlog.directory import Inside

TRAINER, SERVER = "trainer", "server"
TORCH_LOGS = "torch"
"""A folder that torch's launcher would else leave in `TMPDIR` at each start."""
ACCELERATE = "covey.cli.accelerate"
"""The module that starts several training processes: accelerate's own command."""
ENTRY = "covey.cli.process"
"""The module that a training process runs: `covey train`, with reporting to the launcher."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of a launch; the defaults are the config's."""

    server: int = 8000
    group: int = 51216
    """For the weight sync between trainer and server."""
    main: int = 29500
    """For the rendezvous of the training processes."""

    @classmethod
    def of(cls, config: Config) -> Ports:
        """The config's ports."""
        return cls(int(config.training.vllm_server_port), int(config.training.vllm_group_port))


@dataclass(frozen=True, slots=True)
class Process:
    """One process that the launcher starts; it may have children."""

    name: str
    node: int
    gpus: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables added to the launcher's environment."""
    log: Path


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that is started for a run."""

    run: Path
    """The run directory."""
    logs: Path
    """Folder of the logs, and of the files that the launcher passes to its processes."""
    nodes: int
    gpus: int
    """GPUs of every node."""
    num_processes: int
    """Training processes, over all nodes."""
    processes: tuple[Process, ...]
    server: Server | None
    """The vLLM server, whoever starts it."""
    accelerate: Mapping[str, Any] | None
    """The accelerate config; None where one process trains without accelerate's launcher."""
    overrides: tuple[str, ...]
    """Overrides of the run's config for the training processes."""
    ports: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sampling: tuple[str, ...] = ()
    """GPUs that only sample: the server's, or that of the trainer's rollout process."""
    resume: str = "the same command"
    """The command that resumes the run."""

    config_file = Inside("config.yaml", "logs")
    """The resolved config that the training processes read."""
    accelerate_file = Inside("accelerate.yaml", "logs")
    launcher_log = Inside("launcher.log", "logs")
    key_file = Inside("engine-key", "logs")
    """The vLLM server's API key, from the first node for the others; deleted at the end of the run."""

    def with_environment(self, name: str, variables: Mapping[str, str]) -> LaunchPlan:
        """A copy with more variables for the processes of this name: secrets, which a printed plan must not contain."""
        return replace(
            self,
            processes=tuple(
                replace(one, environment={**one.environment, **variables}) if one.name == name else one
                for one in self.processes
            ),
        )

    def on(self, node: int) -> tuple[Process, ...]:
        """The processes of one node: the server first, since training waits for it."""
        return tuple(process for process in self.processes if process.node == node)


def training_processes(config: Config, machine: Machine) -> int:
    """The number of training processes over all nodes; a `ConfigError` if they do not fit the GPUs."""
    return _Layout.of(placed(config, len(_gpus_for(config, machine)))[0], machine).total


def make_plan(
    config: Config,
    run_name: str,
    machine: Machine,
    place: Place | None = None,
    ports: Ports | None = None,
    *,
    python: str = sys.executable,
) -> LaunchPlan:
    """Make the launch plan.

    Args:
        run_name: the run's name where the config gives none.
        machine: the GPUs and CPUs of every node; `launch.gpus` overrides the number of GPUs.
        place: the addresses of the nodes; None for this machine only.
        ports: free ports; None for the config's.
        python: the interpreter of all processes.

    Raises:
        ConfigError: GPUs, processes, mesh and vLLM settings are inconsistent.
    """
    given = config
    config, notes = placed(given, len(_gpus_for(given, machine)))
    layout = _Layout.of(config, machine)
    place, ports = place or _unnamed_hosts(config.launch.nodes), ports or Ports.of(config)
    name = config.run_name or run_name
    logs = Path(config.launch.log_dir) / name
    server = Server.of(config, place.hosts[layout.server_node], ports.server, ports.group)
    main_port = config.launch.main_process_port or ports.main
    spread = accelerate_config(config, layout.total, layout.train_nodes, place.hosts[0], main_port, bool(layout.gpus))
    overrides = [] if config is given else [f"training.vllm_mode={config.training.vllm_mode}"]
    served: dict[str, int] = {}
    if server is not None and server.is_ours:
        served = {"server": server.port, "weight_sync": server.group_port}
        overrides += [
            f"training.vllm_server_host={server.host}",
            f"training.vllm_server_port={server.port}",
            f"training.vllm_group_port={server.group_port}",
        ]
        if "vllm_server_timeout" not in config.training.values:  # the launcher restarts it for as long
            overrides.append(f"training.vllm_server_timeout={config.launch.server_timeout:g}")
    plan = LaunchPlan(
        run=Path(config.output_dir) / name,
        logs=logs,
        nodes=config.launch.nodes,
        gpus=len(layout.gpus),
        num_processes=layout.total,
        processes=(),
        server=server,
        accelerate=spread,
        overrides=tuple(overrides),
        ports=served if spread is None else {**served, "main_process": main_port},
        notes=(*notes, *layout.notes(config)),
        sampling=layout.serving,
    )
    processes = [
        _trainer(plan, node, layout, place, python, config.launch.stop_timeout) for node in range(layout.train_nodes)
    ]
    if server is not None and server.is_ours:
        processes.insert(0, _server(plan, server, layout, config, python))
    return replace(plan, processes=tuple(processes))


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which GPUs train and which sample."""

    gpus: tuple[str, ...]
    serving: tuple[str, ...]
    beside: bool
    """Whether a process of the trainer's samples on them, not a server."""
    training: tuple[str, ...]
    per_node: int
    """Training processes of every training node."""
    train_nodes: int
    server_node: int

    @property
    def total(self) -> int:
        return self.per_node * self.train_nodes

    @classmethod
    def of(cls, config: Config, machine: Machine) -> _Layout:
        refuse_tensor_parallel(config.model.mesh_shape)
        launch, training = config.launch, config.training
        gpus = _gpus_for(config, machine)
        serves = bool(training.use_vllm) and training.vllm_mode == "server" and not is_elsewhere(config)
        beside = samples_in_own_process(config) and len(gpus) > 1
        wanted = int(training.vllm_tensor_parallel_size) if serves and gpus else int(beside)
        separate = serves and launch.nodes > 1
        if wanted > len(gpus) or (wanted == len(gpus) and wanted and not separate):
            raise ConfigError(_too_many_serve(wanted, len(gpus), separate))
        serving = gpus[-wanted:] if wanted else ()
        training_gpus = gpus if separate or not wanted else gpus[:-wanted]
        per_node = launch.num_processes or max(len(training_gpus), 1)
        if training_gpus and per_node > len(training_gpus):
            raise ConfigError(
                f"launch.num_processes={per_node} is more than the {_gpus(len(training_gpus))} of a node that "
                f"{'trains' if len(training_gpus) == 1 else 'train'}, and two processes on one GPU deadlock. "
                f"Set it to {len(training_gpus)} or less, or leave it out."
            )
        layout = cls(
            gpus=gpus,
            serving=serving,
            beside=beside,
            training=training_gpus[:per_node],
            per_node=per_node,
            train_nodes=launch.nodes - separate,
            server_node=launch.nodes - 1 if separate else 0,
        )
        layout._check(config)
        return layout

    def notes(self, config: Config) -> tuple[str, ...]:
        found = []
        separate = self.server_node > 0
        if self.beside:
            found.append(
                f"GPU {self.serving[0]} samples while {_gpus(len(self.training))} of every node learn "
                f"(training.staleness={config.training.staleness})."
            )
        elif samples_in_own_process(config) and self.gpus:
            found.append("One GPU samples and learns, in two processes that share it: training.staleness=0 is faster.")
        used = len(self.training) + (0 if separate else len(self.serving))
        if self.gpus and used < len(self.gpus):
            found.append(f"{_gpus(len(self.gpus) - used)} of every training node stay idle.")
        if separate and len(self.serving) < len(self.gpus):
            idle = len(self.gpus) - len(self.serving)
            found.append(f"{_gpus(idle)} of the serving node stay idle: raise training.vllm_tensor_parallel_size.")
        return tuple(found)

    def _check(self, config: Config) -> None:
        shape, size = config.model.mesh_shape, Mesh.of(config.model.mesh_shape).processes
        if size not in (1, self.total):  # a mesh of size 1 counts as none, as in training
            raise ConfigError(
                f"model.mesh_shape={shape} lays out {size} processes, but {self._counted()}. Make the sizes' product "
                f"{self.total}, or change launch.gpus, launch.nodes or launch.num_processes."
            )
        if self.server_node and not self.gpus and not config.training.staleness:
            raise ConfigError(
                "Without GPUs a vLLM server gets its weights through a temporary folder of the trainer's machine, so "
                "it cannot run on another one: set launch.nodes=1, ask for GPUs with launch.gpus, or sample ahead "
                "(training.staleness=1), where the folder is in output_dir."
            )
        training = config.training
        if not training.use_vllm or training.vllm_mode != "colocate":
            return
        if training.staleness:
            raise ConfigError(
                f"training.staleness={training.staleness} samples while the policy learns, and with "
                "training.vllm_mode=colocate both share the GPUs and take turns: set training.vllm_mode=server, or "
                "training.staleness=0."
            )
        if training.vllm_enable_sleep_mode and not self.gpus:
            raise ConfigError(
                "training.vllm_enable_sleep_mode=true needs a GPU: on a CPU vLLM cannot release its memory. Set it to "
                "false."
            )
        tensor = int(training.vllm_tensor_parallel_size)
        if self.total % tensor:
            raise ConfigError(
                f"training.vllm_tensor_parallel_size={tensor} does not divide the number of processes: with "
                f"training.vllm_mode=colocate vLLM runs inside of the training processes, and {self._counted()}."
            )

    def _counted(self) -> str:
        text = f"{self.total} {'process trains' if self.total == 1 else 'processes train'}"
        if self.beside:
            text += f" ({_gpus(1)} samples)"
        elif self.serving:
            text += f" ({_gpus(len(self.serving))} of {'the last node' if self.server_node else 'the node'} serve)"
        return text


def _trainer(plan: LaunchPlan, node: int, layout: _Layout, place: Place, python: str, stop_seconds: float) -> Process:
    command = ["-m", ENTRY, "train", "--config", str(plan.config_file), *plan.overrides]
    environment = {
        FINISH_FILE: str(plan.logs / "finish-{rank}.json"),
        STACKS_FILE: str(plan.logs / "stacks-{rank}.txt"),
    }
    if layout.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(layout.training)
    if layout.beside and node == 0:
        environment[SAMPLING_GPU] = layout.serving[0]
    if plan.accelerate is not None:
        # How long torch's launcher waits for its processes' checkpoint; its default is half a minute.
        environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(stop_seconds))
        options = {
            "--config_file": plan.accelerate_file,
            "--log_dir": plan.logs / TORCH_LOGS,
            "--num_processes": plan.num_processes,
            "--num_machines": layout.train_nodes,
            "--machine_rank": node,
            "--main_process_ip": place.hosts[0] if layout.train_nodes > 1 else None,
            "--main_process_port": plan.accelerate["main_process_port"],
        }
        words = [text for name, value in options.items() if value is not None for text in (name, str(value))]
        command = ["-m", ACCELERATE, "launch", *words, *command]
    log = plan.logs / (f"{TRAINER}-{node}.log" if layout.train_nodes > 1 else f"{TRAINER}.log")
    return Process(TRAINER, node, layout.training, (python, *command), environment, log)


def _server(plan: LaunchPlan, server: Server, layout: _Layout, config: Config, python: str) -> Process:
    log = plan.logs / f"{SERVER}.log"
    command, environment = server_command(server, config, python, on_cpu=not layout.gpus)
    if layout.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(layout.serving)
    return Process(SERVER, layout.server_node, layout.serving, command, environment, log)


def _gpus_for(config: Config, machine: Machine) -> tuple[str, ...]:
    """The names of a node's GPUs that the run uses; plain numbers if this machine has fewer than it asks for."""
    there, wanted = () if config.training.use_cpu else machine.gpus, config.launch.gpus
    if wanted is None:
        return there
    return there[:wanted] if wanted <= len(there) else Machine.of(wanted).gpus


def _unnamed_hosts(nodes: int) -> Place:
    return Place() if nodes == 1 else Place(hosts=tuple(f"<node {number}>" for number in range(nodes)))


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _too_many_serve(wanted: int, there: int, separate: bool) -> str:
    if separate or wanted > there:
        return (
            f"training.vllm_tensor_parallel_size={wanted} asks for a vLLM server on {_gpus(wanted)}, but a node has "
            f"{there}. Lower it, or ask for more with launch.gpus."
        )
    return (
        f"A vLLM server on {_gpus(wanted)} (training.vllm_tensor_parallel_size) leaves none of the {there} to train "
        f"on. Ask for {wanted + 1} or more with launch.gpus, lower training.vllm_tensor_parallel_size, or let vLLM "
        "share the GPUs with training: training.vllm_mode=colocate."
    )
