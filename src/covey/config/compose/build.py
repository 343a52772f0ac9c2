"""From a plain mapping to the frozen `Config`: unknown keys are rejected, every value is checked."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from covey.config.groups.mesh import Mesh, shard_in_place_of_tp
from covey.config.groups.objectives import groups_per_round
from covey.config.groups.training import TrainingConfig, check_geometry
from covey.config.keys import GROUPS, check_known
from covey.config.schema import Config
from covey.config.values import BadKeyError, show
from covey.errors import ConfigError

T = TypeVar("T")


def build(
    values: Mapping[str, Any],
    world_size: int | Callable[[Config], int] | None = None,
    notes: list[str] | None = None,
) -> Config:
    """Build the config from nested plain values.

    Args:
        values: the values set; all others take the schema's (for `training`: TRL's) default.
        world_size: number of training processes that the batch is split over, or a function of the config; None takes
            the WORLD_SIZE that torchrun and accelerate set, else 1. A mesh has as many as its sizes say.
        notes: takes what is trained otherwise than the values say.

    Raises:
        ConfigError: an unknown key, a value of the wrong type or out of range, or values that contradict each other.
    """
    check_keys(values)
    top = {str(name): value for name, value in values.items() if name not in GROUPS}
    groups: dict[str, Any] = {}
    for name, group in GROUPS.items():
        inside = values.get(name) or {}
        if name == "training":
            groups[name] = TrainingConfig(inside)
        elif "." not in name:
            groups[name] = group(**_with_inner_groups(name, inside))
    config = Config(**top, **groups)
    found = world_size(config) if callable(world_size) else world_size
    processes = _world_size() if found is None else found
    shape, tp = config.model.mesh_shape, 1
    if shape is not None:
        mesh = Mesh.of(shape)
        processes, tp = max(processes, mesh.processes), mesh.tp
    if config.sft.rows is None:
        check_geometry(config.training, processes // tp)
    if config.objective.resample_groups:
        groups_per_round(config.objective.resample_groups, config.training.num_generations, processes)
    if shape is None or tp == 1:
        return config
    shape, training, note = shard_in_place_of_tp(shape, config.training)
    if notes is not None:
        notes.append(note)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, mesh_shape=shape), training=training)


def check_keys(values: Mapping[str, Any]) -> None:
    """Raise a `BadKeyError` for a key that does not exist, naming the nearest ones, or a group without keys."""
    for key, value in walk(values):
        check_known(key)
        dotted = [name for name in value if "." in str(name)] if key in GROUPS and isinstance(value, Mapping) else []
        if dotted or (key in values and "." in key):
            raise BadKeyError(f"{key}.{dotted[0]}" if dotted else key, " is dotted; only a recipe's top level may be.")
        if key in GROUPS and value is not None and not isinstance(value, Mapping):
            raise BadKeyError(key, f"={show(value)} is not a mapping: {key} is a group and holds keys.")


def as_dict(config: Config) -> dict[str, Any]:
    """The nested plain values that `build` makes the same config from."""
    return {item.name: _plain(getattr(config, item.name)) for item in dataclasses.fields(config)}


def flatten(config: Config) -> dict[str, Any]:
    """The values by dotted key; of `training` only those that were set."""
    return {key: value for key, value in walk(as_dict(config)) if key not in GROUPS}


def walk(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value, groups before their keys; mappings that are values are not entered."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        yield key, value
        if key in GROUPS and isinstance(value, Mapping):
            yield from walk(value, f"{key}.")


def _plain(value: Any) -> Any:
    if isinstance(value, TrainingConfig):
        return {name: _plain(inner) for name, inner in value.values.items()}
    if dataclasses.is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _with_inner_groups(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a group, its inner groups made into objects."""
    found = dict(values)
    for key, group in GROUPS.items():
        outer, _, inner = key.rpartition(".")
        if outer == name:
            found[inner] = group(**(found.get(inner) or {}))
    return found


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"The environment variable WORLD_SIZE={text} is not a number of processes: use 1 or more.")
    return int(text)
