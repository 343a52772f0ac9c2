"""The widened model of a run: written once, as `checkpoint-0`, from which policy and reference are loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config import Config
from covey.errors import ConfigError, RunDirectoryError
from covey.model.loading import load_tokenizer
from covey.model.reasoning_vocab.token_map import MAP_FILE, TokenMap
from covey.runlog.directory import RunDirectory, is_whole, mark_whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.training.processes import Processes
    from covey.training.resume import Start

Widened = tuple[str, "PreTrainedTokenizerBase"]
"""What `from_pretrained` takes, and the tokenizer."""


def check_reasoning(config: Config, source: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Check that the reasoning vocabulary can be made, before anything is loaded.

    Returns:
        What the user should know.

    Raises:
        ConfigError: the size, the ids or the tags do not fit the tokenizer, or the model has such a vocabulary already.
        ModelError: it has no fast tokenizer, or its map is damaged or does not fit its weights.
    """
    size = config.model.reasoning_vocab_size
    own = Path(source) / MAP_FILE
    if own.is_file():
        found = TokenMap.read(own.parent)
        found.check_rows(int(_described(config, source).get_text_config().vocab_size), source)
        if size != 0:
            raise ConfigError(
                f"model.name={config.model.name} has a reasoning vocabulary of {found.size} tokens already, so "
                f"model.reasoning_vocab_size={size} is not possible: leave it at 0, and training goes on with those."
            )
        return [f"The model has a reasoning vocabulary of {found.size} tokens."]
    if size == 0:
        return []
    if config.training.use_vllm and config.training.vllm_mode == "server":
        raise ConfigError(
            f"model.reasoning_vocab_size={size} with training.vllm_mode=server: the server must begin with the widened "
            "model, which a run would write only now. Write it first (covey widen MODEL FOLDER --size …), and use "
            "model.name=FOLDER without model.reasoning_vocab_size; or set training.vllm_mode=colocate."
        )
    from covey.model.reasoning_vocab import ReasoningVocabulary
    from covey.model.reasoning_vocab.expansion import check_tags, ends_of, plan
    from covey.model.reasoning_vocab.surface import content_of, surfaces

    described = _described(config, source)
    rows = int(described.get_text_config().vocab_size)
    ordinary = surfaces(content_of(tokenizer), rows)
    token_map = plan(ordinary, rows, size, **_wanted(config), ends=ends_of([described], tokenizer))
    check_tags(ReasoningVocabulary(token_map, ordinary), tokenizer)
    usable = token_map.size - len(token_map.unusable)
    if not usable:
        raise ConfigError(
            f"model.reasoning_vocab_size={size}: all of these tokens are special ones, ends or tags, of which no copy "
            "can be used. Raise it, or name others with model.reasoning_token_ids."
        )
    return [
        f"{token_map.size} reasoning tokens, {usable} of them usable, between {token_map.open_tag} and "
        f"{token_map.close_tag}."
    ]


@contextmanager
def widened(config: Config, run: RunDirectory, start: Start, given: Widened, processes: Processes) -> Iterator[Widened]:
    """Within, the trainer is built: from `checkpoint-0`, where the config asks for reasoning tokens.

    A run that begins writes it, and takes it away again if the trainer cannot be built; one that goes on finds it.

    Args:
        given: the model as the config names it, and its tokenizer; used as it is where no tokens are asked for.

    Raises:
        CoveyError: it cannot be made, or the run that goes on has lost it.
    """
    source, tokenizer = given
    if config.model.reasoning_vocab_size == 0:
        yield given
        return
    from covey.model.reasoning_vocab.expansion import expand

    first = run.checkpoint(0)
    if start.checkpoint is not None:
        first = start.checkpoint.parent / first.name
        if not is_whole(first):
            raise RunDirectoryError(
                f"{first} is missing or not whole. It holds the model with its reasoning vocabulary as it was before "
                "training, and the run cannot go on without it. Bring it back, or begin anew with overwrite=true."
            )
    elif processes.is_main:
        beside = first.with_name(f"{first.name}.part")
        with run.guard(first.name):
            expand(
                source,
                beside,
                config.model.reasoning_vocab_size,
                **_wanted(config),
                tokenizer=tokenizer,
                **_options(config),
            )
            shutil.rmtree(first, ignore_errors=True)
            beside.rename(first)
            mark_whole(first, 0)
    processes.wait()
    try:
        yield str(first), load_tokenizer(replace(config.model, name=str(first), revision=None))
    except BaseException:
        if start.checkpoint is None and processes.is_main:
            shutil.rmtree(first, ignore_errors=True)
        raise


def _described(config: Config, source: str) -> Any:
    """The model's own config."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(source, **_options(config))


def _wanted(config: Config) -> dict[str, Any]:
    return {
        "token_ids": config.model.reasoning_token_ids,
        "start": config.model.reasoning_start,
        "think_tag": config.rewards.think_tag,
        "answer_tag": config.rewards.answer_tag,
    }


def _options(config: Config) -> dict[str, Any]:
    return {"revision": config.model.revision or "main", "trust_remote_code": config.model.trust_remote_code}
