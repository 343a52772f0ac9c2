"""Low-rank adapters and quantised weights: from the config group `model` to the configs of peft and transformers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.advice import install
from covey.errors import ConfigError, ModelError
from covey.model.weight_files import check_file

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig as PeftLoraConfig
    from peft import PeftModel
    from torch import nn
    from transformers import BitsAndBytesConfig, PreTrainedModel

    from covey.config import LoraConfig, ModelConfig
    from covey.model.reasoning_vocab import ReasoningVocabulary


def lora_config(lora: LoraConfig, rows: dict[str, list[int]] | None = None) -> PeftLoraConfig | None:
    """peft's config of new adapters; None if the whole model or existing adapters are trained.

    Args:
        lora: the settings.
        rows: embedding rows to train fully, see `trainable_rows`.
    """
    if not lora.active or lora.path is not None:
        return None
    from peft import LoraConfig as PeftLoraConfig

    targets: Any = lora.target_modules
    if isinstance(targets, tuple):
        # Recipes of other tools write the single value `all-linear` as a list.
        targets = targets[0] if len(targets) == 1 and targets[0] == "all-linear" else list(targets)
    return PeftLoraConfig(
        task_type="CAUSAL_LM",
        r=lora.effective_rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        modules_to_save=None if lora.modules_to_save is None else list(lora.modules_to_save),
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        trainable_token_indices=rows,
    )


def trainable_rows(source: str, vocabulary: ReasoningVocabulary | None, **options: Any) -> dict[str, list[int]] | None:
    """The rows of reasoning tokens that must be trained fully with adapters, for peft's `trainable_token_indices`.

    Low-rank adapters do not change embeddings, so reasoning tokens would stay copies. peft stores trained rows with the
    adapters, for the embedding and, if untied, the head; ordinary rows stay frozen, and with the adapters disabled the
    model is the initial one, the reference.

    Args:
        source: a folder with the expanded model.
        vocabulary: its reasoning vocabulary; None needs no rows.
        options: for `from_pretrained` (`trust_remote_code`).

    Returns:
        Rows by module name; None without vocabulary.
    """
    if vocabulary is None:
        return None
    from transformers import AutoConfig, AutoModelForCausalLM

    from covey.model.device import on_meta

    with on_meta():
        config = AutoConfig.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_config(config, **options)
    first, last = vocabulary.map.base_vocab_size, vocabulary.map.vocab_size
    rows = [token for token in range(first, last) if token not in vocabulary.map.unusable]
    tables = [model.get_input_embeddings()]
    if not config.get_text_config().tie_word_embeddings:
        tables.append(model.get_output_embeddings())
    return {name: rows for name, module in model.named_modules() if any(module is table for table in tables)}


def check_adapters(lora: LoraConfig) -> None:
    """Raise a `ModelError` unless `model.lora.path` holds adapters that can be read."""
    if lora.path is None:
        return
    folder = Path(lora.path).expanduser()
    weights = ("adapter_model.safetensors", "adapter_model.bin")
    if not (folder / "adapter_config.json").is_file() or not any((folder / name).is_file() for name in weights):
        raise ModelError(
            f"model.lora.path={lora.path} holds no adapters: {folder.resolve()} has no adapter_config.json with an "
            "adapter_model.safetensors. Give the final_model/ or a checkpoint of a run that trained adapters."
        )
    check_file(next(folder / name for name in weights if (folder / name).is_file()), f"model.lora.path={lora.path}")


def with_adapters(model: PreTrainedModel, lora: LoraConfig) -> PeftModel:
    """Add the adapters of `model.lora.path` to a loaded model; a `ModelError` if they do not fit."""
    from peft import PeftModel

    check_adapters(lora)
    folder = Path(str(lora.path)).expanduser()
    try:
        return PeftModel.from_pretrained(model, str(folder), is_trainable=True)
    except (RuntimeError, ValueError, KeyError) as error:
        cause = " ".join(str(error).split())
        raise ModelError(f"The adapters in model.lora.path={lora.path} do not fit this model: {cause}") from error


def untie(model: nn.Module) -> None:
    """Separate weights that layers share where adapters change only some of the layers, as an embedding whose head is
    tied to it: merged, they would change the others too. Raises a `ConfigError` if DeepSpeed has partitioned them."""
    from peft.tuners.trainable_tokens import TrainableTokensLayer
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch.nn import Parameter

    adapted = {
        id(one.get_base_layer())
        for one in model.modules()  # trained rows of an embedding are those of its head as well
        if isinstance(one, BaseTunerLayer) and not isinstance(one, TrainableTokensLayer)
    }
    holders: dict[int, list[tuple[nn.Module, str, nn.Parameter]]] = {}
    for module in model.modules():
        for name, weights in module.named_parameters(recurse=False):
            holders.setdefault(id(weights), []).append((module, name, weights))
    for held in (held for held in holders.values() if any(id(module) in adapted for module, _, _ in held)):
        for module, name, weights in held[1:]:
            if hasattr(weights, "ds_status"):
                raise ConfigError("DeepSpeed ZeRO-3 allows no adapters on an embedding that is tied to the head.")
            setattr(module, name, Parameter(weights.detach().clone(), requires_grad=weights.requires_grad))


def merge(model: PeftModel) -> PreTrainedModel:
    """The base model with its adapters merged.

    If they changed only one of the embedding and an output layer tied to it, the two are untied.

    Raises:
        ModelError: the merged weights are not finite, or differ where the architecture shares them.
    """
    import torch

    untie(model)
    try:
        merged: PreTrainedModel = model.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise ModelError(f"The adapters cannot be merged: {' '.join(str(error).split())}") from error
    head = merged.get_output_embeddings()
    for name, source in getattr(merged, "all_tied_weights_keys", {}).items():
        weights = merged.get_parameter(name)
        is_head = head is not None and weights is getattr(head, "weight", None)
        if not is_head and not torch.equal(weights, merged.get_parameter(source)):
            raise ModelError(
                f"The adapters cannot be merged: {name} and {source} share their weights in this architecture, but "
                "have different adapters. Keep these as they are: model.lora.merge=false, "
                "covey export RUN FOLDER --adapters."
            )
    return merged


@contextmanager
def unmerged_exactly(model: nn.Module) -> Iterator[None]:
    """Context manager: adapters may be merged and unmerged, and the frozen weights below them are as before afterwards.

    peft subtracts what it has added, which changes their last bits each time. The copies are in the CPU's memory.
    """
    if not hasattr(model, "peft_config"):
        yield
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [layer.get_base_layer() for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    kept = [
        (one, name, weights, _local(weights).to("cpu", copy=True))
        for one in (part for base in layers for part in base.modules())
        for name, weights in one.named_parameters(recurse=False)
        if not weights.requires_grad
    ]
    try:
        yield
    finally:
        for one, name, weights, before in kept:
            _local(weights).copy_(before)
            one._parameters[name] = weights  # merging replaces quantised ones


def _local(weights: torch.Tensor) -> torch.Tensor:
    """The data of this process, also of a sharded tensor (`DTensor`)."""
    data = weights.detach()
    return data.to_local() if hasattr(data, "to_local") else data


def device_kind() -> str:
    """The device type of this process: `cuda`, `mps`, …, or `cpu`."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if found is None else found.type


