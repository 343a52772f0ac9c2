"""The launch plan: a pure function of the config and the machines, with the command of a run's vLLM server.

On one node vLLM servers take the last GPUs and training the others. On several, the last nodes serve and the others
train, or a part of each serves (`servers.py`), since accelerate needs the same number of training processes on each.
With `training.staleness` and Covey's own engine, the first node's last GPU is left to the process that samples.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from covey.config import Config, TrainingConfig
from covey.config.groups.mesh import Mesh
from covey.config.secrets import ENGINE_KEY
from covey.config.vllm import (
    AUTO,
    LARGE_SHARE,
    LOCAL_HOSTS,
    SAMPLING_GPU,
    SERVERS,
    colocated_share,
    is_elsewhere,
    leaves_place_open,
    samples_in_own_process,
    served_rank,
    server_addresses,
)
from covey.errors import ConfigError
from covey.launch.accelerate import accelerate_config
from covey.launch.machine import FINISH_FILE, STACKS_FILE, Machine, Place, counted_gpus
from covey.model.load import check_tensor_parallel, resolve_model, tensor_parallel_choices
from covey.model.starter import STARTERS
from covey.runlog.directory import Inside

LEAST_LENGTH = 2048
"""Default of the server's maximum length, prompt and completion together, in tokens."""
MEMORY_SHARE = 0.90
"""Default share of its GPUs' memory that the server takes: nothing else runs there."""


@dataclass(frozen=True, slots=True)
class Server:
    """A vLLM server."""

    url: str
    host: str
    port: int
    group_port: int
    model: str
    is_ours: bool
    """Whether the launcher starts it, or only waits for it."""

    @property
    def health(self) -> str:
        return f"{self.url}/health"

    @classmethod
    def of(cls, config: Config, places: Sequence[tuple[str, int]], group_port: int) -> tuple[Server, ...]:
        """The servers that the config asks for; none for generation in the training processes.

        Args:
            places: for each of the launcher's, the address of its node and a free port there.
            group_port: another one, for the weight sync.
        """
        training = config.training
        if not training.use_vllm or training.vllm_mode != "server":
            return ()
        model = config.launch.vllm_model or config.model.name
        urls = server_addresses(training)
        if not urls and training.vllm_server_host not in LOCAL_HOSTS:
            urls = [f"http://{training.vllm_server_host}:{training.vllm_server_port}"]
        if urls:
            return tuple(cls(url, url, 0, int(training.vllm_group_port), model, is_ours=False) for url in urls)
        return tuple(cls(f"http://{host}:{port}", host, port, group_port, model, is_ours=True) for host, port in places)


def placed(config: Config, gpus: int) -> tuple[Config, list[str]]:
    """The config with vLLM's place decided, and notes on it.

    Args:
        config: the run's config; `launch.vllm_own_gpu` leaves the place to the number of GPUs.
        gpus: GPUs of every node.
    """
    training, tensor = config.training, int(config.training.vllm_tensor_parallel_size)
    if isinstance(training.vllm_servers, int):
        tensor *= int(training.vllm_servers) if config.launch.nodes == 1 else 1
    if leaves_place_open(config):
        if config.model.reasoning_vocab_size:
            return config, ["vLLM shares the training GPUs: a server cannot start with the reasoning vocabulary."]
        if gpus >= tensor + (config.launch.nodes == 1):
            served = TrainingConfig({**training.values, "vllm_mode": "server"})
            where = "of the node" if config.launch.nodes == 1 else "of the last node"
            return replace(config, training=served), [
                f"vLLM gets {tensor} of the {gpus} GPUs {where} for itself, as a server (training.vllm_mode=server): "
                "the recipe gave it GPUs of its own (launch.vllm_own_gpu). training.vllm_mode=colocate shares them "
                "with training."
            ]
        there = "no GPU" if not gpus else "one GPU" if gpus == 1 else f"{gpus} GPUs"
        return config, [
            f"vLLM runs in the training processes (training.vllm_mode=colocate): a server of its own takes {tensor} "
            f"GPU{'' if tensor == 1 else 's'} besides the one that trains, and there {'is' if gpus < 2 else 'are'} "
            f"{there}."
        ]
    if gpus > tensor and training.use_vllm and "vllm_mode" not in training.values:
        return config, [
            "vLLM shares the training GPUs and takes "
            f"{training.vllm_gpu_memory_utilization:.0%} of each (training.vllm_mode=colocate, TRL's default; "
            "training.vllm_gpu_memory_utilization). For GPUs of its own, as recipes of older TRL versions mean it: "
            "training.vllm_mode=server."
        ]
    share = colocated_share(config)
    if gpus and share is not None and share > LARGE_SHARE and not training.vllm_enable_sleep_mode:
        return config, [
            f"vLLM takes {share:.0%} of the memory of each training GPU: if training then lacks memory, lower "
            "training.vllm_gpu_memory_utilization, or give vLLM a GPU of its own (training.vllm_mode=server)."
        ]
    return config, []


