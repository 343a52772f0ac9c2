"""From a config to a trainer: TRL's arguments, the model with its adapters, and what must hold before it starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey import rewards
from covey.config import Config
from covey.config.mesh import Mesh
from covey.errors import ConfigError, ModelError, RunDirectoryError
from covey.evaluation.benchmarks import check_benchmarks
from covey.model.adapters import check_adapters, lora_config, quantization_config, trainable_rows, with_adapters
from covey.model.adapters import merge as merge_adapters
from covey.model.export import settle_tokens
from covey.model.loading import own_sampling
from covey.model.reasoning_vocab.token_map import MAP_FILE
from covey.rewards import RewardSettings
from covey.runlog.directory import RunDirectory
from covey.training.trackers import trackers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.data import LoadedData
    from covey.training.trainer import GRPOConfig, GRPOTrainer


def check_supported(config: Config) -> list[str]:
    """Refuse what the schema knows and this version cannot do yet; what only waits becomes a note.

    Raises:
        ConfigError: training would not be what was asked for.
    """
    from covey.training.sharding import splits_weights

    if config.model.lora.active and config.model.lora.merge and splits_weights(Mesh.of(config.model.mesh_shape)):
        raise ConfigError(
            "model.lora.merge=true needs whole weights in one process, and this run shards them (model.mesh_shape, or "
            "the accelerate config that started it): leave it out, and merge the adapters afterwards (covey export)."
        )
    check_benchmarks(config.evaluation.benchmarks, "evaluation.benchmarks")
    check_benchmarks(config.evaluation.benchmark_paths, "evaluation.benchmark_paths")
    if config.training.use_vllm:
        check_engine()
    notes = []
    if config.training.use_vllm and config.model.lora.active:
        notes.append(
            "vLLM is given the adapters merged into the weights after each step, and the merge is undone here: TRL has "
            "no other way."
        )
    if config.launch.vllm_model and not config.training.use_vllm:
        notes.append(f"launch.vllm_model={config.launch.vllm_model} has no effect without training.use_vllm=true.")
    return notes


def check_engine() -> None:
    """Check that vLLM is there, and have what it says go where everything that libraries say goes.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("vllm") is None:
        raise ConfigError(
            "training.use_vllm=true, but vLLM is not installed in this environment: install it with "
            "`pip install 'covey[vllm]'` on a machine with a GPU (docs/vllm.md has the way for one without), or set "
            "training.use_vllm=false to have Covey generate by itself."
        )
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # read when vLLM is imported


def grpo_config(config: Config, run: RunDirectory) -> tuple[GRPOConfig, list[str]]:
    """TRL's arguments from ours, and what the user should know about them.

    Without a GPU, `use_cpu=true` and `bf16=false` are set.

    Raises:
        ConfigError: TRL refuses the values, or a tracker is not installed.
    """
    import torch

    from covey.training.sharding import asks_for_fsdp, let_cpus_shard, mesh_arguments
    from covey.training.trainer import GRPOConfig

    values: dict[str, Any] = dict(config.training.values)
    values["report_to"] = trackers(config) or "none"
    values["push_to_hub"] = False  # training/hub.py does, once, when all is on the disk
    values.pop("hub_token", None)  # it would lie in every checkpoint
    notes = []
    if not torch.accelerator.is_available():
        asked = [name for name in ("bf16", "fp16") if values.get(name)]
        values |= {"use_cpu": True, "bf16": False, "fp16": False}
        instead = f", in place of {asked[0]}=true" if asked else ""
        kind = {None: "float32", "auto": "the number type of the saved weights"}.get(
            config.model.dtype, config.model.dtype
        )
        notes.append(f"No GPU here: training on the CPU in {kind} (use_cpu=true, bf16=false{instead}).")
    if values.get("save_total_limit") == 1 and config.evaluation.keep_best and config.evaluation.every_steps:
        # With a limit of 1, transformers deletes the newest checkpoint at the end of training, and keeps the best.
        values["save_total_limit"] = 2
        notes.append("training.save_total_limit=1 keeps two checkpoints: the newest and the best.")
    if config.model.use_generation_config:
        own = own_sampling(config.model)
        values |= own
        said = ", ".join(f"{name}={value:g}" for name, value in own.items())
        notes.append(f"Sampling as the model's own generation config says: {said}.")
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
    try:
        args = GRPOConfig(
            **values,
            output_dir=str(run.root),
            run_name=config.run_name,
            seed=config.seed,
            model_init_kwargs=model_kwargs or None,
            trust_remote_code=config.model.trust_remote_code,
            eval_strategy="no",
            disable_tqdm=True,
        )
    except (ValueError, NotImplementedError, ImportError) as error:
        raise ConfigError(f"TRL does not take these training.* settings: {one_paragraph(error)}") from error
    if fsdp and args.distributed_state is not None:
        let_cpus_shard(args.distributed_state)
    return args, notes


