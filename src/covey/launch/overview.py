"""`covey launch --plan`: the plan as a short table, and how busy its two sides would be, from measured times.

Side by side, a round takes as long as its slower side (`covey.runlog.overlap`). Generation is taken to be as many times
faster as there are sampling GPUs, and learning as there are learning GPUs: an estimate, best from a run whose split is
near. `covey.launch.overview.suggested` is the split with the shortest rounds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from covey.config import Config
from covey.config.groups.training import training_fields
from covey.errors import ConfigError
from covey.launch.plan import SERVER, LaunchPlan
from covey.runlog import names, read_metrics
from covey.runlog.directory import RunDirectory
from covey.runlog.overlap import Expected, Round, expected, measured_rounds

STALENESS = (0, 1, 2, 4)
"""The values that the table shows, besides the run's own."""
_HEADING = ("sampling GPUs", "learning GPUs", "staleness", "s a round", "speed", "sampling busy", "learning busy", "")


@dataclass(frozen=True, slots=True)
class Split:
    """GPUs that sample and GPUs that learn; processes without GPUs count as one each."""

    sampling: int
    learning: int
    shared: bool = False
    """Whether they are the same ones, in turns."""

    def scaled(self, rounds: Sequence[Round], measured: Split) -> list[Round]:
        """What rounds that were measured with another split take with this one."""
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
        run = RunDirectory(folder)
        rows = read_metrics(run.metrics)
        rounds = measured_rounds(rows)
        if not rounds:
            raise ConfigError(f"{run.metrics} has no step with {names.GENERATION_TIME} yet: wait for the first ones.")
        on_gpus = any(names.DEVICE_MEMORY in row for row in rows)
        return cls(folder, rounds, _split_of(run) if on_gpus else Split(1, 1), on_gpus)


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
    return Split(int(config.training.vllm_tensor_parallel_size), plan.num_processes)


def suggested(measured: Measured, plan: LaunchPlan, config: Config, own: Split) -> Split:
    """The split of the plan's GPUs with the shortest rounds; of equal ones, that with the fewest sampling.

    A server's GPUs are its tensor parallel size, of which powers of two are tried. On several nodes the last one
    serves, and its other GPUs are idle.

    Args:
        measured: a run's times.
    """
    sizes = [
        size for size in (2**power for power in range(plan.gpus.bit_length())) if size < plan.gpus + (plan.nodes > 1)
    ]
    if plan.server is not None and not plan.server.is_ours:
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
        {"node": one.node, "name": one.name, "gpus": one.gpus, "role": _row(one, plan, config)[-1]}
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
    lines = [f"{plan.run}: {plan.nodes} node{'' if plan.nodes == 1 else 's'} with {gpus}", ""]
    lines += _columns(("node", "process", "GPUs", ""), [_row(process, plan, config) for process in plan.processes])
    lines += [f"· {note}" for note in plan.notes]
    lines.append("")
    if times is None:
        return "\n".join(
            [*lines, "How busy they would be: --times RUN takes the times of a run that has begun training.", ""]
        )
    measured = Measured.of(times)
    return "\n".join([*lines, *_expectations(plan, config, measured, cpus), ""])


def _row(process: Any, plan: LaunchPlan, config: Config) -> tuple[str, ...]:
    what = "samples (vLLM server)" if process.name == SERVER else "learns"
    if process.name != SERVER and plan.sampling and plan.server is None:
        what = f"learns; its rollout process samples on {plan.sampling[0]}"
    elif process.name != SERVER and plan.server is None:
        what = (
            "samples in a process of its own, and learns"
            if config.training.staleness
            else "samples and learns in turns"
        )
    return str(process.node), process.name, ",".join(process.gpus) or "–", what


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


def _split_of(run: RunDirectory) -> Split | None:
    """Where a run with GPUs ran, by its config and its number of processes."""
    try:
        processes = int(json.loads(run.environment.read_bytes())["processes"])
        training = yaml.safe_load(run.config.read_text(encoding="utf-8")).get("training") or {}
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        yaml.YAMLError,
    ):  # of an older version, or damaged
        return None
    values = {name: training.get(name, field.default) for name, field in training_fields().items()}
    if not values["use_vllm"] and values["staleness"]:
        return Split(1, processes)
    if not values["use_vllm"] or values["vllm_mode"] != "server":
        return Split(processes, processes, shared=True)
    return Split(int(values["vllm_tensor_parallel_size"]), processes)


def _columns(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (heading, *rows)]
