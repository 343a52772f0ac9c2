"""What a run needs before it starts: packages, columns, enough prompts, disk space."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from covey import rewards
from covey.config import Config
from covey.config.groups.mesh import Mesh
from covey.config.vllm import notes_on_sharing
from covey.config.vllm_lora import served_rank
from covey.errors import ConfigError, RunDirectoryError
from covey.evaluation.benchmarks import check_benchmarks
from covey.evaluation.grading import check_columns_for
from covey.rewards import RewardSettings
from covey.runlog.directory import RunDirectory
from covey.runlog.files import free_bytes
from covey.training.asynchronous.settings import check_asynchronous
from covey.training.distributed.sharding import splits_weights
from covey.training.preflight.packages import check_packages

if TYPE_CHECKING:
    from transformers import Trainer

    from covey.data import LoadedData


def check_supported(config: Config) -> list[str]:
    """Refuse settings that are valid but not supported; settings without effect become notes. Raises a `ConfigError` if
    a setting is not supported, or a package is missing."""

    config.model.lora.check_merge(sharded=splits_weights(Mesh.of(config.model.mesh_shape)))
    check_packages(config)
    check_benchmarks(config.evaluation.benchmarks, "evaluation.benchmarks")
    check_benchmarks(config.evaluation.benchmark_paths, "evaluation.benchmark_paths")
    if config.training.use_vllm:
        check_engine()
    if config.rollout.own_engine is not None:
        from covey.rollout.registry import engine_class

        engine_class(config.rollout.own_engine, "rollout.engine")
    check_asynchronous(config)
    notes = notes_on_sharing(config)
    if config.training.use_vllm:
        notes += _on_adapters(config)
    return notes


def _on_adapters(config: Config) -> list[str]:
    """A note on what vLLM gets of adapters. Raises a `ConfigError` if it is to get them alone, and cannot."""
    rank, reason = served_rank(config)
    if config.training.vllm_lora_sync == "adapter" and reason is not None:
        raise ConfigError(
            f"training.vllm_lora_sync=adapter, but vLLM cannot get adapters alone: {reason}. With auto or merge it "
            "gets whole weights with the adapters merged."
        )
    if not config.model.lora.active:
        return []
    if rank:
        return ["vLLM gets the adapters alone after each step, where it takes them (training.vllm_lora_sync)."]
    return [f"vLLM gets whole weights with the adapters merged after each step: {reason}."]


def check_engine() -> None:
    """Raise a `ConfigError` unless vLLM is installed; it will log like other libraries."""
    if find_spec("vllm") is None:
        raise ConfigError(
            "training.use_vllm=true, but vLLM is not installed in this environment: install it with "
            "`pip install 'covey[vllm]'` on a machine with a GPU (docs/vllm.md covers CPUs), or set "
            "training.use_vllm=false to have Covey generate by itself."
        )
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # read when vLLM is imported


def check_rewards(config: Config, loaded: LoadedData, rewarding: Sequence[str] = ()) -> dict[str, str]:
    """Check that every reward, and the grader, can be called with the columns that the data has.

    Args:
        rewarding: names of the classes of its environments that reward their episodes.

    Returns:
        Notes on the held-out sets on which the rewards are left out, see `check_columns_for`.

    Raises:
        RewardError: it cannot be found, or needs a missing column.
    """
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    given = ["environments"] if config.environment.factory is not None else []
    rewards.load(config.rewards.funcs, settings, [*loaded.train.column_names, *given])
    if not config.evaluation.every_steps:
        return {}
    sets = {name: rows.column_names for name, rows in loaded.evaluation.items()}
    return check_columns_for(config, sets, rewarding)


def check_size(config: Config, loaded: LoadedData, processes: int = 1) -> None:
    """Raise a `ConfigError` if there are too few prompts for one generation batch, over all processes."""
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


def check_disk_space(trainer: Trainer, run: RunDirectory, *, keeps_best: bool = False) -> None:
    """Check that the checkpoints of a built trainer fit on the disk, see `check_free_space`."""
    if trainer.args.save_strategy == "no":
        return
    stored = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    trained = sum(p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad)
    check_free_space(run.root, stored, 2 * trained, keeps_best=keeps_best)


def check_free_space(folder: Path, stored: int, moments: int, *, keeps_best: bool) -> None:
    """Check that the checkpoints kept at the same time fit on the disk.

    Args:
        folder: on that disk; it need not exist yet.
        stored: bytes of the weights in a checkpoint.
        moments: bytes of the optimiser's moments.
        keeps_best: whether the best checkpoint is kept besides the newest.

    Raises:
        RunDirectoryError: they do not fit.
    """
    most = 3 if keeps_best else 2  # the newest, the one being written, and the best
    needed = most * (stored + moments) + 64 * 2**20
    free = free_bytes(folder)
    if free < needed:
        raise RunDirectoryError(
            f"{folder} is on a disk with {free / 1e9:.2f} GB free, but checkpoints of this model need about "
            f"{needed / 1e9:.2f} GB. Free some space or set output_dir to another disk."
        )
