"""From a config to a trainer: TRL's arguments, the model with its adapters, and what must hold before it starts."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from covey import rewards
from covey.config import Config
from covey.errors import ConfigError, ModelError, RunDirectoryError
from covey.model.adapters import lora_config, quantization_config
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
    if config.model.reasoning_vocab_size != 0:
        raise ConfigError(
            f"model.reasoning_vocab_size={config.model.reasoning_vocab_size}: this version of Covey cannot train with "
            "a reasoning vocabulary yet. Set it to 0 for the baseline."
        )
    mesh = config.model.mesh_shape
    if mesh is not None and any(size != 1 for size in mesh[0]):
        raise ConfigError(
            f"model.mesh_shape={mesh}: this version of Covey cannot split a model over a device mesh yet. Set it to "
            "null, and use an accelerate config (recipes/accelerate) for FSDP2 or ZeRO."
        )
    notes = []
    if config.evaluation.benchmarks:
        listed = ", ".join(config.evaluation.benchmarks)
        notes.append(
            f"evaluation.benchmarks ({listed}) are not run by training: `covey eval` runs them on the finished run."
        )
    if config.launch.vllm_model and not config.training.use_vllm:
        notes.append(f"launch.vllm_model={config.launch.vllm_model} has no effect without training.use_vllm=true.")
    return notes


def grpo_config(config: Config, run: RunDirectory) -> tuple[GRPOConfig, list[str]]:
    """TRL's arguments from ours, and what the user should know about them.

    Without a GPU, `use_cpu=true` and `bf16=false` are set.

    Raises:
        ConfigError: TRL refuses the values, or a tracker is not installed.
    """
    import torch

    from covey.training.trainer import GRPOConfig

    values: dict[str, Any] = dict(config.training.values)
    values["report_to"] = trackers(config) or "none"
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

    from covey.training.trainer import GRPOTrainer
    from covey.training.user_callbacks import load_callbacks

    callbacks = load_callbacks(config.callbacks)
    quantization = quantization_config(config.model)
    try:
        trainer = GRPOTrainer(
            model=source,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=loaded.train,
            processing_class=tokenizer,
            callbacks=callbacks,
            peft_config=lora_config(config.model.lora),
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
    return trainer


def check_rewards(config: Config, loaded: LoadedData) -> None:
    """Check that every reward can be called with the columns that the data has.

    Raises:
        RewardError: it cannot be found, or needs a column that is not there.
    """
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    rewards.load(config.rewards.funcs, settings, loaded.train.column_names)


def check_size(config: Config, loaded: LoadedData) -> None:
    """Check that the data fill one generation batch.

    Raises:
        ConfigError: they do not.
    """
    prompts = config.training.generation_batch // config.training.num_generations
    if len(loaded.train) < prompts:
        raise ConfigError(
            f"One generation batch takes {prompts} different prompts (training.per_device_train_batch_size × "
            f"accumulation ÷ training.num_generations), but the training data has only {len(loaded.train)}. Lower "
            "training.per_device_train_batch_size, raise training.num_generations, or use more data."
        )


def check_disk_space(trainer: GRPOTrainer, run: RunDirectory, *, keeps_best: bool = False) -> None:
    """Check that the checkpoints that are kept at once fit on the disk, side by side: weights, and two moments of what is trained.

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


def save_final_model(trainer: GRPOTrainer, run: RunDirectory, *, merge: bool) -> None:
    """Write `final_model/`: beside first, then renamed, so that it is there whole or not at all.

    Args:
        merge: add the adapters to the weights they belong to and save those, instead of the adapters alone.
    """
    beside = run.final_model.with_name("final_model.part")
    shutil.rmtree(beside, ignore_errors=True)
    if merge and trainer.args.should_save:
        merged = trainer.accelerator.unwrap_model(trainer.model).merge_and_unload()
        merged.save_pretrained(beside)
        trainer.processing_class.save_pretrained(beside)
    else:
        trainer.save_model(str(beside))
    if trainer.args.should_save:
        shutil.rmtree(run.final_model, ignore_errors=True)
        beside.rename(run.final_model)


def one_paragraph(error: Exception) -> str:
    """What a library says, on one line."""
    return " ".join(str(error).split())
