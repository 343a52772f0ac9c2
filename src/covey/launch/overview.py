"""`covey launch --plan`: the plan as a picture, and how busy its two sides would be, from measured times.

Side by side, a round takes as long as its slower side (`covey.runlog.overlap`). Generation is taken to be as many times
faster as there are sampling GPUs, and learning as there are learning GPUs: an estimate, best from a run whose split is
near. `covey.launch.overview.suggested` is the split with the shortest rounds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from covey.config import Config
from covey.config.groups.mesh import Mesh
from covey.config.vllm import colocated_share, tensor_parallel_sizes
from covey.launch.plan import MEMORY_SHARE, SERVER, TRAINER, LaunchPlan, Process, server_dtype
from covey.launch.servers import Measured, Split, round_size
from covey.model.load import read_model_config, tensor_parallel_choices
from covey.model.memory import estimate_memory, gigabytes
from covey.runlog.overlap import Expected, expected

STALENESS = (0, 1, 2, 4)
"""The values that the table shows, besides the run's own."""
_HEADING = ("sampling GPUs", "learning GPUs", "staleness", "s a round", "speed", "sampling busy", "learning busy", "")


@dataclass(frozen=True, slots=True)
class Outlook:
    """What rounds of measured times would be with a split and a staleness."""

    split: Split
    staleness: int
    expected: Expected
    speed: float
    """Relative to this plan without staleness."""
    suggested: bool


def split_of(plan: LaunchPlan, config: Config) -> Split:
    """The plan's own split."""
    if plan.gpus == 0:
        return Split(1, 1)
    if plan.server is None:
        return Split(len(plan.sampling) or plan.num_processes, plan.num_processes, shared=not plan.sampling)
    if not plan.server.is_ours:
        return Split(1, plan.num_processes)  # whatever it has, it keeps
    return Split(int(config.training.vllm_tensor_parallel_size) * len(plan.servers), plan.num_processes)


def suggested(measured: Measured, plan: LaunchPlan, config: Config, own: Split) -> Split:
    """The split of the plan's GPUs with the shortest rounds; of equal ones, that with the fewest sampling.

    A server's GPUs are its tensor parallel size, of which legal powers of two are tried. On several nodes the last one
    serves, and its other GPUs are idle.

    Args:
        measured: a run's times.
    """
    sizes = tensor_parallel_choices(config, plan.gpus - (plan.nodes == 1))
    if plan.server is not None and (not plan.server.is_ours or len(plan.servers) > 1):
        return own
    learning = (plan.nodes - 1) * plan.gpus if plan.nodes > 1 else plan.gpus
    found = [Split(size, learning - (0 if plan.nodes > 1 else size)) for size in sizes]
    staleness = max(1, int(config.training.staleness))

    def seconds(split: Split) -> float:
        return expected(split.scaled(measured.rounds, measured.split or own), staleness).seconds

    return min(found, key=lambda split: (round(seconds(split), 9), split.sampling), default=own)


def as_values(plan: LaunchPlan, config: Config, times: Path | None) -> dict[str, Any]:
    """What `as_table` shows, for programs."""
    processes = [
        {"node": one.node, "name": one.name, "gpus": one.gpus, "role": _role(one, plan, config)}
        for one in plan.processes
    ]
    measured = None if times is None else Measured.of(times)
    comparable = measured is not None and bool(plan.gpus) == measured.on_gpus
    return {
        **{
            "run": plan.run,
            "nodes": plan.nodes,
            "gpus_per_node": plan.gpus,
            "processes": processes,
            "notes": plan.notes,
            "legend": [*_legend(plan, config)],
        },
        "times": measured,
        "expected": _outlooks(plan, config, measured)[0] if measured is not None and comparable else [],
    }


