"""The group `training`: TRL's `GRPOConfig` fields under their own names, and Covey's own, checked without TRL.

The names, types and defaults of TRL's fields are a committed snapshot. Which of their values are possible, and when
they have an effect, is written here.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from covey.config.values import MAX_SECONDS, MAX_TOKENS, BadKeyError, check_choice, check_range, coerce, members, show

FIELDS_FILE = Path(__file__).with_name("training_fields.json")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the group `training`."""

    name: str
    type: str
    """The type as text, for instance `float | None`."""
    default: Any
    choices: tuple[str, ...] = ()
    """The possible values where TRL names them in an enum."""
    grpo: bool = False
    """Whether supervised training lacks it."""


OWN_FIELDS: Mapping[str, tuple[Field, str]] = MappingProxyType(
    {
        field.name: (field, text)
        for field, text in (
            (
                Field("staleness", "int", 0),
                "Generation rounds that completions may be behind the weights that train on them: rounds are written "
                "ahead while the policy learns. 0 generates and learns in turns.",
            ),
            (
                Field("async_order", "str", "sampler", ("sampler", "arrival")),
                "Which completions join a round when training.staleness is above 0: those of its prompts in the "
                "sampler's order, or whole groups in the order in which they are done.",
            ),
            (
                Field("async_partial", "str", "finish", ("finish", "continue")),
                "What becomes of unfinished completions at a weight sync when training.staleness is above 0: they are "
                "finished with the old weights, or go on with the new ones.",
            ),
            (
                Field("schedule", "str | None", None),
                "The schedule.jsonl of an asynchronous run, which this run replays on the local engine.",
            ),
            (
                Field("vllm_servers", "int | str", 1),
                "vLLM servers, each on vllm_tensor_parallel_size GPUs; auto takes the fastest split of the GPUs.",
            ),
            (
                Field("vllm_lora_sync", "str", "auto", ("auto", "adapter", "merge")),
                "What a weight sync sends to vLLM in LoRA training: the adapter alone, or whole weights with the "
                "adapter merged. auto sends the adapter where vLLM takes it, and logs the reason where not.",
            ),
        )
    }
)
"""Covey's own fields of the group `training`, each with its help."""


@cache
def training_fields() -> Mapping[str, Field]:
    """Every field by name: TRL's in TRL's order, then Covey's own."""
    stored = json.loads(FIELDS_FILE.read_text(encoding="utf-8"))
    entries, grpo = stored["fields"], stored["grpo"].split()
    return MappingProxyType(
        {
            name: Field(name, entry["type"], entry["default"], tuple(entry.get("choices", ())), name in grpo)
            for name, entry in entries.items()
        }
        | {"vllm_server_base_url": Field("vllm_server_base_url", "str | list[str] | None", None, (), True)}
        | {name: field for name, (field, _) in OWN_FIELDS.items()}
    )


@cache
def explanations() -> Mapping[str, str]:
    """The help of each field: TRL's from the sources of the installed TRL and transformers, without importing them.

    Fields without help are left out, as are all when TRL is not installed.
    """
    found: dict[str, str] = {}
    for package, file in _EXPLAINED_IN:
        spec = find_spec(package)
        source = Path(spec.origin).parent / file if spec is not None and spec.origin else None
        if source is not None and source.is_file():
            found |= _helps(source)
    return MappingProxyType(found | {name: text for name, (_, text) in OWN_FIELDS.items()})


_EXPLAINED_IN = (
    ("transformers", "training_args.py"),
    ("trl", "trainer/base_config.py"),
    ("trl", "trainer/grpo_config.py"),
)


def _helps(source: Path) -> dict[str, str]:
    """The `help` of every dataclass field in a file, later ones over earlier ones."""
    helps = {}
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if keyword.arg == "metadata" and isinstance(keyword.value, ast.Dict):
                    for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                        if isinstance(key, ast.Constant) and key.value == "help" and isinstance(value, ast.Constant):
                            helps[node.target.id] = " ".join(str(value.value).replace("%%", "%").split())
    return helps


CHOICES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo", "sapo", "vespo"),
        "scale_rewards": ("group", "batch", "none"),
        "importance_sampling_level": ("token", "sequence"),
        "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
        "vllm_mode": ("server", "colocate"),
        "vllm_model_impl": ("vllm", "transformers"),
        "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
        "report_to": (
            *("all", "none", "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte"),
            *("kubeflow", "mlflow", "neptune", "swanlab", "tensorboard", "trackio", "wandb"),
        ),
        "include_num_input_tokens_seen": ("all", "non_padding", "no", True, False),
        "include_for_metrics": ("inputs", "loss"),
        "debug": ("underflow_overflow", "tpu_metrics_debug"),
        "torch_compile_mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        "cache_implementation": (
            *("dynamic", "offloaded", "quantized", "static", "offloaded_static", "paged"),
            *("sliding_window", "hybrid", "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked"),
        ),
    }
)
"""The values of plain `str` fields of TRL and transformers, where the snapshot names no choices."""

