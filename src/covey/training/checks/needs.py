"""What a run needs before it starts: packages, hardware, columns, enough prompts, disk space, callable rewards.

Packages are looked for before PyTorch and the weights are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from covey import rewards
from covey.advice import install
from covey.config import Config
from covey.config.groups.mesh import Mesh
from covey.config.values import show
from covey.config.vllm import notes_on_sharing, served_rank
from covey.errors import ConfigError, RunDirectoryError
from covey.evaluation.grading import check_columns_for, grader_name
from covey.evaluation.job import check_benchmarks
from covey.model.load import check_tensor_parallel
from covey.rewards import RewardSettings, find
from covey.rewards.findings import shown_prompt
from covey.rewards.registry import MODEL_PREFIX
from covey.rewards.runner import RewardRunner, arguments_for_call, call_problems, columns_of
from covey.rewards.workers.run_reward import LOGS, CallResult
from covey.runlog.directory import RunDirectory
from covey.runlog.files import free_bytes
from covey.training.asynchronous.settings import check_asynchronous
from covey.training.checks.findings import Known, Mark, PreflightFinding, Stage, check
from covey.training.checks.trackers import tracker_notes
from covey.training.processes import splits_weights

if TYPE_CHECKING:
    from transformers import Trainer

    from covey.config import TrainingConfig
    from covey.data import LoadedData


_FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
_EXTRAS = {"bitsandbytes": "quantization", "deepspeed": "deepspeed"}


class _Need(NamedTuple):
    """A setting that needs a package."""

    setting: str
    package: str
    instead: str


def check_packages(config: Config) -> None:
    """Raise a `ConfigError` unless the packages that the settings of a run need are installed."""
    _refuse_missing(_needs(config))


def _refuse_missing(needs: Iterable[_Need]) -> None:
    for need in needs:
        name = need.package.replace("_", "-")
        if find_spec(need.package) is None:
            build = " --no-build-isolation" if need.package == "flash_attn" else ""
            how = install(_EXTRAS[need.package]) if need.package in _EXTRAS else f"pip install {name}{build}"
            raise ConfigError(
                f"{need.setting} needs the package {name}, which is not installed: {how}, or {need.instead}."
            )


def _needs(config: Config) -> Iterator[_Need]:
    training, model = config.training, config.model
    for bits in ("load_in_8bit", "load_in_4bit"):
        if getattr(model, bits):
            yield _Need(f"model.{bits}=true", "bitsandbytes", f"set model.{bits}=false")
    if training.deepspeed is not None:
        instead = "use FSDP2, which needs no package (covey launch, launch.accelerate=fsdp2)"
        yield _Need("training.deepspeed", "deepspeed", instead)
    attention, sdpa = _attention(config), "set model.attn_implementation=sdpa"
    if attention in _FLASH and find_spec("kernels") is None:  # it has the same attention
        yield _Need(f"model.attn_implementation={attention}", _FLASH[attention], sdpa)
    if "/" in attention:
        yield _Need(f"model.attn_implementation={attention}, a kernel of the hub,", "kernels", sdpa)


def check_hardware(config: Config) -> None:
    """Raise a `ConfigError` unless this machine has what the settings need. Imports PyTorch."""
    import torch

    training, attention = config.training, _attention(config)
    gpu = torch.accelerator.is_available() and not training.use_cpu
    if torch.accelerator.is_available() and training.use_liger_kernel:  # a CPU trains without it
        _refuse_missing([_Need("training.use_liger_kernel=true", "liger_kernel", "leave it out")])
    flash = attention.removeprefix("paged|").startswith("flash_attention")
    if flash and not gpu:
        raise ConfigError(
            f"model.attn_implementation={attention} needs a GPU, and this run has none: set "
            "model.attn_implementation=sdpa."
        )
    if flash and config.model.dtype in (None, "float32") and not _mixed(training):
        raise ConfigError(
            f"model.attn_implementation={attention} computes in bfloat16 or float16 only, and this run in float32: set "
            "training.bf16=true or model.dtype=bfloat16, or model.attn_implementation=sdpa."
        )
    if gpu and training.fp16 and config.model.dtype == "float16" and not config.model.lora.active:
        raise ConfigError(
            "training.fp16=true scales gradients, which must be float32, and model.dtype=float16 makes them float16: "
            "set model.dtype=float32, or train in bfloat16 (training.bf16=true)."
        )


def check_attention(name: str | None) -> None:
    """Raise a `ConfigError` unless transformers has this attention. Imports PyTorch."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = (name or "").removeprefix("paged|")
    if name is None or "/" in plain or plain == "eager" or plain in ALL_ATTENTION_FUNCTIONS.valid_keys():
        return
    known = ", ".join(["eager", *(key for key in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in key)])
    raise ConfigError(f"model.attn_implementation={show(name)} is no attention of transformers: choose among {known}.")


def _attention(config: Config) -> str:
    given = (config.training.values.get("model_init_kwargs") or {}).get("attn_implementation")
    return str(config.model.attn_implementation or given or "")


