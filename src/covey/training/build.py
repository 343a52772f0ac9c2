"""From a config to a trainer: TRL's arguments, the model with its adapters, the optimiser check, the final model."""

from __future__ import annotations

import contextlib
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.advice import install
from covey.config import Config
from covey.config.groups.mesh import Mesh
from covey.config.groups.running import SftConfig
from covey.config.groups.training import OWN_FIELDS, training_fields
from covey.config.secrets import without_secrets
from covey.config.values import show
from covey.config.vllm import colocated_share
from covey.errors import ConfigError, ModelError, one_line
from covey.model.adapters import check_adapters, lora_config, quantization_config, trainable_rows, with_adapters
from covey.model.adapters import merge as merge_adapters
from covey.model.export import set_end_and_pad_tokens
from covey.model.load import own_generation_config, own_sampling
from covey.model.reasoning_vocab.token_map import MAP_FILE
from covey.runlog.directory import RunDirectory
from covey.runlog.files import rename
from covey.training.asynchronous.settings import Asynchronous
from covey.training.checks.trackers import trackers
from covey.training.replaced import all_replaced

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from covey.data import LoadedData
    from covey.environments.runner import EnvironmentRunner
    from covey.rollout import InferenceEngine
    from covey.training.trl.sft import SFTTrainer
    from covey.training.trl.trainer import GRPOConfig, GRPOTrainer


logger = logging.getLogger(__name__)

_BUSY_COMPLETIONS = 32
"""Completions that a GPU generates at a time, below which its small kernels leave it idle."""
_GOOD_COMPLETIONS = 64


def trl_config(config: Config, run: RunDirectory) -> tuple[Any, list[str]]:
    """TRL's arguments for a config, a `GRPOConfig` or with `sft.rows` an `SFTConfig`, and notes for the user.

    On a CPU, `use_cpu=true` and `bf16=false` are set.

    Raises:
        ConfigError: TRL rejects the values, or a tracker is not installed.
    """
    import torch

    from covey.rollout.local.compatibility import other_options
    from covey.training.processes import asks_for_fsdp, let_cpus_shard, mesh_arguments

    values: dict[str, Any] = {name: value for name, value in config.training.values.items() if name not in OWN_FIELDS}
    if supervised := config.sft.rows is not None:
        values = {name: value for name, value in values.items() if not training_fields()[name].grpo}
        values |= _sft_values(config.sft)
    values["report_to"] = trackers(config) or "none"
    if config.environment.used:
        most = config.environment.max_turns
        values["max_tool_calling_iterations"] = None if most is None else most - 1
    values["push_to_hub"] = False  # `covey.training.end` does, after training
    values.pop("hub_token", None)  # it would be in every checkpoint
    notes = list[str]()
    if config.training.use_vllm and (share := colocated_share(config)) is not None:
        values["vllm_gpu_memory_utilization"] = share
    notes += _set_precision(values, config.model.dtype)
    if values.get("save_total_limit") == 1 and config.evaluation.keep_best and config.evaluation.every_steps:
        # With a limit of 1, transformers deletes the newest checkpoint at the end of training, and keeps the best.
        values["save_total_limit"] = 2
        notes.append("training.save_total_limit=1 keeps two checkpoints: the newest and the best.")
    if config.model.use_generation_config and not supervised:
        generation = own_generation_config(config.model)
        more = {} if generation is None else other_options(generation)
        values |= (own := own_sampling(config.model, required=not more))
        if config.training.use_vllm or config.rollout.own_engine or Asynchronous.of(config):
            more = {}  # which transformers' generate alone knows; the trainer logs them
        values["generation_kwargs"] = {**(values.get("generation_kwargs") or {}), **more} or None
        shown = ", ".join(f"{name}={show(value)}" for name, value in {**own, **more}.items())
        notes.append(f"Sampling by the model's own generation config: {shown}.")
    fsdp = bool(values.get("fsdp")) or asks_for_fsdp()
    arguments = mesh_arguments(Mesh.of(config.model.mesh_shape), fsdp_set=fsdp)
    fsdp = fsdp or "fsdp" in arguments
    values |= arguments
    if config.logging.project is not None and "project" not in values:
        values["project"] = config.logging.project
    model_kwargs: dict[str, Any] = dict(values.pop("model_init_kwargs", None) or {})
    for key in ("revision", "dtype", "attn_implementation"):
        if getattr(config.model, key) is not None:
            model_kwargs[key] = getattr(config.model, key)
    values |= {"output_dir": str(run.root), "run_name": config.logging.run_name or config.run_name, "seed": config.seed}
    values |= {"model_init_kwargs": model_kwargs or None, "trust_remote_code": config.model.trust_remote_code}
    values |= {"eval_strategy": "no", "disable_tqdm": True}
    args = _accepted(values, config)
    if torch.accelerator.is_available() and not args.use_cpu and not supervised:
        if not args.use_vllm and config.rollout.engine is None:
            notes += _slow_sampling(fsdp=fsdp)
        notes += _idle_gpu(args)
    if fsdp and args.distributed_state is not None:
        let_cpus_shard(args.distributed_state)
    return args, notes