def quantization_config(model: ModelConfig) -> BitsAndBytesConfig | None:
    """The quantisation on loading; None for none. Raises a `ModelError` if bitsandbytes is not installed, or does not
    support the device."""
    if not (model.load_in_8bit or model.load_in_4bit):
        return None
    key = "load_in_8bit" if model.load_in_8bit else "load_in_4bit"
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            f"model.{key}=true needs bitsandbytes, which is not installed: {install('quantization')}, or set "
            f"model.{key}=false."
        )
    import torch
    from transformers import BitsAndBytesConfig

    bitsandbytes = import_module("bitsandbytes")
    device = device_kind()
    if device not in getattr(bitsandbytes, "supported_torch_devices", {"cuda"}):
        raise ModelError(
            f"model.{key}=true: bitsandbytes {bitsandbytes.__version__} cannot work on a {device.upper()}, and "
            f"there is no other device. Install a newer one (pip install -U bitsandbytes), or set model.{key}=false."
        )
    # It warns of a cast, which is part of the method, for every layer in every forward pass.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    if model.load_in_8bit:
        return BitsAndBytesConfig(load_in_8bit=True)
    compute = {"float16": torch.float16, "float32": torch.float32}.get(str(model.dtype), torch.bfloat16)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_quant_storage=compute,
        bnb_4bit_quant_type=model.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=model.use_bnb_nested_quant,
    )