def _mixed(training: TrainingConfig) -> bool:
    """Whether PyTorch computes in a short dtype; TRL turns bfloat16 on where nothing is set."""
    return bool(training.fp16 or training.bf16 or training.bf16 is None)


@check("output", Stage.SETTINGS)
def check_output(known: Known) -> Iterator[PreflightFinding]:
    """Whether the run directory can be written."""
    known.run.check_place()
    yield from ()


@check("settings", Stage.SETTINGS)
def check_settings(known: Known) -> Iterator[PreflightFinding]:
    """Settings that are valid but not supported, packages and logins that they need, settings without effect."""
    for note in (*check_supported(known.config), *tracker_notes(known.config)):
        yield PreflightFinding(Mark.NOTE, "settings", note)
    yield PreflightFinding(Mark.FINE, "settings", "every key is known, every value in range")


def check_supported(config: Config) -> list[str]:
    """Refuse settings that are valid but not supported; settings without effect become notes. Raises a `ConfigError` if
    a setting is not supported, or a package is missing."""
    config.model.lora.check_merge(sharded=splits_weights(Mesh.of(config.model.mesh_shape)))
    check_packages(config)
    check_benchmarks(config.evaluation.benchmarks, "evaluation.benchmarks")
    check_benchmarks(config.evaluation.benchmark_paths, "evaluation.benchmark_paths")
    notes = check_tensor_parallel(config) + notes_on_sharing(config)
    if config.training.use_vllm:
        check_vllm()
    if config.rollout.own_engine is not None:
        from covey.rollout.generate import engine_class

        engine_class(config.rollout.own_engine, "rollout.engine")
    check_asynchronous(config)
    if config.training.use_vllm:
        notes += _notes_on_adapters(config)
    return notes


def _notes_on_adapters(config: Config) -> list[str]:
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


def check_vllm() -> None:
    """Raise a `ConfigError` unless vLLM is installed; it will log like other libraries."""
    if find_spec("vllm") is None:
        raise ConfigError(
            f"training.use_vllm=true, but vLLM is not installed in this environment: install it with "
            f"`{install('vllm')}` on a machine with a GPU (docs/vllm.md covers CPUs), or set "
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


PROMPTS_TRIED = 2
"""Prompts whose groups the user's own functions are called on."""


def own_functions(config: Config) -> dict[str, str]:
    """The user's own rewards and grader by name, each as `reward` or `grader`; none where environments are met, whose
    episodes only a model can play."""
    if config.environment.used or config.environment.rollout_func is not None:
        return {}
    found = {name: "reward" for name in config.rewards.funcs if ":" in name and not name.startswith(MODEL_PREFIX)}
    grader = grader_name(config)
    return {grader: "grader", **found} if grader is not None and ":" in grader else found


def try_calls(
    config: Config,
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    runner: RewardRunner,
    encode: Callable[[str], Sequence[int]],
) -> Iterator[PreflightFinding]:
    """Call each of the user's own functions as a training step does, on groups of equal completions: `texts`, one of
    each of a few training `rows`, whose token ids `encode` gives."""
    from transformers import TrainerState

    generations = config.training.num_generations
    rows = [row for row in rows for _ in range(generations)]
    texts = [text for text in texts for _ in range(generations)]
    prompts = [row["prompt"] for row in rows]
    replies = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    columns = {
        **columns_of(rows),
        "completion_ids": [list(encode(text)) for text in texts],
        "trainer_state": TrainerState(),
        **dict.fromkeys(LOGS),
    }
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    for name, what in own_functions(config).items():
        arguments = arguments_for_call(find(name, settings), False, prompts, replies, columns)
        (called,) = runner.pool_of(name).submit_call(name, arguments).result()
        yield _call_finding(name, what, called, prompts, skips=config.rewards.on_error == "skip")


def _call_finding(name: str, what: str, called: CallResult, prompts: Sequence[Any], *, skips: bool) -> PreflightFinding:
    problems, count = call_problems(called), len(prompts)
    on = f"a trial call with {count} completions"
    if problems:
        first = problems[0]
        where = "" if first.row is None else f" for one of {shown_prompt(prompts[first.row])}"
        return PreflightFinding(
            Mark.WARNING if skips else Mark.WRONG,
            f"{what} {name}",
            f"{on} failed{where}: {first.cause}",
            "Such completions get no reward (rewards.on_error=skip)."
            if skips
            else "Fix the function, or leave such completions out with rewards.on_error=skip.",
            name="reward_calls",
        )
    values = [value for value in called.values if value is not None]
    if not values:
        advice = "It, or the columns that it reads, may not fit the data."
        return PreflightFinding(Mark.WARNING, f"{what} {name}", f"{on} gave no value (all are None)", advice)
    low, high = min(values), max(values)
    gave = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return PreflightFinding(Mark.FINE, f"{what} {name}", f"{on} gave {gave}")
