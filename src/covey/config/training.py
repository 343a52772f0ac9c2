"""The group `training`: TRL's `GRPOConfig` fields under their own names, checked without importing TRL."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from covey.config import snapshot
from covey.config.values import BadKeyError, check_choice, check_range, coerce, show

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
}
"""Fields of `GRPOConfig` whose fact another key owns, with what to do instead. The run fills them in."""

_CHOICES: dict[str, tuple[Any, ...]] = {
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo", "sapo", "vespo"),
    "scale_rewards": ("group", "batch", "none"),
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_mode": ("server", "colocate"),
    "vllm_model_impl": ("vllm", "transformers"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    "report_to": (
        *("all", "none", "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "kubeflow"),
        *("mlflow", "neptune", "swanlab", "tensorboard", "trackio", "wandb"),
    ),
    "train_sampling_strategy": ("random", "sequential", "group_by_length", "batch_rebalance"),
}
"""What TRL and transformers take for their plain `str` fields; enums bring their choices in the snapshot."""

_AT_LEAST: dict[str, float] = {
    **dict.fromkeys(
        (
            "per_device_train_batch_size",
            "per_device_eval_batch_size",
            "gradient_accumulation_steps",
            "generation_batch_size",
            "steps_per_generation",
            "num_iterations",
            "max_completion_length",
            "save_total_limit",
            "ref_model_sync_steps",
            "vllm_max_model_length",
            "vllm_tensor_parallel_size",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "learning_rate",
            "weight_decay",
            "warmup_steps",
            "max_grad_norm",
            "beta",
            "epsilon",
            "epsilon_high",
            "top_k",
            "dataloader_num_workers",
        ),
        0,
    ),
    "num_generations": 2,
    "num_generations_eval": 1,
}
_ABOVE_ZERO = ("num_train_epochs", "logging_steps", "save_steps", "temperature", "top_p", "repetition_penalty")
_SHARES = ("top_p", "min_p", "top_entropy_quantile", "ref_model_mixup_alpha", "vllm_gpu_memory_utilization")


class Values(Mapping[str, Any]):
    """A mapping that nobody changes after it was made, and that pickles and copies (a `MappingProxyType` does not)."""

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
    """How to train: every field of TRL's GRPOConfig under TRL's own name, except those that another group owns.

    Any field reads as an attribute (`training.max_steps`); one that was not set reads as TRL's default.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    """The values that were set, by Covey's own defaults or by the user, in TRL's order; nothing else."""

    def __post_init__(self) -> None:
        known = snapshot.fields()
        for name in self.values:
            if name in OWNED_ELSEWHERE:
                raise BadKeyError(f"training.{name}", f" is not read: {OWNED_ELSEWHERE[name]}.")
            if name not in known:
                raise BadKeyError(f"training.{name}", " is not a field of TRL's GRPOConfig.")
        checked = {name: _check(name, self.values[name]) for name in known if name in self.values}
        object.__setattr__(self, "values", Values(checked))
        _check_together(self)

    @property
    def generation_batch(self) -> int:
        """Completions generated at a time: `generation_batch_size`, or what one process makes of it by default."""
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
    """Check that the completions generated at a time make whole groups, by the rule that TRL applies later.

    Args:
        training: the training config.
        world_size: number of training processes.

    Raises:
        BadKeyError: naming values near the given ones that would work.
    """
    group = training.num_generations
    if group is None:
        raise BadKeyError("training.num_generations", "=null cannot be trained: it must be a whole number, at least 2.")
    per_step = training.per_device_train_batch_size * world_size
    asked = training.generation_batch_size
    if asked is not None and asked % per_step:
        works = _either(_multiples_near(asked, per_step * group // math.gcd(per_step, group)))
        raise BadKeyError(
            "training.generation_batch_size",
            f"={asked} is not a multiple of the {per_step} completions that one forward pass over all processes takes "
            f"({_product(training, world_size)}). It must be one, and a multiple of num_generations={group} too: "
            f"{works} would work.",
        )
    if asked is not None:
        batch, factor, made_of = asked, None, "generation_batch_size"
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
    raise BadKeyError(
        "training.num_generations",
        f"={group} does not divide the generation batch of {batch} completions ({made_of}), so groups would be cut. "
        f"Near values that work: {', or '.join(choices)}.",
    )


def _check(name: str, value: Any) -> Any:
    key, known = f"training.{name}", snapshot.fields()[name]
    if name == "scale_rewards" and isinstance(value, bool):  # TRL takes both spellings and stores the text
        value = "group" if value else "none"
    choices = known.choices or _CHOICES.get(name, ())
    if value is False and "no" in choices:  # YAML reads a bare `no` as false
        value = "no"
    value = coerce(key, value, known.type)
    if choices:
        check_choice(key, value, choices)
    high = 1 if name in _SHARES else None
    above = 0 if name in _ABOVE_ZERO else None
    check_range(key, value, _AT_LEAST.get(name, 0 if name in _SHARES and above is None else None), high, above)
    if name in ("adam_beta1", "adam_beta2") and not 0 <= value < 1:
        raise BadKeyError(key, f"={show(value)} is out of range: it must be at least 0 and below 1.")
    if name == "max_steps" and value < 1 and value != -1:
        raise BadKeyError(
            key, f"={value} is out of range: it must be at least 1, or -1 to go by training.num_train_epochs."
        )
    return value


def _check_together(training: TrainingConfig) -> None:
    """Combinations that TRL or transformers would refuse only after everything is loaded."""
    if training.generation_batch_size is not None and training.steps_per_generation is not None:
        raise BadKeyError(
            "training.generation_batch_size",
            f"={training.generation_batch_size} and training.steps_per_generation={training.steps_per_generation} say "
            "the same thing twice: set one of them only.",
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
            "(evaluation.every_steps). Set it to false: evaluation.keep_best keeps the checkpoint with the best "
            "held-out accuracy, as best_model in the run directory.",
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


def _multiples_near(value: int, step: int) -> list[int]:
    below = value // step * step
    return [n for n in (below, below + step) if n > 0]


def _divisors_near(batch: int, group: int) -> list[int]:
    """The two sizes of a group, from 2, nearest to this one that divide the batch; fewer when they are far away."""
    start = min(group, batch)
    near = (n for away in range(10_000) for n in dict.fromkeys((start - away, start + away)) if 2 <= n <= batch)
    return sorted(islice((n for n in near if batch % n == 0), 2))


def _either(values: list[int]) -> str:
    return " or ".join(map(str, values))