def max_model_length(config: Config) -> int:
    """The server's maximum length, prompt and completion together, in tokens."""
    training = config.training
    if training.vllm_max_model_length is not None:
        return int(training.vllm_max_model_length)
    prompt = config.dataset.max_prompt_length or 0
    return max(LEAST_LENGTH, prompt + int(training.max_completion_length or 0))


def server_dtype(config: Config, *, on_cpu: bool) -> str:
    """The dtype of the server's weights: the trainer's where that is known."""
    if config.model.dtype not in (None, "auto"):
        return str(config.model.dtype)
    if on_cpu:
        return "float32" if config.model.dtype is None else "auto"
    return "float16" if config.training.fp16 else "auto" if config.training.bf16 is False else "bfloat16"


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
    by_node: tuple[tuple[int, ...], ...] = ()
    """For several servers, of each node; empty for those that follow `server`."""

    @classmethod
    def of(cls, config: Config) -> Ports:
        """The config's ports."""
        return cls(int(config.training.vllm_server_port), int(config.training.vllm_group_port))

    def of_server(self, node: int, number: int) -> int:
        """That of the `number`-th server of a node."""
        return self.by_node[node][number] if self.by_node else self.server + number


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
    number: int = 0
    """Of a server, in the order of `LaunchPlan.servers`."""


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
    servers: tuple[Server, ...]
    """The vLLM servers, whoever starts them."""
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

    @property
    def server(self) -> Server | None:
        """The first vLLM server, if there is any; all of them are alike."""
        return self.servers[0] if self.servers else None

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
        """The processes of one node: the servers first, since training waits for them."""
        return tuple(process for process in self.processes if process.node == node)


def training_processes(config: Config, machine: Machine) -> int:
    """The number of training processes over all nodes; a `ConfigError` if they do not fit the GPUs."""
    config = _with_number(config, machine)[0]
    return _Layout.of(placed(config, len(_gpus_for(config, machine)))[0], machine).total