_Range = Mapping[str, float]
_COUNT: _Range = {"low": 1}
_FROM_ZERO: _Range = {"low": 0}
_POSITIVE: _Range = {"above": 0}
_SHARE: _Range = {"low": 0, "high": 1}
_ANY: _Range = {}
_PART: _Range = {"above": 0, "high": 1}
_BELOW_ONE: _Range = {"low": 0, "below": 1}
_TOKENS: _Range = {"low": 1, "high": MAX_TOKENS}
_PORT: _Range = {"low": 1, "high": 65535}
_DIVISOR: _Range = {"low": 1e-6, "high": 1e6}  # logits are divided by it, and near zero they overflow

RANGES: Mapping[str, _Range] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
                *("generation_batch_size", "steps_per_generation", "num_iterations"),
                *("save_total_limit", "ref_model_sync_steps", "vllm_tensor_parallel_size", "vllm_servers"),
                *("num_generations_eval", "torch_empty_cache_steps", "eval_accumulation_steps"),
                *("dataloader_prefetch_factor", "ddp_bucket_cap_mb"),
            ),
            _COUNT,
        ),
        **dict.fromkeys(
            (
                *("learning_rate", "weight_decay", "warmup_steps", "max_grad_norm", "beta", "epsilon", "epsilon_high"),
                *("staleness", "top_k", "adam_epsilon", "neftune_noise_alpha", "eval_delay", "router_aux_loss_coef"),
                *("data_seed", "num_completions_to_print", "entropy_coef_delta", "entropy_target"),
                *("off_policy_mask_threshold", "vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg"),
                *("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
                "vllm_importance_sampling_cap",
            ),
            _FROM_ZERO,
        ),
        **dict.fromkeys(
            ("logging_steps", "save_steps", "delta", "sapo_temperature_neg", "sapo_temperature_pos"), _POSITIVE
        ),
        **dict.fromkeys(("min_p", "top_entropy_quantile", "ref_model_mixup_alpha", "label_smoothing_factor"), _SHARE),
        **dict.fromkeys(("top_p", "vllm_gpu_memory_utilization"), _PART),
        **dict.fromkeys(("adam_beta1", "adam_beta2"), _BELOW_ONE),
        **dict.fromkeys(("vllm_server_port", "vllm_group_port"), _PORT),
        **dict.fromkeys(("temperature", "repetition_penalty"), _DIVISOR),
        **dict.fromkeys(("reward_weights", "entropy_coef", "entropy_coef_min", "entropy_coef_max"), _ANY),
        "num_train_epochs": {"above": 0, "high": 1e9},
        **dict.fromkeys(("max_completion_length", "vllm_max_model_length", "pad_to_multiple_of"), _TOKENS),
        "num_generations": {"low": 2},
        "max_steps": {"low": -1},
        "local_rank": {"low": -1},
        "dataloader_num_workers": {"low": 0, "high": 1024},
        "ddp_timeout": {"low": 1, "high": MAX_SECONDS},
        "vllm_server_timeout": {"low": 0, "high": MAX_SECONDS},
    }
)
"""Ranges of all numeric fields (checked by a test), those without bounds included."""

