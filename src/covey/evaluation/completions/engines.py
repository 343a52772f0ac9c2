"""The weights of what is evaluated, and the engine that samples from them."""

from __future__ import annotations

from typing import Any

from covey.config import Config
from covey.errors import ConfigError, ModelError
from covey.evaluation.stored import sampling_settings
from covey.evaluation.target import Target
from covey.model.adapters import quantization_config
from covey.model.device import autocast_dtype
from covey.model.loading import check_model, own_generation_config, quiet_weights, source_options
from covey.rollout import InferenceEngine, LocalEngine, SamplingSettings
from covey.rollout.registry import make_engine


def load_policy(config: Config, target: Target) -> Any:
    """The model with its weights, in the dtype of the run; adapters are not merged.

    Weights are quantised as in the run; a checkpoint of quantised weights has its own settings.

    Raises:
        ModelError: it cannot be loaded, or not on this machine.
    """
    import torch
    from transformers import AutoModelForCausalLM

    source = check_model(config.model)
    more: dict[str, Any] = {"quantization_config": quantization_config(config.model)}
    more |= {"dtype": config.model.dtype or "float32", **source_options(config.model)}
    if config.model.attn_implementation:
        more["attn_implementation"] = config.model.attn_implementation
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if more["quantization_config"] is not None:
        more["device_map"] = {"": 0 if device is not None else "cpu"}
    try:
        with quiet_weights():
            model = AutoModelForCausalLM.from_pretrained(source, **more)
            if target.adapter is not None:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, str(target.adapter))
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        where = target.adapter or target.source
        raise ModelError(f"The weights of {where} cannot be loaded: {' '.join(str(error).split())}") from error
    # Quantised weights are placed as they are loaded, and some kinds refuse to be moved.
    return model if device is None or getattr(model, "is_quantized", False) else model.to(device)


def engine_of(
    config: Config, target: Target, tokenizer: Any, name: str, model: Any = None, *, batch_size: int | None = None
) -> InferenceEngine:
    """The engine that samples completions of a target.

    Args:
        config: `model.name` is `target.source`.
        target: the weights.
        tokenizer: of the model.
        name: see `evaluation.engine`.
        model: for `local`, the target's model, if it is loaded already.
        batch_size: completions at a time; None takes `evaluation.batch_size`.

    Raises:
        ConfigError: there is no such engine, or the weights are adapters, or quantised on loading, and it needs others.
        EngineError: it does not take the model.
        ModelError: the model cannot be loaded.
    """
    batch_size = batch_size or config.evaluation.batch_size
    if name == "local":
        policy = model if model is not None else load_policy(config, target)
        # Mixed precision as in training: flash attention, for one, takes no float32.
        autocast = autocast_dtype(policy.device, config.training.bf16, bool(config.training.fp16), config.model.dtype)
        shared = config.speed.shared_prefill
        return LocalEngine(policy, tokenizer, batch_size=batch_size, shared_prefill=shared, autocast=autocast)
    settings = config.model
    if target.adapter is not None or settings.load_in_4bit or settings.load_in_8bit:
        raise ConfigError(
            f"evaluation.engine={name} needs merged, unquantised weights, and {target.label} has adapters or weights "
            "that are quantised on loading. Merge them with `covey export` and evaluate that folder, or use "
            "evaluation.engine=local."
        )
    return make_engine(
        name,
        "evaluation.engine",
        model_name=check_model(settings),
        tokenizer=tokenizer,
        dtype=settings.dtype,
        batch_size=batch_size,
        revision=settings.revision,
        trust_remote_code=settings.trust_remote_code,
    )


def sampling_of(config: Config) -> SamplingSettings:
    """The sampling settings of evaluations with this config; what has no key is that of the model's own config."""
    own = own_generation_config(config.model)
    more = {name: getattr(own, name, None) for name in ("min_p", "repetition_penalty")}
    return SamplingSettings(
        **sampling_settings(config), **{name: value for name, value in more.items() if value is not None}
    )
