"""Examples for supervised training: prompts with completions, conversations, or the completions of a run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from covey.config import Config, DatasetConfig, MixtureSource, load
from covey.data.columns import CONVERSATION_NAMES, PROMPT_NAMES, usual_column
from covey.data.files import read_files
from covey.data.prompts import Conversation, as_messages, conversation
from covey.data.sources import read_source
from covey.data.table import Table
from covey.errors import DataError
from covey.runlog.completions import completion_files
from covey.runlog.directory import RunDirectory
from covey.runlog.names import COLUMN_OUTCOME, COLUMN_TRUNCATED

_KEY = "sft.rows"
_COMPLETIONS = ("completion", "completions", "response", "output", "generation")
_REASONS = ("not right", "cut off at the length limit", "of held-out problems", "the same as another")
_LOOKED_AT = 100
"""Rows whose messages are searched for parts that are not read."""


class Example(NamedTuple):
    """What is asked, and what is to be written: each a text, or messages."""

    prompt: str | Conversation
    completion: str | Conversation


def read_examples(config: Config, held_out: Iterable[Any] = ()) -> tuple[list[Example], list[str]]:
    """The different examples that `sft.rows` names, those of one prompt together; and notes on what was left out.

    Args:
        held_out: prompts of held-out problems, whose rows are left out, whatever their system message.

    Raises:
        DataError: the rows cannot be found or read, one has no prompt or no completion, or none is left.
    """
    settings, template = config.sft, config.dataset
    table, judged = _table(config)
    held = {text for prompt in held_out for text in _asked(prompt[-1:])}
    left_out = dict.fromkeys(_REASONS, 0)
    by_prompt: dict[str, dict[str, Example]] = {}
    notes = _unread(table)
    for example, right, truncated in _examples(table, judged):
        same, key = by_prompt.setdefault(repr(example.prompt), {}), repr(example.completion)
        both = example.prompt, as_asked(example.prompt, template), example.completion
        asked = {text for one in both for text in _asked(one)}
        asked |= {text for one in asked for text in _asked(conversation(one, template))}
        reasons = (settings.right_only and right is False, truncated, asked & held, key in same)
        if why := next((why for why, applies in zip(_REASONS, reasons, strict=True) if applies), None):
            left_out[why] += 1
        else:
            same[key] = example
    notes += [f"{_KEY}: {count} of {len(table)} rows are left out, {why}" for why, count in left_out.items() if count]
    drawn, most = random.Random(f"covey-examples-{config.seed}"), settings.per_prompt
    found = list[Example]()
    for same in by_prompt.values():
        found += [*same.values()] if most is None or len(same) <= most else drawn.sample([*same.values()], most)
    if gone := sum(map(len, by_prompt.values())) - len(found):
        notes.append(f"{_KEY}: {gone} different completions are left out, sft.per_prompt={most}")
    if not found:
        raise DataError(f"{_KEY}={settings.rows} leaves nothing to learn. {'. '.join(notes) or 'It has no rows'}.")
    return found, notes


def as_asked(prompt: str | Conversation, dataset: DatasetConfig) -> Conversation:
    """A text as the problems of `dataset` are asked; messages as they are."""
    return conversation(prompt, dataset) if isinstance(prompt, str) else prompt


def _asked(value: str | Conversation) -> Iterator[str]:
    """What users say in a text or in messages, without regard to white space and case."""
    texts = [value] if isinstance(value, str) else [one["content"] for one in value if one["role"] == "user"]
    yield from (" ".join(str(text).split()).casefold() for text in texts)


def _table(config: Config) -> tuple[Table, str | None]:
    """The rows of a run's completions, or of any data; and the column that says which were right, if there is one."""
    name = str(config.sft.rows)
    run = RunDirectory(Path(name).expanduser())
    if not run.config.is_file():
        source = MixtureSource(id=name) if config.sft.from_hub else MixtureSource(path=name)
        table = read_source(source, _KEY, DatasetConfig(), [])
        return table, next((one for one in (COLUMN_OUTCOME, "accuracy", "reward") if one in table.columns), None)
    files = [path for _, path in completion_files(run.completions)] if run.completions.is_dir() else []
    if not files:
        raise DataError(f"{_KEY}={name}: the run has no completions (logging.completions_every_steps=0 writes none).")
    if load(recipe=run.config).environment.used:
        raise DataError(f"{_KEY}={name}: the run has an environment or tools, whose episodes cannot be learnt yet.")
    table = read_files(files, _KEY)
    judged = COLUMN_OUTCOME if COLUMN_OUTCOME in table.columns else None
    if judged is None and config.sft.right_only:
        raise DataError(f"{_KEY}={name}: the run has no grader to say what is right. sft.right_only=false takes all.")
    return table, judged


def _unread(table: Table) -> list[str]:
    """A note on columns, and on parts of messages, that belong to an example and are not learnt."""
    found = {"input", "system", "tools", "context"} & {*table.columns} - {usual_column(table, PROMPT_NAMES)}
    for name in {*CONVERSATION_NAMES, *PROMPT_NAMES, *_COMPLETIONS} & {*table.columns}:
        for value in table.select(range(min(_LOOKED_AT, len(table)))).values(name):
            messages = value if isinstance(value, list) else ()
            parts = (key for one in messages if isinstance(one, dict) for key, part in one.items() if part is not None)
            found |= {*parts} - {"role", "content", "from", "value", "name", "tool_calls", "tool_call_id"}
    return [f"{_KEY}: {', '.join(sorted(found))} of {table.name} is not read"] if found else []


def _examples(table: Table, judged: str | None) -> Iterator[tuple[Example, bool | None, bool]]:
    """Each example, whether it was right, if that is known, and whether it was cut off."""
    talk, asked, said = (usual_column(table, one) for one in (CONVERSATION_NAMES, PROMPT_NAMES, _COMPLETIONS))
    whole = talk is not None and (said is None or asked == talk)
    if said is None and not whole:
        raise DataError(
            f"{_KEY}={table.name}: no column looks like what is to be learnt ({', '.join(_COMPLETIONS)}, or "
            f"{CONVERSATION_NAMES[0]} with whole conversations); it has {', '.join(table.columns)}. Rename one."
        )
    none = [None] * len(table)
    columns = ((talk, None) if whole else (asked, said)) + (judged, COLUMN_TRUNCATED)
    rows = zip(*(table.values(name) if name in table.columns else none for name in columns), strict=True)
    for at, (prompt, completion, outcome, truncated) in enumerate(rows):
        if whole:
            messages = as_messages(prompt) or []
            first = next((i for i, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
            prompt, completion = messages[:first], messages[first:]
        prompt, completion = (as_messages(x) or (x if isinstance(x, str) else None) for x in (prompt, completion))
        if isinstance(completion, list) and not any(one["role"] == "assistant" for one in completion):
            completion = None
        if not prompt or not completion:
            raise DataError(
                f"{_KEY}={table.name}: {table.place(at)} has no {'completion' if prompt else 'prompt'}. Each row needs "
                "a prompt and a completion, as texts or messages with role and content, or one list of messages in "
                "which the assistant speaks."
            )
        if judged == COLUMN_OUTCOME and len(completion) == 1 and isinstance(completion, list):
            completion = completion[0]["content"] or ""  # of a run: as the model wrote it
        yield Example(prompt, completion), None if judged is None else _is_right(outcome), truncated is True


def _is_right(value: Any) -> bool:
    try:
        return value == "right" or float(value) >= 1
    except (TypeError, ValueError):
        return False