def build_trainer(
    config: Config,
    args: GRPOConfig,
    source: str,
    loaded: LoadedData,
    reward_funcs: list[Any],
    tokenizer: PreTrainedTokenizerBase,
    objective: dict[str, Any],
) -> GRPOTrainer:
    """The trainer, its model and adapters loaded.

    Args:
        source: what `from_pretrained` takes.
        objective: what `objectives.build` gave.

    Raises:
        ModelError: the weights cannot be loaded.
        ConfigError: TRL, peft or transformers refuse the settings.
    """
    from transformers import PrinterCallback

    from covey.model.reasoning_vocab import ReasoningVocabulary
    from covey.training.trainer import GRPOTrainer
    from covey.training.user_callbacks import load_callbacks

    callbacks = load_callbacks(config.callbacks, config.evaluation)
    quantization = quantization_config(config.model)
    check_adapters(config.model.lora)
    rows = None
    if config.model.lora.active and (Path(source) / MAP_FILE).is_file():
        vocabulary = ReasoningVocabulary.load(source)
        rows = trainable_rows(source, vocabulary, trust_remote_code=config.model.trust_remote_code)
    try:
        policy: Any = source
        if config.model.lora.path is not None:
            policy = with_adapters(_base_model(source, args, quantization), config.model.lora)
            args.model_init_kwargs = quantization = None  # TRL has no more use for them
        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=loaded.train,
            processing_class=tokenizer,
            callbacks=callbacks,
            peft_config=lora_config(config.model.lora, rows),
            quantization_config=quantization,
            speed=config.speed,
            **objective,
        )
    except OSError as error:
        raise ModelError(
            f"The weights of model.name={config.model.name} cannot be loaded: {one_paragraph(error)}"
        ) from error
    except (ValueError, ImportError) as error:
        raise ConfigError(f"TRL does not take these settings: {one_paragraph(error)}") from error
    trainer.remove_callback(PrinterCallback)  # the display shows it
    if args.use_vllm:
        trainer.vllm_generation.sync_tolerance = config.launch.sync_tolerance
    return trainer


def _base_model(source: str, args: GRPOConfig, quantization: Any) -> Any:
    """The model that adapters go onto, loaded as TRL itself would."""
    from trl.trainer.utils import create_model_from_path

    values = dict(args.model_init_kwargs or {})
    if quantization is not None:
        values["quantization_config"] = quantization
    if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        values["device_map"] = None
    return create_model_from_path(source, **values, trust_remote_code=args.trust_remote_code)


def check_rewards(config: Config, loaded: LoadedData) -> None:
    """Check that every reward can be called with the columns that the data has.

    Raises:
        RewardError: it cannot be found, or needs a column that is not there.
    """
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    rewards.load(config.rewards.funcs, settings, loaded.train.column_names)


def check_size(config: Config, loaded: LoadedData, processes: int = 1) -> None:
    """Check that the data fill one generation batch, over all processes.

    Raises:
        ConfigError: they do not.
    """
    batch = config.training.generation_batch
    if config.training.generation_batch_size is None:
        batch *= processes
    prompts = batch // config.training.num_generations
    if len(loaded.train) < prompts:
        raise ConfigError(
            f"One generation batch takes {prompts} different prompts (training.per_device_train_batch_size × "
            "accumulation × processes ÷ training.num_generations), but the training data has only "
            f"{len(loaded.train)}. Lower training.per_device_train_batch_size, raise training.num_generations, or use "
            "more data."
        )


def check_disk_space(trainer: GRPOTrainer, run: RunDirectory, *, keeps_best: bool = False) -> None:
    """Check that the checkpoints that are there at once fit on the disk: weights, and two moments of what is trained.

    Raises:
        RunDirectoryError: they do not.
    """
    if trainer.args.save_strategy == "no":
        return
    stored = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    trained = sum(p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad)
    most = 3 if keeps_best else 2  # the newest, the one being written, and the best
    needed = most * (stored + 2 * trained) + 64 * 2**20
    free = shutil.disk_usage(run.root).free
    if free < needed:
        raise RunDirectoryError(
            f"{run.root} lies on a disk with {free / 1e9:.2f} GB free, but checkpoints of this model need about "
            f"{needed / 1e9:.2f} GB. Free some space or set output_dir to another disk."
        )


def save_final_model(trainer: GRPOTrainer, run: RunDirectory, *, merge: bool, wait: Callable[[], None]) -> None:
    """Write `final_model/`: beside first, then renamed, so that it is there whole or not at all.

    Args:
        wait: waits for the other processes.
        merge: add the adapters to the weights they belong to and save those, instead of the adapters alone.
    """
    from covey.model.reasoning_vocab.vocabulary import vocabulary_of
    from covey.training.sharding import whole_weights

    beside = run.final_model.with_name("final_model.part")
    if trainer.args.should_save:
        shutil.rmtree(beside, ignore_errors=True)
    wait()
    if merge and trainer.args.should_save:
        merged = merge_adapters(trainer.accelerator.unwrap_model(trainer.model))
        settle_tokens(merged, trainer.processing_class)
        merged.save_pretrained(beside)
        trainer.processing_class.save_pretrained(beside)
        if (vocabulary := vocabulary_of(trainer.model)) is not None:
            vocabulary.save(beside)
    else:
        with whole_weights():
            trainer.save_model(str(beside))
        shutil.rmtree(beside / "ref", ignore_errors=True)  # adapters that were gone on from, for the KL
    wait()
    if trainer.args.should_save:
        shutil.rmtree(run.final_model, ignore_errors=True)
        beside.rename(run.final_model)


def one_paragraph(error: Exception) -> str:
    """What a library says, on one line."""
    return " ".join(str(error).split())
