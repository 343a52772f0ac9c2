"""What a run needs before it starts: packages, columns, enough prompts, disk space."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING

from covey import rewards
from covey.config import Config
from covey.config.groups.mesh import Mesh
from covey.config.vllm import notes_on_sharing
from covey.errors import ConfigError, RunDirectoryError
from covey.evaluation.benchmarks import check_benchmarks
from covey.evaluation.grading import check_columns_for
from covey.rewards import RewardSettings
from covey.rollout.registry import engine_class
from covey.runlog.directory import RunDirectory

if TYPE_CHECKING:
    from transformers import Trainer

    from covey.data import LoadedData


def check_supported(config: Config) -> list[str]:
    """Refuse settings that are valid but not supported; settings without effect become notes.

    Raises:
        ConfigError: a setting is not supported, or a package is missing.
    """
    from covey.training.distributed.sharding import splits_weights

    config.model.lora.check_merge(sharded=splits_weights(Mesh.of(config.model.mesh_shape)))
    if config.training.use_liger_kernel and find_spec("liger_kernel") is None:
        raise ConfigError(
            "training.use_liger_kernel=true needs the package liger-kernel, which is not installed: pip install "
            "liger-kernel, or leave it out."
        )
    check_benchmarks(config.evaluation.benchmarks, "evaluation.benchmarks")
    check_benchmarks(config.evaluation.benchmark_paths, "evaluation.benchmark_paths")
    if config.training.use_vllm:
        check_engine()
    if config.rollout.own_engine is not None:
        engine_class(config.rollout.own_engine, "rollout.engine")
    notes = notes_on_sharing(config)
    if config.training.use_vllm and config.model.lora.active:
        notes.append(
            "vLLM gets the adapters merged into the weights after each step, and they are unmerged here: TRL does so."
        )
    return notes


def check_engine() -> None:
    """Check that vLLM is installed, and let it log like other libraries.

    Raises:
        ConfigError: it is not installed.
    """
    if find_spec("vllm") is None:
        raise ConfigError(
            "training.use_vllm=true, but vLLM is not installed in this environment: install it with "
            "`pip install 'covey[vllm]'` on a machine with a GPU (docs/vllm.md covers CPUs), or set "
            "training.use_vllm=false to have Covey generate by itself."
        )
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # read when vLLM is imported


def check_rewards(config: Config, loaded: LoadedData) -> dict[str, str]:
    """Check that every reward, and the grader, can be called with the columns that the data has.

    Returns:
        Notes on the held-out sets on which the rewards are left out, see `check_columns_for`.

    Raises:
        RewardError: it cannot be found, or needs a missing column.
    """
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    rewards.load(config.rewards.funcs, settings, loaded.train.column_names)
    if not config.evaluation.every_steps:
        return {}
    return check_columns_for(config, {name: rows.column_names for name, rows in loaded.evaluation.items()})


def check_size(config: Config, loaded: LoadedData, processes: int = 1) -> None:
    """Check that there are enough prompts for one generation batch, over all processes.

    Raises:
        ConfigError: there are not.
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


def check_disk_space(trainer: Trainer, run: RunDirectory, *, keeps_best: bool = False) -> None:
    """Check that the checkpoints kept at the same time fit on the disk: weights, and two moments of the trained ones.

    Raises:
        RunDirectoryError: they do not fit.
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
            f"{run.root} is on a disk with {free / 1e9:.2f} GB free, but checkpoints of this model need about "
            f"{needed / 1e9:.2f} GB. Free some space or set output_dir to another disk."
        )
