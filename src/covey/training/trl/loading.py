"""Loading a model, and giving it a head, the way TRL does."""

from __future__ import annotations

from typing import Any

from trl import GRPOConfig
from trl.trainer.utils import add_fused_lm_head, create_model_from_path


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
