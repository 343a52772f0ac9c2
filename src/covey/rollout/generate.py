"""Completions of conversations by an engine, and engines by name."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from covey.config.groups.sampling import ENGINES
from covey.errors import ConfigError, EngineError
from covey.importing import import_object, user_errors
from covey.model.load import has_reasoning_tokens
from covey.model.prompts import TemplateArguments, render
from covey.rollout.engine import Capabilities, Completion, InferenceEngine, OnEnded, SamplingSettings, cut


def generate(
    engine: InferenceEngine,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[dict[str, str]] | str],
    sampling: SamplingSettings,
    *,
    seed: int | None,
    chat_template_kwargs: TemplateArguments = None,
    vocab_size: int | None = None,
) -> list[Completion]:
    """One completion per prompt, with its text.

    Args:
        engine: samples the tokens.
        tokenizer: of its model; conversations are rendered with its chat template.
        prompts: conversations or plain strings. Repeat a prompt to get several completions of it.
        seed: the same seed, prompts and weights give the same completions, if the engine is `seeded`.
        chat_template_kwargs: arguments of the chat template besides the messages.
        vocab_size: rows of the model's embedding, which may have more than the tokenizer; None counts the tokenizer's.

    Raises:
        ModelError: the chat template fails.
        EngineError: the engine fails.
    """
    ids = [_encode(tokenizer, prompt, chat_template_kwargs) for prompt in prompts]
    if vocab_size is None and not _is_coveys(engine):
        vocab_size = max([len(tokenizer), *(token + 1 for token in tokenizer.added_tokens_decoder)])
    found = complete(engine, ids, sampling, seed=seed, vocab_size=vocab_size)
    return [
        one if one.text is not None else replace(one, text=str(tokenizer.decode(one.ids, skip_special_tokens=True)))
        for one in found
    ]


def complete(
    engine: InferenceEngine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingSettings,
    *,
    seed: int | Sequence[int] | None,
    vocab_size: int | None = None,
    max_lengths: Sequence[int] | None = None,
    interrupted: Callable[[], bool] | None = None,
    on_ended: OnEnded | None = None,
) -> list[Completion]:
    """`engine.generate`, whose result is checked. Tokens are checked of engines that are not Covey's own.

    Args:
        engine: see `generate`.
        prompts: token ids.
        seed: see `generate`; or one for each prompt, which engines without `row_seeds` get one number made of.
        vocab_size: token ids are below it; None sets no bound.
        max_lengths: the longest completion of each prompt, at least one token, where it is below that of the settings:
            in a conversation, what a row has left. Completions of engines without `row_limits` are cut.
        interrupted: see `Capabilities.interruptible`; of no use to an engine that is not.
        on_ended: see `Capabilities.interruptible`; called at the end for an engine that is not.

    Raises:
        EngineError: it fails, or its result is not one completion per prompt, of tokens of the vocabulary, at least one
            and at most `sampling.max_completion_length`, with as many log-probabilities and supports, if any.
    """
    can, options = engine.capabilities, dict[str, Any]()
    if max_lengths is not None:
        longest = min(max(max_lengths, default=1), sampling.max_completion_length)
        sampling = replace(sampling, max_completion_length=longest)
        if can.row_limits:
            options["max_lengths"] = max_lengths
    if isinstance(seed, Sequence) and not can.row_seeds:  # one that depends on all of these, below 2^31
        seed = int.from_bytes(hashlib.blake2b(repr(list(seed)).encode(), digest_size=4).digest()) >> 1
    options["seed"] = seed

    def checked(place: int, one: Completion) -> Completion:
        _check(engine, place, one, sampling.max_completion_length, vocab_size)
        return one if max_lengths is None else cut(one, max_lengths[place])

    if can.interruptible:
        options["interrupted"] = interrupted
        options["on_ended"] = on_ended and (lambda place, one: on_ended(place, checked(place, one)))
    with engine_failures(engine, "generate"):
        found = engine.generate(prompts, sampling, **options)
    name = type(engine).__name__
    if not isinstance(found, list | tuple) or not all(isinstance(one, Completion) for one in found):
        raise EngineError(f"The engine {name} returned {_kind(found)}: it must be a list of covey.rollout.Completion.")
    if len(found) != len(prompts):
        raise EngineError(f"The engine {name} returned {len(found)} completions of {len(prompts)} prompts: one each.")
    completions = [checked(place, one) for place, one in enumerate(found)]
    if on_ended is not None and not can.interruptible:
        for place, one in enumerate(completions):
            on_ended(place, one)
    return completions


def conversation(engine: InferenceEngine) -> AbstractContextManager[None]:
    """Context manager around the turns of a batch of conversations.

    Meanwhile `generate` is called with prompts that start with an earlier prompt and its completion, turn after turn,
    with the same weights. An engine with a `conversation()` of its own may keep what it has read; for others nothing
    changes.
    """
    found: AbstractContextManager[None] = getattr(engine, "conversation", nullcontext)()
    return found


def engine_failures(engine: InferenceEngine, method: str) -> AbstractContextManager[None]:
    """Context manager: an exception of a user's engine becomes an `EngineError` that names engine and method."""
    if _is_coveys(engine):
        return nullcontext()
    return user_errors(f"The engine {type(engine).__name__} failed in {method}", EngineError)


def _is_coveys(engine: InferenceEngine) -> bool:
    return type(engine).__module__.partition(".")[0] == "covey"


def _kind(found: Any) -> str:
    """What `generate` returned instead of completions."""
    if not isinstance(found, list | tuple):
        return f"an object of type {type(found).__name__}"
    other = next(one for one in found if not isinstance(one, Completion))
    return f"a {type(found).__name__} with an element of type {type(other).__name__}"