def _with_number(config: Config, machine: Machine, run_name: str = "") -> tuple[Config, list[str]]:
    """The config with a number of servers, where `auto` has one to choose."""
    if config.training.vllm_servers != AUTO:
        return config, []
    from covey.launch.servers import resolved

    return resolved(config, machine, None, Path(config.output_dir) / (config.run_name or run_name))


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
    config, chosen = _with_number(given, machine, run_name)
    config, notes = placed(config, len(_gpus_for(config, machine)))
    layout = _Layout.of(config, machine)
    place, ports = place or _unnamed_hosts(config.launch.nodes), ports or Ports.of(config)
    name = config.run_name or run_name
    logs = Path(config.launch.log_dir) / name
    at = [(place.hosts[node], ports.of_server(node, number)) for node, number, _ in layout.servers]
    servers = Server.of(config, at, ports.group)
    main_port = config.launch.main_process_port or ports.main
    spread = accelerate_config(config, layout.total, layout.train_nodes, place.hosts[0], main_port, bool(layout.gpus))
    overrides = (
        []
        if config.training.vllm_mode == given.training.vllm_mode
        else [f"training.vllm_mode={config.training.vllm_mode}"]
    )
    served: dict[str, int] = {}
    ours = [server for server in servers if server.is_ours]
    if ours:
        served = {"server" if len(ours) == 1 else f"server_{n}": one.port for n, one in enumerate(ours)}
        served["weight_sync"] = ours[0].group_port
        overrides += [
            *([f"training.vllm_servers={len(ours)}"] if given.training.vllm_servers == AUTO else []),
            f"training.vllm_server_host={ours[0].host}",
            f"training.vllm_server_port={ours[0].port}",
            f"training.vllm_group_port={ours[0].group_port}",
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
        servers=servers,
        accelerate=spread,
        overrides=tuple(overrides),
        ports=served if spread is None else {**served, "main_process": main_port},
        notes=(*chosen, *notes, *check_tensor_parallel(config), *layout.notes(config)),
        sampling=layout.serving,
    )
    trainers = [
        _trainer(plan, node, layout, place, python, config.launch.stop_timeout) for node in range(layout.train_nodes)
    ]
    serving = [_server(plan, number, layout, config, python) for number in range(len(ours))]
    return replace(plan, processes=(*serving, *trainers))


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
    servers: tuple[tuple[int, int, tuple[str, ...]], ...] = ()
    """Of each vLLM server of ours its node, its number there, and its GPUs."""

    @property
    def total(self) -> int:
        return self.per_node * self.train_nodes

    @property
    def _at(self) -> set[int]:
        """The nodes with servers."""
        return {node for node, _, _ in self.servers}

    @property
    def _separate(self) -> bool:
        """Whether those nodes do not train."""
        return any(node >= self.train_nodes for node in self._at)

    @classmethod
    def of(cls, config: Config, machine: Machine) -> _Layout:
        check_tensor_parallel(config)
        launch, training = config.launch, config.training
        gpus = _gpus_for(config, machine)
        serves = bool(training.use_vllm) and training.vllm_mode == "server" and not is_elsewhere(config)
        beside = samples_in_own_process(config) and len(gpus) > 1
        size, count = int(training.vllm_tensor_parallel_size), int(training.vllm_servers) if serves else 0
        servers: list[tuple[int, int, tuple[str, ...]]] = [(0, number, ()) for number in range(count)]
        training_gpus, train_nodes = gpus[:-1] if beside else gpus, launch.nodes
        if serves and not gpus and launch.nodes > 1:  # the last one serves
            servers, train_nodes = [(launch.nodes - 1, number, ()) for number in range(count)], launch.nodes - 1
        if serves and gpus:
            from covey.launch.servers import placed_servers, why_no_place

            found = placed_servers(config, len(gpus))
            if found is None:
                raise ConfigError(why_no_place(config, len(gpus)))
            first = 0 if found.whole else len(gpus) - found.by_node[0] * size
            servers = [
                (node, number, gpus[start : start + size])
                for node, of_node in enumerate(found.by_node)
                for number, start in enumerate(range(len(gpus) - of_node * size, len(gpus), size))
            ]
            training_gpus = gpus if found.whole else gpus[:first]
            train_nodes = launch.nodes - sum(map(bool, found.by_node)) if found.whole else launch.nodes
        per_node = launch.num_processes or max(len(training_gpus), 1)
        if training_gpus and per_node > len(training_gpus):
            raise ConfigError(
                f"launch.num_processes={per_node} is more than the {counted_gpus(len(training_gpus))} of a node that "
                f"{'trains' if len(training_gpus) == 1 else 'train'}, and two processes on one GPU deadlock. "
                f"Set it to {len(training_gpus)} or less, or leave it out."
            )
        layout = cls(
            gpus=gpus,
            serving=gpus[-1:]
            if beside
            else tuple(g for node, _, own in servers if node == servers[-1][0] for g in own),
            beside=beside,
            training=training_gpus[:per_node],
            per_node=per_node,
            train_nodes=train_nodes,
            servers=tuple(servers),
        )
        layout._check(config)
        return layout

    def notes(self, config: Config) -> tuple[str, ...]:
        found = []
        separate = self._separate
        if self.beside:
            found.append(
                f"GPU {self.serving[0]} samples while {counted_gpus(len(self.training))} of every node learn "
                f"(training.staleness={config.training.staleness})."
            )
        elif samples_in_own_process(config) and self.gpus:
            found.append("One GPU samples and learns, in two processes that share it: training.staleness=0 is faster.")
        used = len(self.training) + (0 if separate else len(self.serving))
        if self.gpus and used < len(self.gpus):
            found.append(f"{counted_gpus(len(self.gpus) - used)} of every training node stay idle.")
        if idle := len(self.gpus) * len(self._at) - sum(len(own) for *_, own in self.servers) if separate else 0:
            size = int(config.training.vllm_tensor_parallel_size)
            room = len(self._at) * (len(self.gpus) // size)
            more = [str(n) for n in tensor_parallel_choices(config, len(self.gpus)) if n > size]
            ways = [f"training.vllm_servers to {room} (or auto)"] if room > len(self.servers) else []
            ways += [f"training.vllm_tensor_parallel_size to {' or '.join(more)}"] if more else []
            advice = f": raise {', or '.join(ways)}" if ways else ""
            where = "the serving node" if len(self._at) == 1 else "the serving nodes"
            found.append(f"{counted_gpus(idle)} of {where} stay idle{advice}.")
        return tuple(found)

    def _check(self, config: Config) -> None:
        shape, size = config.model.mesh_shape, Mesh.of(config.model.mesh_shape).processes
        if size not in (1, self.total):  # a mesh of size 1 counts as none, as in training
            raise ConfigError(
                f"model.mesh_shape={shape} lays out {size} processes, but {self._counted()}. Make the sizes' product "
                f"{self.total}, or change launch.gpus, launch.nodes or launch.num_processes."
            )
        if self._separate and not self.gpus and not config.training.staleness:
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
            text += f" ({counted_gpus(1)} samples)"
        elif self.serving:
            where = "each node" if len(self._at) > 1 else "the last node" if self._separate else "the node"
            text += f" ({counted_gpus(len(self.serving))} of {where} serve)"
        return text


def _trainer(plan: LaunchPlan, node: int, layout: _Layout, place: Place, python: str, stop_seconds: float) -> Process:
    command = ["-m", ENTRY, "train", "--config", str(plan.config_file), *plan.overrides]
    environment = {
        FINISH_FILE: str(plan.logs / "finish-{rank}.json"),
        STACKS_FILE: str(plan.logs / "stacks-{rank}.txt"),
    }
    if layout.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(layout.training)
    if len(plan.servers) > 1:
        environment[SERVERS] = " ".join(server.url for server in plan.servers)
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


def _server(plan: LaunchPlan, number: int, layout: _Layout, config: Config, python: str) -> Process:
    """A server: vLLM's own, with what TRL's trainer needs."""
    training, model, server = config.training, config.model, plan.servers[number]
    node, _, gpus = layout.servers[number]
    words: dict[str, object] = {
        "--model": resolve_model(server.model) if server.model in STARTERS else server.model,
        # On several nodes only the address by which the others reach it; node 0 may know another one.
        "--host": "0.0.0.0" if node == 0 and plan.nodes > 1 else server.host,
        "--port": server.port,
        "--tensor-parallel-size": training.vllm_tensor_parallel_size,
        "--max-model-len": max_model_length(config),
        "--gpu-memory-utilization": training.values.get("vllm_gpu_memory_utilization", MEMORY_SHARE),
        "--dtype": server_dtype(config, on_cpu=not layout.gpus),
    }
    if len(plan.servers) > 1:  # by vLLM's default, all would draw the same
        words["--seed"] = (config.seed + number) % 2**32
    if model.revision:
        words["--revision"] = model.revision
    if training.vllm_model_impl != "vllm":
        words["--model-impl"] = training.vllm_model_impl
    rank, _ = served_rank(config)
    if rank:
        words["--max-lora-rank"] = rank
    flags = [text for name, value in words.items() for text in (name, str(value))]
    if model.trust_remote_code:
        flags.append("--trust-remote-code")
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if layout.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    command = (python, "-m", "covey.rollout.vllm.serve", *flags)
    log = plan.logs / (f"{SERVER}-{number}.log" if len(plan.servers) > 1 else f"{SERVER}.log")
    return Process(SERVER, node, gpus, command, environment, log, number)


def _gpus_for(config: Config, machine: Machine) -> tuple[str, ...]:
    """The names of a node's GPUs that the run uses; plain numbers if this machine has fewer than it asks for."""
    there, wanted = () if config.training.use_cpu else machine.gpus, config.launch.gpus
    if wanted is None:
        return there
    return there[:wanted] if wanted <= len(there) else Machine.of(wanted).gpus


def _unnamed_hosts(nodes: int) -> Place:
    return Place() if nodes == 1 else Place(hosts=tuple(f"<node {number}>" for number in range(nodes)))


def as_text(plan: LaunchPlan) -> str:
    """The plan as YAML, processes in starting order."""
    content: dict[str, Any] = {
        "run": str(plan.run),
        "logs": str(plan.logs),
        "nodes": plan.nodes,
        "gpus_per_node": plan.gpus,
        "num_processes": plan.num_processes,
        "serving_gpus": list(plan.sampling),
        "ports": dict(plan.ports),
    }
    for number, server in enumerate(plan.servers):
        content["server" if len(plan.servers) == 1 else f"server_{number}"] = {
            "url": server.url,
            "model": server.model,
            "health": server.health,
            "started_by": "this launcher" if server.is_ours else "somebody else: it must be up",
            "key": "made for this run, in the environment" if server.is_ours else f"{ENGINE_KEY}, if it needs one",
        }
    content["processes"] = [
        {
            "name": f"{process.name}-{process.number}" if process.number else process.name,
            "node": process.node,
            "gpus": list(process.gpus),
            "environment": dict(process.environment),
            "command": shlex.join(process.command),
            "log": str(process.log),
        }
        for process in plan.processes
    ]
    if plan.accelerate is not None:
        content["accelerate"] = {"file": str(plan.accelerate_file), "config": dict(plan.accelerate)}
    if plan.notes:
        content["notes"] = list(plan.notes)
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


class _Dumper(yaml.SafeDumper):
    """Writes short lists on one line."""


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    flow = all(isinstance(item, str) and len(item) < 50 for item in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=flow)


_Dumper.add_representer(list, _list)
