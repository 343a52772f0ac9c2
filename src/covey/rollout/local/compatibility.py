"""Whether local sampling supports a model and the options of `generate`, and why not."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode
from transformers.integrations import is_fsdp_managed_module

from covey.log_once import log_once
from covey.model.device import base_model, evaluating, is_spread
from covey.rollout.local.cache import NotSharedError, SharedAttention, SharedPromptCache, windows_of
from covey.rollout.local.turns import Kept, Match, NextTurn, prefill, step

logger = logging.getLogger(__name__)

WITHOUT_EFFECT = frozenset(
    {
        *("transformers_version", "_from_model_config", "_commit_hash", "bos_token_id", "decoder_start_token_id"),
        *("max_length", "use_cache", "disable_compile", "compile_config", "length_penalty", "early_stopping"),
        *("output_scores", "output_logits", "output_attentions", "output_hidden_states", "return_dict_in_generate"),
    }
)
"""Options that do not change the sampled tokens, as long as there is one beam and a limit on new tokens."""

OFF: dict[str, Any] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
    **dict.fromkeys(("typical_p", "encoder_repetition_penalty", "guidance_scale"), 1.0),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0.0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("remove_invalid_values", "renormalize_logits", "is_assistant"), False),
}
"""The values at which options have no effect; other options have none while they are unset."""

SUPPORTED = frozenset(
    {
        *("max_new_tokens", "eos_token_id", "pad_token_id", "do_sample"),
        *("temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    }
)

TOKEN_BY_TOKEN = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
"""Modes of `generate` in which a token has a log-probability."""

GENERATE: Any = GenerationMixin.generate
_PLAIN_GENERATE = inspect.unwrap(GENERATE)
"""transformers' own, whatever takes its place later."""

_REASONS: WeakKeyDictionary[torch.nn.Module, dict[str, str | None]] = WeakKeyDictionary()


def log_fallback(reason: str) -> None:
    """Log once that transformers' `generate` is used."""
    log_once(
        logger,
        "speed.shared_prefill does not apply: %s. Completions come from transformers' generate.",
        reason,
        shown=False,
    )


def options_of(model: Any, config: GenerationConfig | None = None) -> dict[str, Any]:
    """The options of `model.generate(generation_config=config)` that are set, by name: the config's, then the model's.

    Args:
        model: its own generation config supplies what is unset, as in `generate`.
        config: the settings, if any.
    """
    found: dict[str, Any] = {}
    for one in (base_model(model).generation_config, config):
        values = {} if one is None else one.to_dict()
        found |= {name: value for name, value in values.items() if value is not None}
    return found


def other_options(config: GenerationConfig) -> dict[str, Any]:
    """The options that are set in a config, have an effect, and are none of `SamplingSettings`."""
    found = {name: value for name, value in config.to_dict().items() if value is not None}
    return {name: value for name, value in found.items() if unsupported_option({name: value}) is not None}


def samples_by_generate(model: Any, config: GenerationConfig) -> bool:
    """Whether `model.generate(generation_config=config)` is transformers' own, and samples one token after another,
    without beams and the like."""
    mode = GenerationConfig(**options_of(model, config)).get_generation_mode()
    return mode in TOKEN_BY_TOKEN and not _has_own_generate(model, base_model(model))


def unsupported_option(options: Mapping[str, Any]) -> str | None:
    """Why `sample` does not support one of these options of `generate`, or None."""
    for name, value in options.items():
        if name not in SUPPORTED | WITHOUT_EFFECT and (name not in OFF or value != OFF[name]):
            return f"the generation option {name}={value!r} is supported by transformers' generate only"
    return None


def unsupported_reason(model: Any) -> str | None:
    """Why `sample` cannot be used for this model, or None.

    On the first call for a model a few tokens are computed both ways: whatever else an architecture does in its
    attention shows in its logits.
    """
    base = base_model(model)
    if _has_own_generate(model, base):
        return f"this {type(base).__name__} has a generate of its own"
    if base.training and getattr(base.config, "attention_dropout", 0.0):
        return "attention dropout is active during generation"
    return _known_reason(model, "", lambda: _unsupported_architecture(model, base) or _logit_difference(model))


def unsupported_turns(model: Any) -> str | None:
    """Why rows of this model, which `sample` supports, cannot go on from kept keys and values, or None.

    On the first call for a model a few tokens are computed both ways.
    """
    return _known_reason(model, "turns", lambda: _logit_difference(model, turns=True))


