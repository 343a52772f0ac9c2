"""The group `training`: TRL's `GRPOConfig` fields under their own names, checked without importing TRL."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from covey.config.groups import snapshot
from covey.config.groups.training_limits import check_limits
from covey.config.groups.training_live import refuse_unfollowed
from covey.config.values import BadKeyError, coerce, show

OWNED_ELSEWHERE = {
    "output_dir": "set output_dir at the top level instead",
    "run_name": "set run_name at the top level instead",
    "seed": "set seed at the top level instead",
    "trust_remote_code": "set model.trust_remote_code instead",
    "resume_from_checkpoint": "use resume= (auto, true, false or the path of a checkpoint) instead",
    "eval_strategy": "use evaluation.every_steps=N instead (0: never)",
    "eval_steps": "use evaluation.every_steps=N instead (0: never)",
    "eval_on_start": "use evaluation.every_steps=N instead: it evaluates before the first step too",
    "do_eval": "use evaluation.every_steps=N instead (0: never)",
    "max_tool_calling_iterations": "use environment.max_turns instead, which is one more",
}
"""Fields of `GRPOConfig` that other keys replace, with the key to set instead. The run fills them in."""


class Values(Mapping[str, Any]):
    """An immutable mapping that pickles and copies, which a `MappingProxyType` does not."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Values({self._items!r})"