def as_table(plan: LaunchPlan, config: Config, times: Path | None, cpus: int) -> str:
    """The plan in lines of text.

    Args:
        times: the directory of a run to take times from; None without one.
        cpus: of this machine.

    Raises:
        CoveyError: the run cannot be read.
    """
    gpus = f"{plan.gpus} GPU{'' if plan.gpus == 1 else 's'}" if plan.gpus else "no GPU"
    lines = [f"{plan.run}: {plan.nodes} node{'' if plan.nodes == 1 else 's'} with {gpus}", "", *_picture(plan), ""]
    for line in _legend(plan, config):
        lines += textwrap.wrap(line, 80, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    lines += [f"· {note}" for note in plan.notes]
    lines.append("")
    if times is None:
        return "\n".join(
            [*lines, "How busy they would be: --times RUN takes the times of a run that has begun training.", ""]
        )
    measured = Measured.of(times)
    return "\n".join([*lines, *_expectations(plan, config, measured, cpus), ""])


def _role(process: Process, plan: LaunchPlan, config: Config) -> str:
    if process.name == SERVER or plan.server is not None:
        return f"samples ({_counted(plan)})" if process.name == SERVER else "learns"
    if plan.sampling:
        return f"learns; its rollout process samples on {plan.sampling[0]}"
    return "samples in a process of its own, and learns" if config.training.staleness else "samples and learns in turns"


def _counted(plan: LaunchPlan) -> str:
    return "vLLM server" if len(plan.servers) == 1 else f"{len(plan.servers)} vLLM servers"


def _picture(plan: LaunchPlan) -> list[str]:
    """A row of boxes for each node, one for each GPU, or process without GPUs; equal nodes share a row."""
    of_node = plan.num_processes // sum(process.name == TRAINER for process in plan.processes)

    def boxes(node: int) -> str:
        here = dict.fromkeys((one.name for one in plan.on(node)), 0)
        for process in plan.on(node):
            here[process.name] += len(process.gpus)
        beside = len(plan.sampling) if plan.server is None and node == 0 else 0
        trains = (here[TRAINER] or of_node) if TRAINER in here else 0
        samples = max(here[SERVER], 1) if SERVER in here else beside
        return f"[{']['.join('T' * trains + '.' * (plan.gpus - trains - samples) + 'S' * samples)}]"

    rows = groupby(range(plan.nodes), boxes)
    named = [(f"nodes {first}-{more[-1]}" if more else f"node {first}", row) for row, (first, *more) in rows]
    return _columns(named[0], named[1:])


def _legend(plan: LaunchPlan, config: Config) -> Iterator[str]:
    """What each kind of box does, and the memory that it takes; the batch of all."""
    training, processes, share = config.training, plan.num_processes, colocated_share(config)
    roles = {process.name: _role(process, plan, config) for process in plan.processes}
    memory = _memory(plan, config, config.model.name)
    if plan.gpus and plan.server is None and share is not None and not training.vllm_enable_sleep_mode:
        memory += f", beside the {share:.0%} of a GPU that vLLM takes"
    yield f"[T] {roles[TRAINER]}: {processes} process{'es' * (processes > 1)}, {memory}"
    if plan.server is not None and plan.server.is_ours:
        share = training.values.get("vllm_gpu_memory_utilization", MEMORY_SHARE)
        taken = f" {share:.0%} of each GPU's memory;" if plan.gpus else ""
        yield f"[S] {roles[SERVER]}:{taken} {_memory(plan, config, plan.server.model, serves=True)}"
    yield from ["[.] idle"] * any("." in row for row in _picture(plan))
    rows, steps = training.per_device_train_batch_size, training.gradient_accumulation_steps
    yield (
        f"batch: {processes} x {rows} (per_device_train_batch_size) x {steps} (gradient_accumulation_steps) = "
        f"{processes * rows * steps} completions a step{f', {rows * steps} with one process' * (processes > 1)}; "
        f"{round_size(config, processes)} are generated at a time, {training.num_generations} of each prompt"
    )


def _memory(plan: LaunchPlan, config: Config, name: str, *, serves: bool = False) -> str:
    """What a process with this model takes, in words."""
    model, layout = read_model_config(name, config.model.revision), plan.accelerate or {}
    other = any(value and ("expert" in key or key == "quantization_config") for key, value in model.items())
    length = config.dataset.max_prompt_length or 512
    need = None
    with suppress(AttributeError, TypeError, ValueError, ArithmeticError):  # sizes are missing
        need = estimate_memory(config, SimpleNamespace(**model), length, on_gpu=bool(plan.gpus))
    if need is None or other or tensor_parallel_sizes(model) is None:
        return "memory not estimated (no config.json here, or not of a dense model with plain attention and weights)"
    if serves:
        width = 4 if server_dtype(config, on_cpu=not plan.gpus) == "float32" else 2
        return f"weights {gigabytes(need.parameters * width // int(config.training.vllm_tensor_parallel_size))}"
    if (kind := layout.get("distributed_type")) in ("FSDP", "DEEPSPEED"):
        mesh, zero = Mesh.of(config.model.mesh_shape), (layout.get("deepspeed_config") or {}).get("zero_stage")
        shards = mesh.fsdp if mesh.splits else plan.num_processes
        kept = need.weights // (shards if kind == "FSDP" or str(zero) == "3" else 1)
        need = replace(need, weights=kept, gradients=need.gradients // shards, moments=need.moments // shards)
    most = need.training if plan.sampling else max(need.training, need.rollout)
    return f"about {gigabytes(most)} each ({need.parts})"


def _expectations(plan: LaunchPlan, config: Config, measured: Measured, cpus: int) -> list[str]:
    count = len(measured.rounds)
    means = [sum(getattr(one, part) for one in measured.rounds) / count for part in ("generation", "learning", "sync")]
    lines = [
        f"{measured.run}, {count} round{'' if count == 1 else 's'}: generation {means[0]:.3g} s, learning "
        f"{means[1]:.3g} s, weight sync {means[2]:.3g} s."
    ]
    if bool(plan.gpus) != measured.on_gpus:
        there, here = ("GPUs", "none") if measured.on_gpus else ("no GPU", "some")
        return [*lines, f"It had {there} and this plan has {here}: its times say nothing about it."]
    found, own, best = _outlooks(plan, config, measured)
    if measured.split is None:
        lines.append("Its files do not say on which GPUs it ran: the split of this plan is taken.")
    lines += ["", *_columns(_HEADING, [_figures(one) for one in found]), ""]
    return [*lines, *_advice(plan, best, own, max(1, int(config.training.staleness)), cpus)]


def _outlooks(plan: LaunchPlan, config: Config, measured: Measured) -> tuple[list[Outlook], Split, Split]:
    """The rows of the table; the plan's own split; the suggested one."""
    own, given = split_of(plan, config), int(config.training.staleness)
    from_split = measured.split or own
    asked = sorted({*STALENESS, given})
    shared = [(own, 0)] if own.shared else []
    splits = [(own, staleness) for staleness in asked] if not own.shared else shared
    movable = plan.gpus * plan.nodes > 1
    best = suggested(measured, plan, config, own) if movable else own
    if best != own:
        splits += [(best, staleness) for staleness in asked if staleness]
    base = expected(own.scaled(measured.rounds, from_split), 0).seconds
    rows = []
    for split, staleness in splits:
        found = expected(split.scaled(measured.rounds, from_split), staleness)
        is_suggested = movable and (split, staleness) == (best, max(1, given))
        rows.append(Outlook(split, staleness, found, base / found.seconds, is_suggested))
    return rows, own, best


def _figures(one: Outlook) -> tuple[str, ...]:
    split, found = one.split, one.expected
    return (
        *(f"{split.sampling}{' (shared)' if split.shared else ''}", str(split.learning), str(one.staleness)),
        *(f"{found.seconds:.3g}", f"{one.speed:.2f}", f"{found.sampling:.0%}", f"{found.learning:.0%}"),
        "suggested" if one.suggested else "",
    )


def _advice(plan: LaunchPlan, best: Split, own: Split, staleness: int, cpus: int) -> list[str]:
    if plan.gpus == 0:
        cores = "core" if cpus == 1 else f"{cpus} cores"
        return [
            f"These figures are for sides with cores of their own. Here both share the {cores}, of which nothing is "
            "idle when they take turns: keep training.staleness=0, unless one of them cannot use all cores."
        ]
    if plan.gpus == 1 and plan.nodes == 1:
        return ["One GPU does both: keep training.staleness=0."]
    words = [f"training.staleness={staleness}"]
    if best != own:
        words += ["training.use_vllm=true", "training.vllm_mode=server"] if plan.server is None else []
        words += [f"training.vllm_tensor_parallel_size={best.sampling}"]
    return [f"Suggested: {' '.join(words)}. It takes both sides to be as many times faster as they have GPUs."]


def _columns(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (heading, *rows)]
