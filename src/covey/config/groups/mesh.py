"""`model.mesh_shape`: data-parallel and sharded processes. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.config.groups.training import TrainingConfig
from covey.config.values import BadKeyError, show
from covey.errors import ConfigError

AXES = ("dp", "fsdp", "tp")
"""Outermost first: the order in which ranks are laid out, in whatever order the axes are written. `tp` (tensor
parallel) is read, for other tools' recipes, and trained as more shards (`shard_in_place_of_tp`)."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The device mesh, one size for each axis."""

    dp: int = 1
    """Replicas of the model (data parallel)."""
    fsdp: int = 1
    """Shards of each replica (FSDP2), those of the axis `tp` among them; each holds its part of every weight, and reads
    its own rows."""
    tp: int = 1
    """Size of the axis `tp`."""

    @classmethod
    def of(cls, shape: Sequence[Sequence[int | str]] | None) -> Mesh:
        """The mesh of a checked `model.mesh_shape`; null is one process, or one replica per process."""
        if shape is None:
            return cls()
        sizes = {str(axis): int(size) for size, axis in zip(*shape, strict=True)}
        tp = sizes.get("tp", 1)
        return cls(sizes.get("dp", 1), sizes.get("fsdp", 1) * tp, tp)

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self.dp * self.fsdp

    @property
    def splits(self) -> bool:
        """Whether it splits the model, rather than only replicating it."""
        return self.fsdp > 1


def check_shape(shape: Sequence[Sequence[int | str]]) -> None:
    """Raise a `BadKeyError` unless this is a list of sizes and one of axes, all known and different."""
    sizes, axes = (shape[0], shape[1]) if len(shape) == 2 else ([], [])
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    if not sizes or len(sizes) != len(axes) or not whole or not all(isinstance(axis, str) for axis in axes):
        raise BadKeyError(
            "model.mesh_shape",
            f'={show(shape)} is not a mesh: write the sizes and then the axes, such as [[2, 2], ["dp", "fsdp"]].',
        )
    unknown = [str(axis) for axis in axes if axis not in AXES]
    if unknown or len(set(axes)) != len(axes):
        raise BadKeyError(
            "model.mesh_shape", f"={show(shape)}: the axes must be different ones of dp, fsdp and tp, not {show(axes)}."
        )


def shard_in_place_of_tp(
    shape: Sequence[Sequence[int | str]], training: TrainingConfig
) -> tuple[list[list[Any]], TrainingConfig, str]:
    """The mesh with `tp` as more shards, and the batch divided among them, so that a step takes the rows that it took.

    Args:
        shape: a checked `model.mesh_shape` whose axis `tp` is above 1.
        training: the settings, with the batch of one tensor-parallel group.

    Returns:
        The mesh, the settings with the batch of one process, and a note for the user.

    Raises:
        BadKeyError: neither `per_device_train_batch_size` nor the accumulation, nor both, can be divided.
    """
    mesh, batch, whole = Mesh.of(shape), training.per_device_train_batch_size, training.generation_batch_size
    groups = mesh.processes // mesh.tp
    by = mesh.tp // math.gcd(batch, mesh.tp)  # what is left to divide the accumulation by
    steps = {name: getattr(training, name) for name in ("gradient_accumulation_steps", "steps_per_generation")}
    counts = {**steps, "generation_batch_size": whole and whole // (batch * groups)}
    odd = [f"training.{name}={getattr(training, name)}" for name, size in counts.items() if size and size % by]
    flat: list[list[Any]] = [[mesh.dp, mesh.fsdp], ["dp", "fsdp"]] if mesh.dp > 1 else [[mesh.fsdp], ["fsdp"]]
    given, made = (show(one).replace("'", "") for one in (shape, flat))
    why = (
        f"TRL's trainer samples different completions in the {mesh.tp} processes of a tensor-parallel (tp) group and "
        "trains as if they were the same"
    )
    if odd:
        raise BadKeyError(
            "model.mesh_shape",
            f"={given} can only be trained as {made} with the batch of each process divided by {mesh.tp}, since {why}. "
            f"But training.per_device_train_batch_size={batch} is no multiple of {mesh.tp}, and {' and '.join(odd)} "
            "would give no whole number of micro-batches. Set training.per_device_train_batch_size="
            f"{batch * by}, or leave tp out: model.mesh_shape='{made}'.",
        )
    divided = {name: size // by for name, size in steps.items() if size}
    new = {"per_device_train_batch_size": batch * by // mesh.tp, **divided}
    changed = {name: value for name, value in new.items() if value != getattr(training, name)}
    text = ", ".join(f"training.{name}={value} (was {getattr(training, name)})" for name, value in changed.items())
    note = (
        f"model.mesh_shape={given} is trained as {made}: {why}. A step stays that of {groups} "
        f"process{'' if groups == 1 else 'es'}: {text}."
    )
    return flat, TrainingConfig({**training.values, **changed}), note


def check_mesh(shape: Sequence[Sequence[int | str]] | None, processes: int) -> Mesh:
    """Check that this mesh fits so many training processes. A mesh of ones, or none, fits any number.

    Args:
        processes: training processes, over all machines.

    Raises:
        BadKeyError: the sizes do not multiply to the number of processes, or the shape is not possible.
    """
    mesh = Mesh.of(shape)
    if shape is None:
        return mesh
    if mesh.processes not in (1, processes):
        product = " x ".join(str(size) for size in shape[0])
        alone = "this is one process" if processes == 1 else f"there are {processes} processes"
        raise BadKeyError(
            "model.mesh_shape",
            f"={show(shape)} takes {product} = {mesh.processes} training processes, but {alone}. Start "
            f"as many (covey launch with launch.num_processes={mesh.processes} does), or set "
            + ("model.mesh_shape=null." if processes == 1 else f"model.mesh_shape='[[{processes}], [fsdp]]', or null."),
        )
    return mesh


def check_axis(axis: str, size: int, source: str) -> None:
    """Check an axis that only an accelerate config can set: training supports replicas and shards only.

    Args:
        axis: `tp`, `cp` or `sp`, as accelerate's `parallelism_config_<axis>_size` names it.
        size: number of processes along it.
        source: which accelerate config it is, for the message.

    Raises:
        ConfigError: the size is above one.
    """
    if size > 1:
        what = {"tp": "every layer", "cp": "every sequence", "sp": "every sequence"}[axis]
        raise ConfigError(
            f"{source}: its parallelism_config_{axis}_size is {size}, which splits {what} over {size} processes, and "
            "training cannot do that: TRL gives each process random numbers and rows of its own, but processes that "
            "share a sequence must generate and train on the same completions. Remove it, and shard the model with "
            "model.mesh_shape='[[N], [fsdp]]' instead."
        )
