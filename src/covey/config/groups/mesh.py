"""`model.mesh_shape`: data-parallel and sharded processes. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from covey.config.values import BadKeyError, show
from covey.errors import ConfigError

AXES = ("dp", "fsdp", "tp")
"""Outermost first: the order in which ranks are laid out, in whatever order the axes are written. `tp` (tensor
parallel) is read, for other tools' recipes, and refused where training is planned or begins."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The device mesh, one size for each axis."""

    dp: int = 1
    """Replicas of the model (data parallel)."""
    fsdp: int = 1
    """Shards of each replica (FSDP2); each holds its part of every weight, and reads its own rows."""

    @classmethod
    def of(cls, shape: Sequence[Sequence[int | str]] | None) -> Mesh:
        """The mesh of a checked `model.mesh_shape`; null is one process, or one replica per process."""
        if shape is None:
            return cls()
        return cls(**{str(axis): int(size) for size, axis in zip(*shape, strict=True) if axis != "tp"})

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


def refuse_tensor_parallel(shape: Sequence[Sequence[int | str]] | None) -> None:
    """Raise a `BadKeyError` if the axis `tp` has more than one process: training does not split layers."""
    size_of = {} if shape is None else {str(axis): int(size) for size, axis in zip(*shape, strict=True)}
    if shape is not None and size_of.get("tp", 1) > 1:
        raise BadKeyError("model.mesh_shape", _refusal_of_tp(shape, *(size_of.get(axis, 1) for axis in AXES)))


def _refusal_of_tp(shape: Sequence[Sequence[int | str]], dp: int, fsdp: int, tp: int) -> str:
    """Why layers cannot be split, and the meshes that use as many processes."""
    sharded = f"[[{dp * fsdp * tp}], [fsdp]]"
    replicated = f"[[{dp * tp}, {fsdp}], [dp, fsdp]]" if fsdp > 1 else f"[[{dp * tp}], [dp]]"
    return (
        f"={show(shape)} splits every layer over {tp} processes (tp), and training cannot do that: TRL samples in each "
        "process with random numbers of its own, but the processes of one tensor-parallel group would have to generate "
        f"and train on the same completions. Shard the model with fsdp: model.mesh_shape='{sharded}' or "
        f"'{replicated}' takes as many processes, and null any number. Tensor parallelism is available in vLLM "
        "(training.vllm_tensor_parallel_size)."
    )


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
    refuse_tensor_parallel(shape)
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
