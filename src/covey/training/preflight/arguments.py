"""Checks of what TRL's trainer is made with, in Python or from a recipe, and of the model that it made."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch

from covey.errors import ConfigError, ModelError
from covey.model.base import base_model
from covey.training.preflight.dataset_checks import check_prompts

_WITHOUT_USE = {
    "neftune_noise_alpha": "its noise would be in sampling and in scoring, each time another, so that ratios are wrong",
    "label_smoothing_factor": "no loss of GRPO reads it",
}


def check_arguments(trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Check what a trainer is made with, before anything is loaded.

    Args:
        trainer: the trainer's class.
        args: its arguments.
        kwargs: its keyword arguments.

    Returns:
        Its GRPOConfig; None if it is not given.

    Raises:
        DataError: rows have no `prompt`.
        ConfigError: a setting cannot work.
        ModelError: nothing of the model would be trained.
    """
    check_prompts(trainer, *args, **kwargs)
    given = signature(trainer).bind_partial(*args, **kwargs).arguments
    config, adapters = given.get("args"), given.get("peft_config")
    for name, why in _WITHOUT_USE.items():
        if getattr(config, name, None):
            raise ConfigError(f"{name}={getattr(config, name)} cannot be used: {why}. Leave it out.")
    if getattr(adapters, "inference_mode", False):
        raise ModelError("peft_config has inference_mode=True, so that nothing would be trained. Set it to False.")
    if adapters is None and isinstance(given.get("model"), torch.nn.Module):
        check_trainable(given["model"])
    return config


def check_trainable(model: torch.nn.Module) -> None:
    """Raise a `ModelError` if no weight of a model would be trained."""
    if any(weights.requires_grad for weights in model.parameters()):
        return
    advice = (
        "Load its adapters by PeftModel.from_pretrained(model, folder, is_trainable=True): peft's default is False."
        if hasattr(model, "peft_config")
        else "Unfreeze what is to be trained (requires_grad_), or pass a peft_config."
    )
    kind = type(base_model(model)).__name__
    raise ModelError(f"Nothing would be trained: all weights of the {kind} are frozen (requires_grad=False). {advice}")


def check_vllm_head(model: Any) -> None:
    """Raise a `ConfigError` if vLLM, which ties a head that the config ties, cannot hold a model that is trained."""
    from peft.utils.other import TrainableTokensWrapper

    base = base_model(model)
    head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
    if not getattr(base.config.get_text_config(), "tie_word_embeddings", False) or head is None:
        return
    if embedding.weight is not head.weight and not isinstance(head, TrainableTokensWrapper):
        raise ConfigError(
            "vLLM cannot generate with this model: its config ties the head to the embedding, and only one of the two "
            "would be trained, or each by itself. Leave the embedding and the head out of the adapters "
            "(target_modules, modules_to_save), or set use_vllm=false."
        )