_CHECKPOINT = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop")
_ARGUMENTS = {"gradient_checkpointing_kwargs": _CHECKPOINT, "activation_checkpointing_kwargs": _CHECKPOINT}
_OF_THE_CALL = (
    *("conversation", "tools", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"),
    *("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    "tokenizer_kwargs",
)
_ZERO_OR_WHOLE = ("logging_steps", "save_steps")
_FILES = ("accelerator_config", "fsdp_config", "deepspeed")
"""Mappings that may also be the name of a JSON file."""
_OPTIM_ARGS = re.compile(r"\s*\w+\s*=[^=,]+(,\s*\w+\s*=[^=,]+)*")


def _check_limits(name: str, value: Any) -> Any:
    """The checked value of a field; a mapping written as JSON text becomes a mapping. Raises a `BadKeyError` if TRL,
    transformers or PyTorch would reject it later, or crash on it."""
    key, known = f"training.{name}", training_fields()[name]
    if choices := known.choices or CHOICES.get(name, ()):
        check_choice(key, value.split() if name == "debug" and isinstance(value, str) else value, choices)
    check_range(key, value, **RANGES.get(name, {}))
    if name == "max_steps" and value == 0:
        raise BadKeyError(key, "=0 is out of range: it must be at least 1, or -1 to use training.num_train_epochs.")
    if name in _ZERO_OR_WHOLE and value > 1 and value != int(value):
        raise BadKeyError(
            key, f"={show(value)} is out of range: it must be an integer of steps, or a share of all steps below 1."
        )
    words = {"pad_to_multiple_of": ("auto", "none"), "vllm_servers": ("auto",)}.get(name, ())
    if words and isinstance(value, str) and value not in words:
        raise BadKeyError(key, f"={show(value)} is not possible: it must be an integer, {' or '.join(words)}.")
    if name == "optim_args" and value and not _OPTIM_ARGS.fullmatch(value):
        raise BadKeyError(key, f"={show(value)} cannot be read: write name=value pairs, such as 'rank=64,scale=0.5'.")
    if isinstance(value, str) and any(member.startswith("dict") for member in members(known.type)):
        value = _mapping(key, value, may_be_file=name in _FILES)
    if isinstance(value, dict):
        _check_inside(name, value)
    return value


def _check_inside(name: str, values: Mapping[str, Any]) -> None:
    """Check mappings of arguments: of the chat template, of sampling, of PyTorch's gradient checkpointing."""
    key, possible = f"training.{name}", _ARGUMENTS.get(name)
    for inner, value in values.items():
        if possible is not None and inner not in possible:
            raise BadKeyError(f"{key}.{inner}", f" is not an argument here: it must be one of {', '.join(possible)}.")
        if name == "chat_template_kwargs" and inner in _OF_THE_CALL:
            raise BadKeyError(f"{key}.{inner}", " is for the call, which TRL makes; no template reads it.")
        if name == "generation_kwargs" and inner in RANGES:
            check_range(f"{key}.{inner}", coerce(f"{key}.{inner}", value, _kind(inner)), **RANGES[inner])
        if name == "generation_kwargs" and inner.endswith("_token_id"):
            check_range(f"{key}.{inner}", coerce(f"{key}.{inner}", value, "int | list[int] | None"), low=0)


def _kind(name: str) -> str:
    kind = training_fields()[name].type
    return kind if kind.endswith("None") else f"{kind} | None"


def _mapping(key: str, text: str, *, may_be_file: bool) -> Any:
    """The mapping in a JSON text."""
    if may_be_file and not text.lstrip().startswith("{"):
        return text
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        also = ", or the name of a JSON file" if may_be_file else ""
        raise BadKeyError(key, f"={show(text)} is not a mapping: write one, such as {{name: value}}{also}.")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _each(names: str, live: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), live)


_CLIPPED = "training.loss_type in ('grpo', 'bnpo', 'dr_grpo', 'dapo', 'luspo')"
_CORRECTED = "training.use_vllm or training.staleness > 0 or rollout.own_engine"
_SERVER = "vllm in ('server', 'open', 'elsewhere')"
_OUR_ENGINE = "vllm in ('colocate', 'server', 'open')"

LIVE: Mapping[str, str] = MappingProxyType(
    {
        "num_train_epochs": "training.max_steps == -1",
        "warmup_steps": "training.lr_scheduler_type != 'constant'",
        "lr_scheduler_kwargs": "training.lr_scheduler_type not in ('constant', 'constant_with_warmup')",
        **_each("adam_beta1 adam_beta2 adam_epsilon", "has_betas"),
        "optim_args": "has_arguments",
        "optim_target_modules": "galore_or_apollo",
        "gradient_checkpointing_kwargs": "training.gradient_checkpointing",
        "activation_checkpointing_kwargs": "training.activation_checkpointing",
        "liger_kernel_config": "training.use_liger_kernel",
        "cache_implementation": "not training.use_vllm and not rollout.own_engine",
        "transformers_continuous_batching_config": "training.use_transformers_continuous_batching",
        "fsdp_config": "training.fsdp or launch.accelerate",
        "ds3_gather_for_generation": "deepspeed",
        **_each("bf16_full_eval fp16_full_eval", "deepspeed"),
        **_each(
            "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph",
            "not training.fsdp and not training.deepspeed",
        ),
        "epsilon": f"{_CLIPPED} or training.loss_type == 'cispo' and training.epsilon_high == None",
        "epsilon_high": f"{_CLIPPED} or training.loss_type == 'cispo'",
        "delta": _CLIPPED,
        **_each("sapo_temperature_neg sapo_temperature_pos", "training.loss_type == 'sapo'"),
        **_each("vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg", "training.loss_type == 'vespo'"),
        "importance_sampling_level": "training.loss_type != 'vespo' or training.beta != 0",
        "scale_rewards": "scaled and training.multi_objective_aggregation == 'sum_then_normalize'",
        "use_bias_correction_kl": "training.beta != 0 and objective.name != 'maxent'",
        **_each("ref_model_mixup_alpha ref_model_sync_steps", "training.sync_ref_model"),
        **_each("entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target", "training.use_adaptive_entropy"),
        **_each("async_order async_partial", "training.staleness > 0"),
        **_each("vllm_mode vllm_structured_outputs_regex", "training.use_vllm"),
        **_each("vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port", _SERVER),
        "vllm_servers": "vllm in ('server', 'open')",
        **_each("vllm_gpu_memory_utilization vllm_tensor_parallel_size", _OUR_ENGINE),
        **_each("vllm_max_model_length vllm_model_impl", _OUR_ENGINE),
        "vllm_enable_sleep_mode": "vllm in ('colocate', 'open')",
        "vllm_lora_sync": "training.use_vllm and model.lora.active",
        "vllm_importance_sampling_correction": _CORRECTED,
        **{
            f"vllm_importance_sampling_{name}": f"({_CORRECTED}) and training.vllm_importance_sampling_correction"
            " or logging.sampler_gap"
            for name in ("mode", "clip_max", "clip_min", "cap")
        },
        "logging_steps": "training.logging_strategy == 'steps'",
        "save_steps": "training.save_strategy == 'steps'",
        **_each("save_total_limit save_only_model save_on_each_node", "training.save_strategy != 'no'"),
        "metric_for_best_model": "training.save_strategy == 'best'",
        **_each("num_completions_to_print log_completions_hub_repo", "training.log_completions"),
        "log_unique_prompts": "training.log_completions and ('wandb' in trackers or 'trackio' in trackers)",
        "project": "trackers",
        **_each("trackio_space_id trackio_bucket_id trackio_static_space_id", "'trackio' in trackers"),
        **_each("hub_revision hub_strategy", "training.push_to_hub"),
        **_each("hub_model_id hub_private_repo", "training.push_to_hub or training.log_completions_hub_repo"),
        "dataloader_in_order": "training.dataloader_num_workers > 0",
    }
)
"""The condition of each field that has one; all others have an effect, or `NEVER` has."""

READ_BY_SFT = ("max_completion_length", "chat_template_kwargs", "reward_weights")
"""Of the fields that only GRPO has, those that rendering and evaluation read."""

_EVALUATES = "Covey evaluates by itself (evaluation.*)"

NEVER: Mapping[str, str] = MappingProxyType(
    {
        **_each("eval_delay per_device_eval_batch_size prediction_loss_only eval_do_concat_batches", _EVALUATES),
        **_each("eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics", _EVALUATES),
        **_each("num_generations_eval label_names do_train do_predict", _EVALUATES),
        **_each("load_best_model_at_end greater_is_better", "evaluation.keep_best keeps the best checkpoint"),
        "disable_tqdm": "Covey has a display of its own",
        "average_tokens_across_devices": "GRPO's loss has normalisers of its own (training.loss_type)",
        "dataloader_drop_last": "GRPO's sampler yields whole batches only",
        "length_column_name": "GRPO's sampler draws whole groups of a prompt, whatever its length",
        "local_rank": "the launcher gives each process its rank (LOCAL_RANK)",
        "log_multimodal": "there are no images",
        "hub_always_push": "a finished run is pushed once, at its end",
        "auto_find_batch_size": "a smaller batch would cut groups",
    }
)
"""The fields without effect in any run, each with the reason."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "label_smoothing_factor": "it smooths the labels of cross-entropy, and the loss has none",
        "neftune_noise_alpha": "its noise would be in sampling and scoring too, another each time, so in the ratios",
        "train_sampling_strategy": "the sampler draws whole groups; training.shuffle_dataset=false keeps their order",
    }
)
"""The fields whose effect training cannot have as they describe it, each with the reason."""
ASKS_FOR_NOTHING = (None, 0.0, "random")
"""Their values that are accepted."""


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
        known = training_fields()
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
        known = training_fields().get(name)
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
    known = training_fields()[name]
    if name == "scale_rewards" and isinstance(value, bool):  # TRL accepts both and stores the text
        value = "group" if value else "none"
    if value is False and "no" in known.choices:  # YAML reads a bare `no` as false
        value = "no"
    value = _check_limits(name, coerce(f"training.{name}", value, known.type))
    if name in REFUSED and value not in ASKS_FOR_NOTHING:
        raise BadKeyError(f"training.{name}", f"={show(value)} has no effect in GRPO: {REFUSED[name]}. Leave it out.")
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
