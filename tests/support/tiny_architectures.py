"""Tiny models of many architectures, with dropout wherever their configs have it, and a plain way to score them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from covey.model.starter.coldstart import make_tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
MAMBA: dict[str, Any] = {"mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 8}
WINDOW = {"sliding_window": 6, "head_dim": 8}
CAPPED = WINDOW | {"query_pre_attn_scalar": 8}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "GPT2": GPT,
    "GPTNeo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "OpenAIGPT": GPT,
    "XGLM": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    "BioGpt": {},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "GPTBigCode": GPT,
    "GPTNeoX": {},
    "GPTJ": GPT | {"rotary_dim": 4},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "Falcon": {"alibi": True, "new_decoder_architecture": False},
    "Qwen3": {"head_dim": 8},
    "SeedOss": {"head_dim": 8},
    "Persimmon": {},
    "Mistral": WINDOW,
    "Gemma2": CAPPED,
    "Cohere": {},
    "Granite": {"logits_scaling": 3.0},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3Moe": EXPERTS | {"num_experts": 4, "head_dim": 8},
    "GptOss": WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "FalconH1": MAMBA | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "head_dim": 8},
    "Bamba": MAMBA | {"mamba_n_heads": 8, "attn_layer_indices": [1]},
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
}
RATE = 0.2


def make(name: str, **more: Any) -> Any:
    """A model of random weights, whose attention to the wrong tokens or places shows; every dropout rate is `RATE`."""
    tokenizer = make_tokenizer()
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    kind = getattr(transformers, f"{name}Config")
    values = {**SIZES, **special, "vocab_size": len(tokenizer), **ARCHITECTURES[name], **more}
    known = kind().to_dict()
    rates = {key: RATE for key, value in known.items() if "drop" in key and isinstance(value, float)}
    config = kind(**{key: value for key, value in values.items() if key in known or key in kind.attribute_map}, **rates)
    classes = (f"{name}ForCausalLM", f"{name}LMHeadModel")
    torch.manual_seed(0)
    model = getattr(transformers, next(one for one in classes if hasattr(transformers, one)))(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1 and weights.std() < 0.5:
                weights.normal_(std=0.12)
    model.tie_weights()
    return model


def saved(name: str, folder: Path, **more: Any) -> str:
    """The folder of such a model and the starter's tokenizer."""
    make(name, **more).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def plain_logps(model: Any, ids_BS: torch.Tensor, mask_BS: torch.Tensor, length_T: int) -> torch.Tensor:
    """Log-probs of the completion tokens, `[B, T]`, each row by itself, without padding and without dropout."""
    modes, found = {module: module.training for module in model.modules()}, []
    model.eval()
    for ids_S, mask_S in zip(ids_BS, mask_BS.bool(), strict=True):
        row, length = ids_S[mask_S][None], int(mask_S[-length_T:].sum())
        logps = model(input_ids=row, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        logps = logps.gather(1, row[0, 1:, None])[len(row[0]) - 1 - length :, 0]
        found.append(torch.nn.functional.pad(logps, (0, length_T - length)))
    for module, training in modes.items():
        module.training = training
    return torch.stack(found)