def _sft_values(settings: SftConfig) -> dict[str, Any]:
    """Of the group `sft`, what TRL reads. (The examples come as tokens, none longer than the limit.)"""
    values = asdict(settings)
    for name in ("rows", "right_only", "per_prompt", "every_turn", "completion_only_loss"):
        del values[name]
    values["train_sampling_strategy"] = "group_by_length" if values.pop("group_by_length") else "random"
    values["max_length"] = settings.max_length if settings.packing else None
    return values


def _accepted(values: dict[str, Any], config: Config) -> Any:
    """TRL's arguments with these values. Raises a `ConfigError` if TRL, or `torch.compile`, does not accept them."""
    from accelerate.utils import DynamoBackend

    from covey.training.trl.sft import SFTConfig
    from covey.training.trl.trainer import GRPOConfig

    kind = GRPOConfig if config.sft.rows is None else SFTConfig
    try:
        args = kind(**values)
    except Exception as error:  # transformers raises errors of many types
        key = _refused(kind, values, config.training.values) or "these training.* settings"
        raise ConfigError(f"TRL does not accept {key}: {one_line(error)}") from error
    if args.torch_compile and args.torch_compile_backend.upper() not in DynamoBackend.__members__:
        raise ConfigError(
            f"training.torch_compile_backend={args.torch_compile_backend} is no backend of torch.compile: choose among "
            f"{', '.join(DynamoBackend.__members__).lower()}."
        )
    return args


def _set_precision(values: dict[str, Any], dtype: str | None) -> list[str]:
    """Set what this machine trains in, where it has no GPU, or one without bfloat16. Returns a note.

    Args:
        values: TRL's arguments, which are changed.
        dtype: `model.dtype`.
    """
    import torch

    from covey.model.device import half_precision

    if values.get("use_cpu") or not torch.accelerator.is_available():
        used = {"use_cpu": True, "bf16": False, "fp16": False, "use_liger_kernel": False}
        dropped = [f"{name}={show(not value)}" for name, value in used.items() if values.get(name) is (not value)]
        values |= used
        instead = f", in place of {' and '.join(dropped)}" if dropped else ""
        kind = {None: "float32", "auto": "the dtype of the saved weights"}.get(dtype, dtype)
        why = "use_cpu=true" if torch.accelerator.is_available() else "No GPU here"
        return [f"{why}: training on the CPU in {kind} (use_cpu=true, bf16=false{instead})."]
    if not _only_emulates_bfloat16(values):
        return []
    half = half_precision(values.get("bf16"), False, dtype)
    values |= {"bf16": half == "bf16", "fp16": half == "fp16"}
    return [_emulated(half)]


def used_otherwise(config: Config, args: Any) -> list[str]:
    """The switches and numbers of `training` that this machine, Covey or TRL sets otherwise than the config, each as
    `key=value` with the value used."""
    names = {*config.training.values, "use_cpu", "bf16", "fp16"} - {*OWN_FIELDS, "push_to_hub"}
    used = {name: value for name in names if isinstance(value := getattr(args, name, None), bool | int | float)}
    return sorted(f"training.{name}={show(v)}" for name, v in used.items() if v != getattr(config.training, name))


def _slow_sampling(*, fsdp: bool) -> list[str]:
    """Notes on sampling with the policy itself on a GPU."""
    how = "training.use_vllm=true" + ("" if find_spec("vllm") else f", after `{install('vllm')}`")
    if fsdp:
        return [f"WARNING: with FSDP and without vLLM, the model is gathered anew for every token: use {how}."]
    return [
        f"The policy samples by itself, and a GPU then mostly waits for its many small kernels: vLLM is faster, {how}."
    ]


