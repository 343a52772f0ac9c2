"""Loading a model, and giving it a head, the way TRL does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trl import GRPOConfig
from trl.trainer import grpo_trainer
from trl.trainer.utils import add_fused_lm_head, create_model_from_path

from covey.model.adapters import untie
from covey.model.base import Rates, base_model, disable_dropout
from covey.model.positions import count_from_first_token
from covey.training.preflight.arguments import check_vllm_head
from covey.training.replaced import replaced
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


@contextmanager
def precise_heads(args: GRPOConfig | None) -> Iterator[None]:
    """Context manager around TRL's constructor: `cast_lm_head_to_fp32` works for every model.

    TRL finds the layers by the names that they have in some models without adapters.
    """
    if args is None or not args.cast_lm_head_to_fp32:
        yield
        return
    with replaced(args, cast_lm_head_to_fp32=False), replaced(grpo_trainer, add_fused_lm_head=_add_precise_head):
        yield


def prepare_models(trainer: Any) -> Rates:
    """Prepare the models that a trainer has made: positions, tied weights, heads, and dropout, if it is off.

    Returns:
        The rates of the policy's dropout, see `own_dropout`.
    """
    untie(trainer.model)
    if trainer.args.use_vllm:
        check_vllm_head(trainer.model)
    rates: Rates = []
    for model in (one for one in (trainer.ref_model, trainer.model) if one is not None):
        count_from_first_token(model)
        give_bias(base_model(model))
        if trainer.args.disable_dropout:
            rates = disable_dropout(model)
    return rates


def _add_precise_head(model: Any, **options: Any) -> None:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    dtype = embedding.weight.dtype
    head.float()
    head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
    embedding.register_forward_hook(lambda _, __, output: output.to(dtype))  # its weights may be the head's
    add_fused_lm_head(model, **{**options, "cast_lm_head_to_fp32": True})
