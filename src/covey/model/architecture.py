"""Whether a model can be made from its config, and fits its weights and adapters: checked without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ConfigError, ModelError, one_line
from covey.model.adapters import lora_config
from covey.model.loading import source_options
from covey.model.weight_files import read_header, shapes_of

if TYPE_CHECKING:
    from covey.config import LoraConfig, ModelConfig


def check_architecture(model: ModelConfig, source: str) -> None:
    """Check what `from_pretrained` and peft would reject.

    Args:
        model: how it is loaded.
        source: folder or hub id, from `check_model`.

    Raises:
        ModelError: the config describes no model, or another one than the weights or the adapters are of.
        ConfigError: the attention or the layers for adapters are not this model's.
    """
    import transformers
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, **source_options(model))
    if not config.architectures:  # TRL takes the class from it
        raise ModelError(
            f"The config.json of model.name={model.name} names no architecture: add the name of the model's class in "
            'transformers, such as "architectures": ["Qwen3ForCausalLM"].'
        )
    kind = getattr(transformers, config.architectures[0], None)
    if kind is None and model.trust_remote_code and getattr(config, "auto_map", None):
        return
    if kind is None:
        raise ModelError(
            f"The config.json of model.name={model.name} names the architecture {config.architectures[0]}, which "
            "transformers does not have. If the model brings its own code, set model.trust_remote_code=true."
        )
    empty = _empty(model, kind, config)
    if not hasattr(config, "quantization_config"):  # quantised weights are packed
        _check_shapes(model, empty, shapes_of(Path(source)))
    if model.lora.active:
        _check_adapters(model.lora, empty)


def _empty(model: ModelConfig, kind: Any, config: Any) -> Any:
    import torch

    attention = model.attn_implementation
    options = {} if attention is None or "/" in attention else {"attn_implementation": attention}
    try:
        with torch.device("meta"):
            return kind._from_config(config, **options)
    except (ValueError, ImportError) as error:
        if not options:
            raise _no_model(model, error) from error
        raise ConfigError(
            f"model.attn_implementation={attention} cannot be used with model.name={model.name}: {one_line(error)} "
            "Set model.attn_implementation=sdpa, or leave it out."
        ) from error
    except Exception as error:  # any, where config.json holds impossible sizes
        raise _no_model(model, error) from error


def _no_model(model: ModelConfig, error: Exception) -> ModelError:
    return ModelError(
        f"No model can be made from the config.json of model.name={model.name}: {one_line(error)} Take the file that "
        "was saved with the weights."
    )


def _check_shapes(model: ModelConfig, empty: Any, stored: Mapping[str, tuple[int, ...]]) -> None:
    """Compare embeddings and linear layers; others may be stored in another layout than they have in the model."""
    from torch import nn

    for name, module in empty.named_modules():
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        made = tuple(module.weight.shape)
        if stored.get(f"{name}.weight", made) != made:
            raise ModelError(
                f"The weights of model.name={model.name} are not those of its config.json: {name}.weight has the shape "
                f"{list(stored[f'{name}.weight'])} in the file, and the config makes it {list(made)}. Take the "
                "config.json that was saved with the weights."
            )


def _check_adapters(lora: LoraConfig, empty: Any) -> None:
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict

    folder = None if lora.path is None else Path(lora.path).expanduser()
    try:
        config: Any = lora_config(lora) if folder is None else PeftConfig.from_pretrained(str(folder))
        config.use_dora = False  # its norms would need weights
        adapted: Any = get_peft_model(empty, config)
    except (RuntimeError, NotImplementedError):
        return  # an initialisation that needs weights
    except (ValueError, TypeError, KeyError) as error:
        if folder is not None:
            raise _unfit(lora, one_line(error)) from error
        raise ConfigError(f"model.lora does not fit this model: {one_line(error)}") from error
    file = None if folder is None else folder / "adapter_model.safetensors"
    stored = {} if file is None or not file.is_file() else read_header(file)
    for name, tensor in get_peft_model_state_dict(adapted, save_embedding_layers=False).items():
        shape = stored.get(name, tuple(tensor.shape))
        if shape != tuple(tensor.shape):
            raise _unfit(lora, f"{name} has the shape {list(shape)} there, and {list(tensor.shape)} here.")


def _unfit(lora: LoraConfig, why: str) -> ModelError:
    return ModelError(f"The adapters in model.lora.path={lora.path} do not fit this model: {why}")