@dataclass(frozen=True, eq=True)
class TrainingConfig:
    """How to train: every field of TRL's GRPOConfig under TRL's own name, except those in other groups.

    Any field reads as an attribute (`training.max_steps`); one that was not set reads as TRL's default.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    """The values set by Covey's defaults or the user, in TRL's order; nothing else."""

    def __post_init__(self) -> None:
        known = snapshot.fields()
        for name in self.values:
            if name in OWNED_ELSEWHERE:
                raise BadKeyError(f"training.{name}", f" is not read: {OWNED_ELSEWHERE[name]}.")
            if name not in known:
                raise BadKeyError(f"training.{name}", " is not a field of TRL's GRPOConfig.")
        checked = {name: _check(name, self.values[name]) for name in known if name in self.values}
        object.__setattr__(self, "values", Values(checked))
        _check_combinations(self)

    @property
    def generation_batch(self) -> int:
        """Completions generated at a time: `generation_batch_size`, or its default for one process."""
        if self.generation_batch_size is not None:
            return int(self.generation_batch_size)
        steps = self.steps_per_generation
        return int(self.per_device_train_batch_size * (self.gradient_accumulation_steps if steps is None else steps))

    def __getattr__(self, name: str) -> Any:
        known = snapshot.fields().get(name)
        if known is None or name in OWNED_ELSEWHERE:
            elsewhere = f": {OWNED_ELSEWHERE[name]}" if name in OWNED_ELSEWHERE else ""
            raise AttributeError(f"the training config has no field {name!r}{elsewhere}")
        value = self.values.get(name, known.default)
        return list(value) if isinstance(value, list) else value


def check_geometry(training: TrainingConfig, world_size: int = 1) -> None:
    """Raise a `BadKeyError`, naming values nearby that would work, unless a generation batch holds whole groups, as TRL
    requires later."""
    group = training.num_generations
    if group is None:
        raise BadKeyError("training.num_generations", "=null cannot be trained: it must be an integer, at least 2.")
    per_step = training.per_device_train_batch_size * world_size
    batch_set = training.generation_batch_size
    if batch_set is not None and batch_set % per_step:
        works = _either(_multiples_near(batch_set, per_step * group // math.gcd(per_step, group)))
        raise BadKeyError(
            "training.generation_batch_size",
            f"={batch_set} is not a multiple of the {per_step} completions in one forward pass over all processes "
            f"({_product(training, world_size)}). It must be one, and a multiple of num_generations={group} too: "
            f"{works} would work.",
        )
    if batch_set is not None:
        batch, factor, made_of = batch_set, None, "generation_batch_size"
    else:
        name = "gradient_accumulation_steps" if training.steps_per_generation is None else "steps_per_generation"
        repeats = getattr(training, name)
        batch, factor = per_step * repeats, world_size * repeats
        made_of = f"{_product(training, world_size)} x {name} {repeats}"
    if batch % group == 0:
        return
    nearest = _divisors_near(batch, group)
    choices = [f"training.num_generations={_either(nearest)}"] if nearest else []
    if factor is not None:
        near = _multiples_near(training.per_device_train_batch_size, group // math.gcd(group, factor))
        choices.append(f"training.per_device_train_batch_size={_either(near)}")
    else:
        near = _multiples_near(batch, per_step * group // math.gcd(per_step, group))
        choices.append(f"training.generation_batch_size={_either(near)}")
    if (left := _beside_a_server(training, world_size)) is not None:
        choices.append(f"training.vllm_mode=server, which keeps GPUs for vLLM and leaves {left} to train")
    raise BadKeyError(
        "training.num_generations",
        f"={group} does not divide the generation batch of {batch} completions ({made_of}), so groups would be cut. "
        f"Near values that work: {', or '.join(choices)}.",
    )


def _check(name: str, value: Any) -> Any:
    known = snapshot.fields()[name]
    if name == "scale_rewards" and isinstance(value, bool):  # TRL accepts both and stores the text
        value = "group" if value else "none"
    if value is False and "no" in known.choices:  # YAML reads a bare `no` as false
        value = "no"
    value = check_limits(name, coerce(f"training.{name}", value, known.type))
    refuse_unfollowed(name, value)
    return value


def _check_combinations(training: TrainingConfig) -> None:
    """Reject combinations that TRL or transformers would reject only after everything is loaded."""
    if training.generation_batch_size is not None and training.steps_per_generation is not None:
        raise BadKeyError(
            "training.generation_batch_size",
            f"={training.generation_batch_size} and training.steps_per_generation={training.steps_per_generation} set "
            "the same size: set one of them only.",
        )
    if training.auto_find_batch_size:
        raise BadKeyError(
            "training.auto_find_batch_size",
            "=true cannot be used: a smaller batch would cut groups. Set it to false and lower "
            "training.per_device_train_batch_size.",
        )
    if training.load_best_model_at_end:
        raise BadKeyError(
            "training.load_best_model_at_end",
            "=true cannot be used: it needs TRL's own evaluation, and Covey evaluates by itself "
            "(evaluation.every_steps). Set it to false: evaluation.keep_best keeps the best checkpoint "
            "on held-out problems (evaluation.best_by), as best_model in the run directory.",
        )
    if training.dataloader_num_workers == 0:
        for name in (
            "dataloader_persistent_workers",
            "dataloader_prefetch_factor",
            "dataloader_multiprocessing_context",
        ):
            if value := getattr(training, name):
                raise BadKeyError(
                    f"training.{name}",
                    f"={show(value)} is for processes that load data, and training.dataloader_num_workers=0 has none: "
                    "set that to 1 or more, or leave this out.",
                )
    for name in ("reduce_lr_on_plateau", "greedy"):
        if training.lr_scheduler_type == name:
            raise BadKeyError(
                "training.lr_scheduler_type",
                f"={name} cannot be used: it needs TRL's own evaluation, and Covey evaluates by itself "
                "(evaluation.every_steps). Choose another, such as cosine.",
            )
    if training.fp16 and training.bf16:
        raise BadKeyError("training.fp16", "=true and training.bf16=true exclude each other: set one of them.")
    low, high = training.vllm_importance_sampling_clip_min, training.vllm_importance_sampling_clip_max
    if low is not None and high is not None and low >= high:
        raise BadKeyError(
            "training.vllm_importance_sampling_clip_min",
            f"={show(low)} must be below training.vllm_importance_sampling_clip_max={show(high)}.",
        )
    if training.log_completions_hub_repo is not None and not training.log_completions:
        raise BadKeyError(
            "training.log_completions_hub_repo", " is set, so training.log_completions=true is needed as well."
        )


def _product(training: TrainingConfig, world_size: int) -> str:
    processes = f" x {world_size} processes" if world_size > 1 else ""
    return f"per_device_train_batch_size {training.per_device_train_batch_size}{processes}"


def _beside_a_server(training: TrainingConfig, world_size: int) -> int | None:
    """The training processes that are left when vLLM gets GPUs of its own; None where that does not help."""
    left = world_size - int(training.vllm_tensor_parallel_size)
    if not training.use_vllm or training.vllm_mode == "server" or left < 1:
        return None
    with suppress(BadKeyError):
        check_geometry(TrainingConfig({**training.values, "vllm_mode": "server"}), left)
        return left
    return None


def _multiples_near(value: int, step: int) -> list[int]:
    below = value // step * step
    return [n for n in (below, below + step) if n > 0]


def _divisors_near(batch: int, group: int) -> list[int]:
    """The two group sizes, from 2, nearest to this one that divide the batch; fewer when they are far away."""
    start = min(group, batch)
    near = (n for away in range(10_000) for n in dict.fromkeys((start - away, start + away)) if 2 <= n <= batch)
    return sorted(islice((n for n in near if batch % n == 0), 2))


def _either(values: list[int]) -> str:
    return " or ".join(map(str, values))
