"""How a run's GPUs are split between vLLM servers and training, and which split `training.vllm_servers=auto` takes.

A server takes `vllm_tensor_parallel_size` GPUs of one node. Training needs the same number of processes on every node
that trains, so either whole nodes serve, the last ones, or every node serves with as many of its GPUs. The fastest
split is the one with the shortest rounds for each completion, by a run's measured times or else by an estimate.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import yaml

from covey.config import Config, TrainingConfig
from covey.config.groups.training import check_geometry, training_fields
from covey.config.vllm import AUTO, is_elsewhere, leaves_place_open
from covey.errors import ConfigError, CoveyError
from covey.launch.machine import Machine, counted_gpus
from covey.model.load import read_model_config
from covey.runlog import names
from covey.runlog.directory import RunDirectory

if TYPE_CHECKING:
    from covey.runlog.overlap import Round


@dataclass(frozen=True, slots=True)
class Split:
    """GPUs that sample and GPUs that learn; processes without GPUs count as one each."""

    sampling: int
    learning: int
    shared: bool = False
    """Whether they are the same ones, in turns."""

    def scaled(self, rounds: Sequence[Round], measured: Split) -> list[Round]:
        """What rounds that were measured with another split take with this one."""
        from covey.runlog.overlap import Round

        faster, learns = self.sampling / measured.sampling, self.learning / measured.learning
        return [Round(one.generation / faster, one.learning / learns, one.sync) for one in rounds]


@dataclass(frozen=True, slots=True)
class Measured:
    """The times of a run."""

    run: Path
    rounds: list[Round]
    split: Split | None
    """Where it ran; None if its files do not say."""
    on_gpus: bool

    @classmethod
    def of(cls, folder: Path) -> Measured:
        """Read a finished or running run. Raises a `CoveyError` if there is no such run, or it has finished no step."""
        from covey.runlog import read_metrics
        from covey.runlog.overlap import measured_rounds

        run = RunDirectory(folder)
        rows = read_metrics(run.metrics)
        rounds = measured_rounds(rows)
        if not rounds:
            raise ConfigError(f"{run.metrics} has no step with {names.GENERATION_TIME} yet: wait for the first ones.")
        on_gpus = any(names.DEVICE_MEMORY in row for row in rows)
        return cls(folder, rounds, _split_of(run) if on_gpus else Split(1, 1), on_gpus)


def _split_of(run: RunDirectory) -> Split | None:
    """Where a run with GPUs ran, by its config and its number of processes."""
    values = _training_of(run)
    try:
        processes = int(json.loads(run.environment.read_bytes())["processes"])
    except (OSError, ValueError, KeyError, TypeError):  # of an older version, or damaged
        return None
    if values is None:
        return None
    if not values["use_vllm"] and values["staleness"]:
        return Split(1, processes)
    if not values["use_vllm"] or values["vllm_mode"] != "server":
        return Split(processes, processes, shared=True)
    servers = values["vllm_servers"] if isinstance(values["vllm_servers"], int) else 1
    return Split(int(values["vllm_tensor_parallel_size"]) * servers, processes)


def _training_of(run: RunDirectory) -> dict[str, Any] | None:
    """The group `training` of a run's config; None if it cannot be read."""
    try:
        training = yaml.safe_load(run.config.read_text(encoding="utf-8")).get("training") or {}
        return {name: training.get(name, field.default) for name, field in training_fields().items()}
    except (OSError, AttributeError, yaml.YAMLError):
        return None


@dataclass(frozen=True, slots=True)
class Serving:
    """Where servers are."""

    by_node: tuple[int, ...]
    """Servers of each node."""
    whole: bool
    """Whether the nodes that serve do not train."""
    idle: int
    """GPUs that neither serve nor train."""
    split: Split

    @property
    def count(self) -> int:
        return sum(self.by_node)


