"""Loading a model, and giving it a head, the way TRL does."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from peft.utils.other import TrainableTokensWrapper
from trl import GRPOConfig
from trl.trainer import grpo_trainer
from trl.trainer.utils import add_fused_lm_head, create_model_from_path

from covey.errors import ConfigError
from covey.model.adapters import untie
from covey.model.base import base_model, disable_dropout
from covey.model.positions import count_from_first_token
from covey.training.replaced import all_replaced
from covey.training.trl.restricted_head import give_bias


def load_base_model(source: str, args: GRPOConfig, quantization: Any) -> Any:
    """The base model of adapters, loaded as TRL itself would."""
    values = dict(args.model_init_kwargs or {})
    if quantization is not None:
        values["quantization_config"] = quantization
    if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        values["device_map"] = None
    return create_model_from_path(source, **values, trust_remote_code=args.trust_remote_code)


def with_fused_head(model: Any) -> Any:
    """The model with TRL's head, which gives log-probs and entropies without logits."""
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def precise_heads(args: GRPOConfig | None) -> AbstractContextManager[Any]:
    """Context manager around TRL's constructor: `cast_lm_head_to_fp32` works for every model. TRL finds the layers by
    the names that they have in some models without adapters."""
    casts = args is not None and args.cast_lm_head_to_fp32
    ours = {"add_fused_lm_head": _add_precise_head}
    return all_replaced([(args, {"cast_lm_head_to_fp32": False}), (grpo_trainer, ours)] if casts else [])


def _add_precise_head(model: Any, **options: Any) -> None:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    dtype = embedding.weight.dtype
    head.float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
    embedding.register_forward_hook(lambda _, __, output: output.to(dtype))  # its weights may be the head's
    add_fused_lm_head(model, **{**options, "cast_lm_head_to_fp32": True})


def prepare_models(trainer: Any) -> list[tuple[Any, dict[str, float]]]:
    """Prepare the models that a trainer has made: tied weights, positions, heads, and dropout, if it is to be off.

    Returns:
        The policy's configs that were changed, with their own rates, which are to be saved.

    Raises:
        ConfigError: vLLM, which ties a head that the config ties, cannot hold the model that is trained.
    """
    untie(trainer.model)
    base: Any = base_model(trainer.model)
    head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
    tied = base.config.get_text_config().tie_word_embeddings and not isinstance(head, TrainableTokensWrapper)
    if trainer.args.use_vllm and tied and embedding.weight is not head.weight:
        raise ConfigError(
            "vLLM cannot generate with this model: its config ties the head to the embedding, and only one of the two "
            "would be trained, or each by itself. Leave the embedding and the head out of the adapters "
            "(target_modules, modules_to_save), or set use_vllm=false."
        )
    rates: list[tuple[Any, dict[str, float]]] = []
    for model in (one for one in (trainer.ref_model, trainer.model) if one is not None):
        count_from_first_token(model)
        give_bias(base_model(model))
        rates = disable_dropout(model) if trainer.args.disable_dropout else []
    return rates