def _known_reason(model: Any, what: str, find: Callable[[], str | None]) -> str | None:
    """The reason that was found for this model and attention before, or is found now."""
    base = base_model(model)
    known, key = _REASONS.setdefault(base, {}), what + str(base.config._attn_implementation)
    if key not in known:
        known[key] = find()
    return known[key]


def _unsupported_architecture(model: Any, base: Any) -> str | None:
    name = type(base).__name__
    if not isinstance(base, PreTrainedModel) or not base.is_backend_compatible():
        return f"the attention of {name} cannot be replaced"
    if base.config.is_encoder_decoder or base.config.get_text_config(decoder=True) is not base.config:
        return f"{name} is not a plain language model"
    adapters = getattr(model, "peft_config", {})
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        return "the adapter puts virtual tokens before the prompt"
    missing = {"position_ids", "past_key_values", "logits_to_keep"} - inspect.signature(base.forward).parameters.keys()
    if missing:
        return f"{name} does not take {', '.join(sorted(missing))}"
    if is_spread(base):
        return "the model's layers are on several devices"
    return None


def _logit_difference(model: Any, *, turns: bool = False) -> str | None:
    """Compute a few tokens both ways, with prompts of two lengths.

    Args:
        model: that `sample` may support.
        turns: whether the rows then go on with further tokens, in another order.
    """
    vocabulary = base_model(model).config.vocab_size
    prompts = [[(5 * place + 3) % vocabulary for place in range(length)] for length in (7, 4)]
    rows = [(0, [1, 4]), (0, [2, 2]), (1, [0, 5])]
    rows = [(prompt, [token % vocabulary for token in tokens]) for prompt, tokens in rows]
    mixed: list[bool] = []  # accelerate wraps a model's forward, so mixed precision is visible inside of it only
    embeddings = base_model(model).get_input_embeddings()
    hook = embeddings.register_forward_pre_hook(lambda *_: mixed.append(torch.is_autocast_enabled(model.device.type)))
    sequences = [prompts[prompt] + tokens for prompt, tokens in rows]
    with torch.no_grad(), evaluating(model), hook:
        try:
            _, prefilled = prefill(model, prompts, pad=0)
            cache = SharedPromptCache(windows_of(prefilled), keeps=turns)
            cache.admit(prefilled, [len(prompt) for prompt in prompts], [2, 1])
            with SharedAttention(model) as attention:
                attention.share(True)
                for place in range(2):
                    tokens_bR = torch.tensor([tokens[place : place + 1] for _, tokens in rows], device=model.device)
                    actual_bV = step(model, cache, tokens_bR).float()
                if turns:
                    sequences = [ids + prompts[0][:more] for ids, more in zip(sequences, (1, 4, 2), strict=True)]
                    actual_bV = _next_logits(model, cache, sequences)
        except NotSharedError as refusal:
            return str(refusal)
        expected_bV = torch.cat([model(torch.tensor([ids], device=model.device)).logits[:, -1] for ids in sequences])
    exact = next(model.parameters()).dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    allowed = 1e-4 if exact and not any(mixed) else 0.1
    expected_bV = expected_bV.float()
    relative = float((actual_bV - expected_bV).norm() / expected_bV.norm().clamp(min=1e-6))
    if relative <= allowed:
        return None
    what = "kept keys and values" if turns else "a shared prompt"
    return f"with {what} {type(base_model(model)).__name__} gives logits that differ by {relative:.1%}"


def _next_logits(model: Any, cache: SharedPromptCache, sequences: list[list[int]]) -> torch.Tensor:
    """The logits after these sequences, whose rows the cache holds but for their last tokens: `[b, V]`."""
    cache.drop(range(len(sequences)))
    matches = [Match(0, Kept(cache, row), row.prompt_length + row.stored) for row in cache.ended]
    going_on, logits_bV = NextTurn(sequences, matches, model.device), None
    while logits_bV is None:
        logits_bV = going_on.read(model)
    return logits_bV[torch.tensor(going_on.rows, device=model.device).argsort()].float()


def _has_own_generate(model: Any, base: Any) -> bool:
    """Whether `generate` is not transformers': patched, or of the model's own code; FSDP's wrapper does not count."""
    if getattr(type(base), "generate", None) is not GENERATE:
        return True
    patched: list[Any] = [vars(one)["generate"] for one in (model, base) if "generate" in vars(one)]
    if is_fsdp_managed_module(base):
        patched = [one for one in patched if inspect.unwrap(one) is not _PLAIN_GENERATE]
    return bool(patched)