def _idle_gpu(args: GRPOConfig) -> list[str]:
    """A note where a GPU gets too few completions at a time to be busy."""
    completions = int(args.per_device_train_batch_size * (args.steps_per_generation or 1))
    if completions >= _BUSY_COMPLETIONS:
        return []
    more = args.gradient_accumulation_steps * -(-_GOOD_COMPLETIONS // completions)
    return [
        f"Each GPU generates {completions} completions at a time, which leaves it mostly idle. For "
        f"{_GOOD_COMPLETIONS}: training.gradient_accumulation_steps={more}, with no more memory in training, or a "
        "larger training.per_device_train_batch_size."
    ]


def _only_emulates_bfloat16(values: Mapping[str, Any]) -> bool:
    """Whether these arguments take bfloat16, as TRL does by default, on a GPU without it."""
    import torch

    from covey.model.device import has_bfloat16

    takes = not values.get("use_cpu") and not values.get("fp16") and values.get("bf16") is not False
    return takes and torch.cuda.is_available() and not has_bfloat16()


def _emulated(kind: str | None) -> str:
    """The note on a GPU without bfloat16."""
    import torch

    name = torch.cuda.get_device_name()
    if kind == "bf16":
        return f"WARNING: training.bf16=true, and {name} only emulates bfloat16, slowly: training.fp16=true is faster."
    used = "float16 with loss scaling (fp16=true)" if kind == "fp16" else "the weights' own dtype (bf16=false)"
    return (
        f"{name} only emulates bfloat16, so training computes in {used}. Should the loss become infinite, as with "
        "Gemma 3, whose activations overflow in float16, set training.fp16=false training.bf16=false for float32."
    )


def _refused(kind: type, values: dict[str, Any], settings: Mapping[str, Any]) -> str | None:
    """The setting without which TRL accepts the others, as `training.name=value`; None if it is not a single one."""
    for name in (name for name in settings if name in values):
        with contextlib.suppress(Exception):
            kind(**{other: value for other, value in values.items() if other != name})
            return f"training.{name}={show(settings[name])}"
    return None


def build_trainer(
    config: Config,
    args: Any,
    source: str,
    loaded: LoadedData,
    reward_funcs: list[Any],
    tokenizer: PreTrainedTokenizerBase,
    objective: dict[str, Any],
    environments: EnvironmentRunner | None = None,
    rollout_func: Callable[..., Any] | None = None,
    examples: datasets.Dataset | None = None,
) -> GRPOTrainer | SFTTrainer:
    """The trainer, with its model and adapters loaded.

    Args:
        source: what `from_pretrained` takes.
        environments: what the model meets; None for no environment and no tools.
        rollout_func: generates the completions in the trainer's place.
        objective: from `objective_arguments`.
        examples: `input_ids` and `labels` of supervised training; None trains with GRPO.

    Raises:
        ModelError: the weights cannot be loaded.
        ConfigError: TRL, peft or transformers reject the settings.
    """
    from transformers import PrinterCallback

    from covey.model.reasoning_vocab import ReasoningVocabulary
    from covey.training.callbacks import load_callbacks
    from covey.training.trl.sft import SFTTrainer
    from covey.training.trl.trainer import GRPOTrainer, load_base_model

    common: dict[str, Any] = {"args": args, "processing_class": tokenizer, "speed": config.speed}
    common["callbacks"] = load_callbacks(config.callbacks, config.evaluation)
    expanded = (Path(source) / MAP_FILE).is_file()
    if examples is not None and expanded:
        raise ConfigError(
            f"model.name={config.model.name} has a reasoning vocabulary, whose tokens are for thinking only, which "
            "supervised training does not know: train the model first, then `covey expand-vocab`."
        )
    engine = None if examples is not None else _own_engine(config, args, source, tokenizer)
    quantization = quantization_config(config.model)
    check_adapters(config.model.lora)
    rows = None
    if config.model.lora.active and expanded:
        vocabulary = ReasoningVocabulary.load(source)
        rows = trainable_rows(source, vocabulary, trust_remote_code=config.model.trust_remote_code)
    trainer: GRPOTrainer | SFTTrainer
    with _naming_refusals(config), warnings.catch_warnings():
        common["model"] = source
        if config.model.lora.path is not None:
            common["model"] = with_adapters(load_base_model(source, args, quantization), config.model.lora)
            args.model_init_kwargs = quantization = None  # TRL does not need them any more
        common |= {"peft_config": lora_config(config.model.lora, rows), "quantization_config": quantization}
        warnings.filterwarnings("ignore", message="You are using '(environment_factory|rollout_func)'")
        if examples is not None:
            trainer = SFTTrainer(**common, train_dataset=examples)
        else:
            trainer = GRPOTrainer(
                **common,
                reward_funcs=reward_funcs,
                train_dataset=loaded.train,
                engine=engine,
                asynchronous=Asynchronous.of(config),
                vllm_lora_sync=config.training.vllm_lora_sync,
                support=config.rollout.support,
                support_top_k=config.rollout.support_top_k,
                sampler_gap=config.logging.sampler_gap,
                malformed_calls=config.environment.malformed_calls,
                environment_factory=None if environments is None else environments.factory,
                tools=None if environments is None else environments.tools,
                rollout_func=rollout_func,
                run_directory=False,
                **objective,
            )
    for adapters in getattr(trainer.model, "peft_config", {}).values():
        adapters.base_model_name_or_path = source  # not what `model.lora.path` names; peft looks it up when it saves
    if args.model_init_kwargs:  # checkpoints hold the arguments
        args.model_init_kwargs = without_secrets(args.model_init_kwargs)
    trainer.remove_callback(PrinterCallback)  # the display replaces it
    if trainer.use_vllm:
        trainer.vllm_generation.sync_tolerance = config.launch.sync_tolerance
    return trainer


@contextlib.contextmanager
def _naming_refusals(config: Config) -> Iterator[None]:
    """Context manager: what libraries raise over a trainer's weights or settings becomes an error of Covey's."""
    from pickle import UnpicklingError

    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, UnpicklingError) as error:
        raise ModelError(
            f"The weights of model.name={config.model.name} cannot be loaded: {one_line(error)}"
        ) from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ModelError(
            f"The weights of model.name={config.model.name} are not those of its config.json: some have other shapes "
            "than it gives them. Take the config.json that was saved with the weights."
        ) from error
    except (ValueError, TypeError, AttributeError, KeyError, ImportError) as error:
        logger.warning("The trainer could not be built.", exc_info=True)
        raise ConfigError(f"TRL does not accept these settings: {one_line(error)}") from error


