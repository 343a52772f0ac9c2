"""Whether the local sampling applies to a model and to settings of `generate`, and what to say where it does not."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig, PreTrainedModel

from covey.rollout.draw import Sampling
from covey.rollout.local import Ends, prefill, step
from covey.rollout.prompt_cache import NotSharedError, SharedPromptCache, windows_of
from covey.rollout.shared_attention import SharedAttention, base_model

logger = logging.getLogger(__name__)

DEFAULT_TOP_K = 50
"""What `generate` takes where neither the settings nor the model say."""

WITHOUT_EFFECT = frozenset(
    {
        *("transformers_version", "_from_model_config", "_commit_hash", "bos_token_id", "decoder_start_token_id"),
        *("max_length", "use_cache", "disable_compile", "compile_config", "length_penalty", "early_stopping"),
        *("output_scores", "output_logits", "output_attentions", "output_hidden_states", "return_dict_in_generate"),
    }
)
"""Options that do not change which tokens are drawn, as long as there is one beam and a limit on new tokens."""

OFF: dict[str, Any] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
    **dict.fromkeys(("typical_p", "encoder_repetition_penalty", "guidance_scale"), 1.0),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0.0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("remove_invalid_values", "renormalize_logits", "is_assistant"), False),
}
"""Options by the value at which they do nothing; others do nothing when they are not set."""

HONOURED = frozenset(
    {
        *("max_new_tokens", "eos_token_id", "pad_token_id", "do_sample"),
        *("temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    }
)

_OBSTACLES: WeakKeyDictionary[torch.nn.Module, dict[str, str | None]] = WeakKeyDictionary()


@cache
def say_once(reason: str) -> None:
    """Log, once in the life of this process for each reason, that transformers' `generate` is used."""
    logger.warning("speed.shared_prefill does not apply: %s. Completions come from transformers' generate.", reason)


def read_settings(
    model: Any, config: GenerationConfig, more_eos_token_ids: Collection[int] = ()
) -> tuple[Sampling, Ends]:
    """What `model.generate(generation_config=config)` would do, for `sample`.

    Args:
        model: its own generation config fills in what is not set, as in `generate`.
        config: the settings.
        more_eos_token_ids: further tokens that end a completion.

    Raises:
        NotSharedError: an option is set that `sample` does not know.
    """
    own, given = base_model(model).generation_config, config.to_dict()
    values = {**({} if own is None else own.to_dict()), **{k: v for k, v in given.items() if v is not None}}
    values = {name: value for name, value in values.items() if value is not None}
    for name, value in values.items():
        if name not in HONOURED | WITHOUT_EFFECT and (name not in OFF or value != OFF[name]):
            raise NotSharedError(f"the generation option {name}={value!r} is for transformers' generate alone")
    if "max_new_tokens" not in values:
        raise NotSharedError("there is no limit on new tokens (max_new_tokens)")
    eos = values.get("eos_token_id", [])
    eos_ids = list(dict.fromkeys([*([eos] if isinstance(eos, int) else eos), *more_eos_token_ids]))
    pad = values.get("pad_token_id", eos_ids[0] if eos_ids else 0)
    drawn = Sampling(
        temperature=values.get("temperature", 1.0),
        top_k=values.get("top_k", DEFAULT_TOP_K),
        top_p=values.get("top_p", 1.0),
        min_p=values.get("min_p", 0.0),
        repetition_penalty=values.get("repetition_penalty", 1.0),
    )
    greedy = Sampling(temperature=0.0, repetition_penalty=drawn.repetition_penalty)
    return drawn if values.get("do_sample", False) else greedy, Ends(values["max_new_tokens"], eos_ids, pad)


def obstacle(model: Any) -> str | None:
    """Why `sample` cannot be used for this model, or None.

    The first time that a model is asked about, a few tokens are computed both ways: whatever else an architecture does
    in its attention shows in its logits.
    """
    base = base_model(model)
    if base.training and getattr(base.config, "attention_dropout", 0.0):
        return "attention dropout is on while completions are written"
    known = _OBSTACLES.setdefault(base, {})
    implementation = str(base.config._attn_implementation)
    if implementation not in known:
        known[implementation] = _refusal(model, base) or _difference(model)
    return known[implementation]


def _refusal(model: Any, base: Any) -> str | None:
    name = type(base).__name__
    if not isinstance(base, PreTrainedModel) or not base.is_backend_compatible():
        return f"the attention of {name} cannot be replaced"
    if base.config.is_encoder_decoder or base.config.get_text_config(decoder=True) is not base.config:
        return f"{name} is more than a language model"
    adapters = getattr(model, "peft_config", {})
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        return "the adapter puts virtual tokens before the prompt"
    missing = {"position_ids", "past_key_values", "logits_to_keep"} - inspect.signature(base.forward).parameters.keys()
    if missing:
        return f"{name} does not take {', '.join(sorted(missing))}"
    if len({str(place) for place in (getattr(base, "hf_device_map", None) or {}).values()}) > 1:
        return "the model's layers lie on several devices"
    return None


def _difference(model: Any) -> str | None:
    """Compute a few tokens with prompts of two lengths both ways."""
    vocabulary = base_model(model).config.vocab_size
    prompts = [[(5 * place + 3) % vocabulary for place in range(length)] for length in (7, 4)]
    rows = [(0, [1, 4]), (0, [2, 2]), (1, [0, 5])]
    rows = [(prompt, [token % vocabulary for token in tokens]) for prompt, tokens in rows]
    mixed: list[bool] = []  # accelerate wraps a model's forward, so mixed precision shows inside of it only
    looks = base_model(model).get_input_embeddings()
    hook = looks.register_forward_pre_hook(lambda *_: mixed.append(torch.is_autocast_enabled(model.device.type)))
    with torch.no_grad(), _evaluating(model), hook:
        try:
            _, prefilled = prefill(model, prompts, pad=0)
            kept = SharedPromptCache(windows_of(prefilled))
            kept.admit(prefilled, [len(prompt) for prompt in prompts], [2, 1])
            with SharedAttention(model) as attention:
                attention.share(True)
                for place in range(2):
                    tokens_b = torch.tensor([tokens[place] for _, tokens in rows], device=model.device)
                    found_bV = step(model, kept, tokens_b).float()
        except NotSharedError as refusal:
            return str(refusal)
        whole = [torch.tensor([prompts[prompt] + tokens], device=model.device) for prompt, tokens in rows]
        right_bV = torch.cat([model(input_ids=ids).logits[:, -1] for ids in whole]).float()
    exact = next(model.parameters()).dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    allowed = 1e-4 if exact and not any(mixed) else 0.1
    apart = float((found_bV - right_bV).norm() / right_bV.norm().clamp(min=1e-6))
    if apart <= allowed:
        return None
    return f"with a shared prompt {type(base_model(model)).__name__} gives logits that differ by {apart:.1%}"


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and then in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
