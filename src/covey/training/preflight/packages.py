"""Packages and hardware that a setting needs, found before PyTorch and the weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from covey.config import Config
from covey.config.values import show
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.config import TrainingConfig

_FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
_FOR_PIP = {
    "flash_attn": "flash-attn --no-build-isolation",
    "bitsandbytes": "'covey[quantization]'",
    "deepspeed": "'covey[deepspeed]'",
}


class _Need(NamedTuple):
    """A setting that needs a package."""

    setting: str
    package: str
    instead: str


def check_packages(config: Config) -> None:
    """Raise a `ConfigError` unless the packages that the settings of a run need are installed."""
    for need in _needs(config):
        name = need.package.replace("_", "-")
        if find_spec(need.package) is None:
            raise ConfigError(
                f"{need.setting} needs the package {name}, which is not installed: pip install "
                f"{_FOR_PIP.get(need.package, name)}, or {need.instead}."
            )


def _needs(config: Config) -> Iterator[_Need]:
    training, model = config.training, config.model
    if training.use_liger_kernel:
        yield _Need("training.use_liger_kernel=true", "liger_kernel", "leave it out")
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