def _is_integer(token: Any) -> bool:
    return isinstance(token, Integral) and not isinstance(token, bool)  # numpy's integers as well


def _check(engine: InferenceEngine, place: int, one: Completion, longest: int, vocab_size: int | None) -> None:
    what = f"The engine {type(engine).__name__} returned as completion {place} (the first is 0)"
    own = _is_coveys(engine)
    if not own:
        _check_tokens(what, one, longest, vocab_size)
    if not one.ids and not one.unfinished:
        raise EngineError(f"{what} one without tokens: it holds at least the token that ended it.")
    if one.logps is not None and not (isinstance(one.logps, Sized) and len(one.logps) == len(one.ids)):
        raise EngineError(f"{what} log-probabilities that are not one for each token.")
    if one.support is not None and not own:
        _check_support(what, one.support, one.ids, vocab_size)


def _check_tokens(what: str, one: Completion, longest: int, vocab_size: int | None) -> None:
    if not isinstance(one.ids, list | tuple):
        raise EngineError(f"{what} ids of type {type(one.ids).__name__}: they are a list of integers.")
    if len(one.ids) > longest:
        raise EngineError(f"{what} {len(one.ids)} tokens: sampling.max_completion_length is {longest}.")
    for token in one.ids:
        if not _is_integer(token):
            raise EngineError(f"{what} the token id {token!r} of type {type(token).__name__}: ids are integers.")
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            most = " or more" if vocab_size is None else f" to {vocab_size - 1}"
            raise EngineError(f"{what} the token id {token}: the vocabulary's ids are 0{most}.")


def _check_support(what: str, support: Any, ids: Sequence[int], vocab_size: int | None) -> None:
    if not isinstance(support, torch.Tensor) or support.dtype != torch.int32 or support.shape[:-1] != (len(ids),):
        found = type(support).__name__
        if isinstance(support, torch.Tensor):
            found = f"{support.dtype} {list(support.shape)}"
        raise EngineError(f"{what} a support of {found}: it is a tensor of torch.int32 [{len(ids)}, C].")
    lowest, highest = (int(support.min()), int(support.max())) if support.numel() else (-1, -1)
    if lowest < -1 or (vocab_size is not None and highest >= vocab_size):
        raise EngineError(f"{what} a support with ids from {lowest} to {highest}: they are token ids, or -1 for none.")
    missing = (support.cpu() != torch.tensor(ids, dtype=torch.int32)[:, None]).all(-1).nonzero().flatten().tolist()
    if missing:
        raise EngineError(f"{what} a support without the sampled token {ids[missing[0]]}, in place {missing[0]}.")


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: Any, arguments: TemplateArguments) -> list[int]:
    text = render(tokenizer, prompt, arguments)
    # A chat template adds the BOS token itself if the model needs one.
    return list(tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])


METHODS = ("generate", "sync", "close")
PARTS = (*METHODS, "version", "capabilities")
"""What `InferenceEngine` consists of."""


def engine_class(name: str, key: str) -> Callable[..., InferenceEngine]:
    """The class of an engine.

    Args:
        name: one of `ENGINES`, or `file.py:Class` or `package.module:Class`.
        key: the config key that named it, for messages.

    Raises:
        ConfigError: there is none.
    """
    found: Callable[..., InferenceEngine] = import_object(ENGINES.get(name, name), key, ConfigError)
    return found


def make_engine(
    name: str, key: str, *, model_name: str, tokenizer: PreTrainedTokenizerBase, **options: Any
) -> InferenceEngine:
    """An engine with a model's weights.

    Args:
        name: see `engine_class`.
        key: see `engine_class`.
        model_name: a folder or hub id with whole weights: adapters are merged.
        options: `dtype` (None: the engine's choice), `revision` (None: the newest), `trust_remote_code`, and
            `batch_size`, completions at a time.

    Raises:
        ConfigError: there is no such class, it is not an engine, or it cannot be made.
        EngineError: it does not take the model.
    """
    kind = engine_class(name, key)
    with user_errors(f"{key}={name} cannot be made", ConfigError):
        engine = kind(model_name=model_name, tokenizer=tokenizer, **options)
    check_engine(engine, f"{key}={name}")
    check_reasoning(engine, has_reasoning_tokens(model_name))
    return engine


def check_engine(engine: Any, what: str) -> None:
    """Check that this is an inference engine.

    Args:
        what: it is, for messages.

    Raises:
        ConfigError: it lacks a part, or its `capabilities` are of another type.
    """
    more = "See docs/adding_an_engine.md."
    if inspect.isclass(engine):
        raise ConfigError(f"{what} is not an inference engine: it is a class, not an instance of one. {more}")
    with user_errors(f"{what} is not an inference engine", ConfigError):  # a property may raise anything
        missing = [part for part in PARTS if not hasattr(engine, part)]
        missing += [f"method {part}" for part in METHODS if not callable(getattr(engine, part, print))]
        can = getattr(engine, "capabilities", None)
    if missing:
        raise ConfigError(f"{what} is not an inference engine: it has no {', '.join(missing)}. {more}")
    if not isinstance(can, Capabilities):
        raise ConfigError(
            f"{what} is not an inference engine: its capabilities must be a covey.rollout.Capabilities, not of type "
            f"{type(can).__name__}. {more}"
        )


def check_reasoning(engine: InferenceEngine, needed: bool) -> None:
    """Raise a `ConfigError` unless the engine masks the model's reasoning vocabulary, if it has one."""
    if needed and not engine.capabilities.reasoning_vocab:
        raise ConfigError(
            f"The model has a reasoning vocabulary, and the engine {type(engine).__name__} does not say that it "
            "restricts these tokens to thinking (Capabilities.reasoning_vocab): use another engine, or add "
            "covey.rollout.thinking.ThinkingMask to it."
        )