def servings(nodes: int, gpus: int, size: int, wanted: int | None = None) -> Iterator[Serving]:
    """Every way to place servers of `size` GPUs on equal nodes, those with whole nodes first; all that train have equal
    numbers of GPUs.

    Args:
        nodes: of the run.
        gpus: of each.
        size: GPUs of a server.
        wanted: the number of servers; None for any.
    """
    most = gpus // size
    for serving in range(1, nodes if most else 1):
        count = serving * most if wanted is None else wanted
        if not (serving - 1) * most < count <= serving * most:
            continue
        of_last = [min(most, count - most * before) for before in range(serving)]
        by_node = (*[0] * (nodes - serving), *of_last)
        yield Serving(by_node, True, serving * gpus - count * size, Split(count * size, (nodes - serving) * gpus))
    for each in range(1, (gpus - 1) // size + 1):
        if wanted in (None, each * nodes):
            yield Serving((each,) * nodes, False, 0, Split(nodes * each * size, nodes * (gpus - each * size)))


def placed_servers(config: Config, gpus: int) -> Serving | None:
    """Where the servers of a config with a number of them go: the way with the fewest idle GPUs, whole nodes first.
    None if they have no place."""
    training = config.training
    count, size = int(training.vllm_servers), int(training.vllm_tensor_parallel_size)
    found = servings(config.launch.nodes, gpus, size, count)
    return min(found, key=lambda one: one.idle, default=None)


def why_no_place(config: Config, there: int) -> str:
    """Why the servers of a config have no place on nodes with so many GPUs."""
    training, nodes = config.training, config.launch.nodes
    size, count = int(training.vllm_tensor_parallel_size), int(training.vllm_servers)
    wanted = size * count
    if count > 1 and (nodes > 1 or wanted > there):
        legal = sorted({one.count for one in servings(nodes, there, size)})
        return (
            f"training.vllm_servers={count}, each on {counted_gpus(size)} (training.vllm_tensor_parallel_size), have "
            f"no place on {nodes} {'node' if nodes == 1 else 'nodes'} with {counted_gpus(there)}: every node that "
            f"trains must keep as many GPUs. Possible numbers: {', '.join(map(str, legal)) or 'none'}."
        )
    if nodes > 1 or wanted > there:
        return (
            f"training.vllm_tensor_parallel_size={wanted} asks for a vLLM server on {counted_gpus(wanted)}, but a node "
            f"has {there}. Lower it, or ask for more with launch.gpus."
        )
    key = "training.vllm_tensor_parallel_size" if count == 1 else "training.vllm_servers"
    return (
        f"{'A vLLM server' if count == 1 else f'{count} vLLM servers'} on {counted_gpus(wanted)} ({key}) leaves none "
        f"of the {there} to train on. Ask for {wanted + 1} or more with launch.gpus, lower {key}, or let vLLM share "
        "the GPUs with training: training.vllm_mode=colocate."
    )


def with_servers(config: Config, count: int) -> Config:
    """The config with this number of servers."""
    training = TrainingConfig({**config.training.values, "vllm_servers": count})
    return dataclasses.replace(config, training=training)


def resolved(config: Config, machine: Machine, times: Path | None, run: Path) -> tuple[Config, list[str]]:
    """The config with a number in place of `training.vllm_servers=auto`, and a note that says why.

    Args:
        machine: each node.
        times: a run whose times decide; None for an estimate.
        run: the directory of this run: one that is resumed keeps its number.

    Raises:
        CoveyError: no split fits, or the times cannot be read.
    """
    training, launch = config.training, config.launch
    if training.vllm_servers != AUTO:
        return config, []
    gpus = 0 if training.use_cpu else len(machine.gpus) if launch.gpus is None else launch.gpus
    is_open = leaves_place_open(config)
    shares = is_open and (config.model.reasoning_vocab_size or not legal_servings(config, gpus))
    if not training.use_vllm or is_elsewhere(config) or shares or not (is_open or training.vllm_mode == "server"):
        return with_servers(config, 1), []
    before = (_training_of(RunDirectory(run)) or {}).get("vllm_servers")
    if isinstance(before, int) and not config.overwrite:
        return with_servers(config, before), [f"vLLM servers: {before}, with which the run began (auto)."]
    if not gpus:
        return with_servers(config, 1), ["vLLM servers: 1 (auto), as there are no GPUs to divide."]
    measured = None if times is None else Measured.of(times)
    if measured is not None and not measured.on_gpus:
        raise ConfigError(f"{times} had no GPU: its times do not say how to split GPUs. Leave --times out.")
    legal = legal_servings(config, gpus)
    if not legal:
        raise ConfigError(
            f"training.vllm_servers=auto: no split of {launch.nodes} x {gpus} GPUs leaves training processes whose "
            f"batch holds whole groups of training.num_generations={training.num_generations} beside a server of "
            f"{counted_gpus(int(training.vllm_tensor_parallel_size))}. Change the batch, or give a number of servers."
        )
    best = fastest(config, legal, measured)
    why = f"by the times of {times}" if times is not None else "by an estimate; --times RUN takes those of a run"
    return with_servers(config, best.count), [
        f"{best.count} vLLM servers on {best.split.sampling} GPUs, and {best.split.learning} that train "
        f"(training.vllm_servers=auto, {why})."
    ]


def legal_servings(config: Config, gpus: int) -> list[Serving]:
    """The ways to place servers on nodes with so many GPUs whose training processes hold whole groups, each with the
    processes that train."""
    training, launch, legal = config.training, config.launch, []
    size = int(training.vllm_tensor_parallel_size)
    for one in servings(launch.nodes, gpus, size):
        free = gpus if one.whole else gpus - one.by_node[0] * size
        trains = launch.nodes - (sum(map(bool, one.by_node)) if one.whole else 0)
        processes = trains * (launch.num_processes or free)
        if launch.num_processes and launch.num_processes > free:
            continue
        if placed_servers(with_servers(config, one.count), gpus) != one:
            continue  # the number alone would be placed in another way, on as many GPUs
        with suppress(CoveyError):
            check_geometry(training, processes)
            legal.append(dataclasses.replace(one, split=Split(one.split.sampling, processes)))
    return legal


def fastest(
    config: Config, legal: Sequence[Serving], measured: Measured | None = None, costs: Mapping[str, float] | None = None
) -> Serving:
    """The one with the shortest rounds for a completion; of equal ones that with the fewest idle GPUs, then servers.

    Args:
        measured: times of a run; None for an estimate.
        costs: see `estimated`.
    """
    from covey.runlog.overlap import expected

    staleness = int(config.training.staleness)

    def seconds(one: Serving, longer: float) -> float:
        if measured is not None:  # of rounds with as many completions
            return expected(one.split.scaled(measured.rounds, measured.split or legal[0].split), staleness).seconds
        completions = round_size(config, one.split.learning)
        found = estimated(config, one.split, completions, costs)
        found = dataclasses.replace(found, generation=longer * found.generation)
        return expected([found], staleness).seconds / completions

    lost = dict.fromkeys(legal, 1.0)
    for longer in (1.0,) if measured is not None else (1.0, _LONGER):
        each = {one: seconds(one, longer) for one in legal}
        lost = {one: max(lost[one], taken / min(each.values())) for one, taken in each.items()}
    return min(legal, key=lambda one: (round(lost[one], 9), one.idle, one.count))


def round_size(config: Config, processes: int) -> int:
    """Completions of a generation round with so many training processes."""
    training = config.training
    return training.generation_batch * (processes if training.generation_batch_size is None else 1)


_FLOPS, _BANDWIDTH = 989e12, 3.35e12
"""Of an H100 SXM in bfloat16, a second (NVIDIA's data sheet, dense); only the ratio of both sides counts."""
_TRAINING_SHARE, _SAMPLING_SHARE, _READING_SHARE = 0.35, 0.5, 0.6
"""Of these that training, batched decoding and reading weights reach."""
_LONGER = 1.8
"""Generation may take so many times as long as estimated (longer completions, stragglers), and too few servers cost
more than too many: the split is taken that loses least in the worse case."""
_LONGEST = 2.5
"""The longest completion of a server's batch, in mean lengths: completions are heavy-tailed."""
_FILLED = 0.5
"""The mean length, as a share of `training.max_completion_length`."""


def estimated(config: Config, split: Split, completions: int, costs: Mapping[str, float] | None = None) -> Round:
    """The seconds of a round of so many completions, by the model's size.

    Learning takes 6 floating-point operations per parameter and token, and 2 more for each scoring pass (Kaplan et al.
    2020, arXiv:2001.08361, table 1); a step of decoding reads the weights once, or computes 2 per parameter and
    completion, whichever takes longer.

    Args:
        config: of the run.
        split: where it runs.
        completions: of the round.
        costs: factors of `learning` and `generation`; 1 where left out.
    """
    from covey.model.memory import estimate_memory
    from covey.runlog.overlap import Round

    model, training = read_model_config(config.model.name, config.model.revision), config.training
    length = config.dataset.max_prompt_length or 512
    parameters = 1.5e9
    with suppress(AttributeError, TypeError, ValueError, ArithmeticError):  # without a config.json here: any model
        parameters = float(estimate_memory(config, SimpleNamespace(**model), length, on_gpu=True).parameters)
    mean = _FILLED * float(training.max_completion_length)
    passes = 1 + bool(training.beta) + (training.num_iterations > 1)
    operations = (6 * training.num_iterations + 2 * passes) * parameters * completions * (length + mean)
    learning = operations / (_FLOPS * _TRAINING_SHARE * split.learning)
    size = int(training.vllm_tensor_parallel_size)
    batch = math.ceil(completions * size / split.sampling)
    reading = 2 * parameters / (_BANDWIDTH * _READING_SHARE * size)
    computing = 2 * parameters * batch / (_FLOPS * _SAMPLING_SHARE * size)
    prefill = 2 * parameters * length * batch / training.num_generations / (_FLOPS * _SAMPLING_SHARE * size)
    longest = min(_LONGEST * mean, float(training.max_completion_length))
    generation = prefill + longest * reading + mean * computing
    found = costs or {}
    return Round(generation * found.get("generation", 1.0), learning * found.get("learning", 1.0))