def _own_engine(
    config: Config, args: GRPOConfig, source: str, tokenizer: PreTrainedTokenizerBase
) -> InferenceEngine | None:
    """The engine of `rollout.engine`, if that is the user's own; see `covey.rollout.generate.make_engine`."""
    if config.rollout.own_engine is None:
        return None
    from covey.rollout.generate import make_engine

    return make_engine(
        config.rollout.own_engine,
        "rollout.engine",
        model_name=source,
        tokenizer=tokenizer,
        dtype=config.model.dtype,
        batch_size=args.per_device_train_batch_size * (args.steps_per_generation or 1),
        revision=config.model.revision,
        trust_remote_code=config.model.trust_remote_code,
    )


_FOR_A_MODEL = {"galore": "galore_torch", "apollo": "apollo_torch", "lomo": "lomo_optim"}
"""Optimisers that can be made only with the model, and their packages."""


def check_optimizer(args: GRPOConfig) -> None:
    """Raise a `ConfigError` unless an optimiser and its schedule can be made, which training does only once it runs."""
    import torch
    from transformers import Trainer, get_scheduler

    name = args.optim.value
    package = next((package for part, package in _FOR_A_MODEL.items() if part in name), None)
    if package is not None and find_spec(package) is None:
        raise ConfigError(f"training.optim={name} needs the package {package}, which is not installed.")
    if package is not None or args.deepspeed:
        return
    keys = f"training.optim={name}, with training.optim_args={show(args.optim_args)}"
    try:
        kind, options = Trainer.get_optimizer_cls_and_kwargs(args)
        optimizer = kind([torch.nn.Parameter(torch.zeros(1))], **options)
        keys = f"training.lr_scheduler_type={args.lr_scheduler_type.value}, with training.lr_scheduler_kwargs"
        keys += f"={show(args.lr_scheduler_kwargs)}"
        steps = max(args.max_steps, 1)
        get_scheduler(
            args.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    except Exception as error:  # whatever the package of an optimiser raises
        raise ConfigError(f"{keys}, cannot be used: {one_line(error)}") from error


def save_final_model(trainer: Any, run: RunDirectory, *, merge: bool, wait: Callable[[], None]) -> None:
    """Write `final_model/` atomically: to a temporary folder, then renamed.

    Args:
        wait: waits for the other processes.
        merge: save the weights with merged adapters instead of the adapters alone.
    """
    from covey.model.reasoning_vocab.vocabulary import vocabulary_of
    from covey.training.processes import full_weights

    partial = run.final_model.with_name("final_model.part")
    if trainer.args.should_save:
        shutil.rmtree(partial, ignore_errors=True)
    wait()
    if merge and trainer.args.should_save:
        merged = merge_adapters(trainer.accelerator.unwrap_model(trainer.model))
        set_end_and_pad_tokens(merged, trainer.processing_class)
        with all_replaced(trainer._dropout):
            merged.save_pretrained(partial)
        trainer.processing_class.save_pretrained(partial)
        if (vocabulary := vocabulary_of(trainer.model)) is not None:
            vocabulary.save(partial)
    else:
        with full_weights():
            trainer.save_model(str(partial))
        shutil.rmtree(partial / "ref", ignore_errors=True)  # the adapters that training started from, for the KL
    wait()
    if trainer.args.should_save:
        shutil.rmtree(run.final_model, ignore_errors=True)
        rename(partial, run.final_model)
