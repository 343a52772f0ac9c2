"""Low-rank adapters and quantised weights: from the config group `model` to what peft and transformers take."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from covey.errors import ModelError

if TYPE_CHECKING:
    from peft import LoraConfig as PeftLoraConfig
    from transformers import BitsAndBytesConfig

    from covey.config import LoraConfig, ModelConfig


def lora_config(lora: LoraConfig) -> PeftLoraConfig | None:
    """The adapters as peft describes them; None when the whole model is trained."""
    if not lora.active:
        return None
    from peft import LoraConfig as PeftLoraConfig

    targets: Any = lora.target_modules
    if isinstance(targets, tuple):
        # One `all-linear` in a list means the same as the word alone, as recipes of other tools write it.
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
    )


def quantization_config(model: ModelConfig) -> BitsAndBytesConfig | None:
    """How the weights are quantised on loading; None when they are not.

    Raises:
        ModelError: bitsandbytes is not installed, or there is no device that it can work on.
    """
    if not (model.load_in_8bit or model.load_in_4bit):
        return None
    key = "load_in_8bit" if model.load_in_8bit else "load_in_4bit"
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            f"model.{key}=true needs bitsandbytes, which is not installed: pip install 'covey[quantization]', or set "
            f"model.{key}=false."
        )
    import torch
    from transformers import BitsAndBytesConfig

    if not torch.accelerator.is_available():
        raise ModelError(
            f"model.{key}=true needs a GPU: quantised weights are slow or wrong to train on a CPU. Set "
            f"model.{key}=false here, or run it where there is a GPU."
        )
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
