"""The model with expanded vocabulary: written once, as `checkpoint-0`, from which policy and reference are loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config import Config
from covey.errors import ConfigError, RunDirectoryError
from covey.model.load import load_tokenizer, source_options
from covey.model.reasoning_vocab.token_map import MAP_FILE, TokenMap
from covey.runlog.checkpoint import changed_files, is_complete, mark_complete
from covey.runlog.directory import RunDirectory
from covey.runlog.files import rename

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from covey.training.checkpoint.resume import ResumePlan
    from covey.training.processes import Processes


Expanded = tuple[str, "PreTrainedTokenizerBase"]
"""What `from_pretrained` takes, and the tokenizer."""


def check_reasoning(config: Config, source: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Check that the vocabulary can be expanded, before anything is loaded.

    Returns:
        What the user should know.

    Raises:
        ConfigError: the size, the ids or the tags do not fit the tokenizer, or the vocabulary is expanded already.
        ModelError: the model has no fast tokenizer, or its map is damaged or does not fit its weights.
    """
    size = config.model.reasoning_vocab_size
    map_file = Path(source) / MAP_FILE
    if map_file.is_file():
        found = TokenMap.read(map_file.parent)
        found.check_rows(int(_model_config(config, source).get_text_config().vocab_size), source)
        if size != 0:
            raise ConfigError(
                f"model.name={config.model.name} has a reasoning vocabulary of {found.size} tokens already, so "
                f"model.reasoning_vocab_size={size} is not possible: leave it at 0 to train with those."
            )
        return [f"The model has a reasoning vocabulary of {found.size} tokens."]
    if size == 0 and config.model.reasoning_lr_multiplier != 1:
        raise ConfigError(
            f"model.reasoning_lr_multiplier={config.model.reasoning_lr_multiplier:g} is for the rows of reasoning "
            "tokens, and the model has none: set model.reasoning_vocab_size, or leave it out."
        )
    if size == 0:
        return []
    from covey.model.reasoning_vocab import ReasoningVocabulary
    from covey.model.reasoning_vocab.expansion import check_tags, plan, special_ids
    from covey.model.reasoning_vocab.tokenizer import content_of, read_token_bytes

    model_config = _model_config(config, source)
    rows = int(model_config.get_text_config().vocab_size)
    ordinary = read_token_bytes(content_of(tokenizer), rows)
    token_map = plan(ordinary, rows, size, **_expansion(config), more_special=special_ids([model_config], tokenizer))
    check_tags(ReasoningVocabulary(token_map, ordinary), tokenizer)
    usable = token_map.size - len(token_map.unusable)
    if not usable:
        raise ConfigError(
            f"model.reasoning_vocab_size={size}: all of these tokens are special ones, ends or tags, whose copies "
            "cannot be used. Raise it, or choose others with model.reasoning_token_ids."
        )
    return [
        f"{token_map.size} reasoning tokens, {usable} of them usable, between {token_map.open_tag} and "
        f"{token_map.close_tag}."
    ]


@contextmanager
def expanded(
    config: Config, run: RunDirectory, resume: ResumePlan, base: Expanded, processes: Processes
) -> Iterator[Expanded]:
    """Context manager for building the trainer: from `checkpoint-0` if the config expands the vocabulary.

    A new run writes it, and deletes it if the trainer cannot be built; a resumed run reads it.

    Args:
        base: the model that the config names, and its tokenizer; yielded unchanged without expansion.

    Raises:
        CoveyError: it cannot be made, or is missing from the run to resume.
    """
    source, tokenizer = base
    if config.model.reasoning_vocab_size == 0:
        yield base
        return
    from covey.model.reasoning_vocab.expansion import expand

    first = run.checkpoint(0)
    if resume.checkpoint is not None:
        first = resume.checkpoint.parent / first.name
        if not is_complete(first) or changed_files(first):
            raise RunDirectoryError(
                f"{first} is missing or damaged. It holds the expanded model before training, and the run cannot be "
                "resumed without it. Restore it, or start again with overwrite=true."
            )
    elif processes.is_main:
        partial = first.with_name(f"{first.name}.part")
        with run.guard(first.name):
            shutil.rmtree(partial, ignore_errors=True)
            expand(
                source,
                partial,
                config.model.reasoning_vocab_size,
                **_expansion(config),
                noise=config.model.reasoning_noise,
                seed=config.seed,
                tokenizer=tokenizer,
                **source_options(config.model),
            )
            shutil.rmtree(first, ignore_errors=True)
            rename(partial, first)
            mark_complete(first, 0)
    processes.wait()
    try:
        yield str(first), load_tokenizer(replace(config.model, name=str(first), revision=None))
    except BaseException:
        if resume.checkpoint is None and processes.is_main:
            shutil.rmtree(first, ignore_errors=True)
        raise


def _model_config(config: Config, source: str) -> Any:
    """The model's own config."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(source, **source_options(config.model))


def _expansion(config: Config) -> dict[str, Any]:
    return {
        "token_ids": config.model.reasoning_token_ids,
        "start": config.model.reasoning_start,
        "think_tag": config.rewards.think_tag,
        "answer_tag": config.rewards.answer_tag,
    }
