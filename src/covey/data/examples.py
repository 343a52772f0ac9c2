"""Examples for supervised training: prompts with completions, conversations, or the completions of a run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from covey.config import Config, DatasetConfig, MixtureSource
from covey.data.columns import CONVERSATION_NAMES, PROMPT_NAMES, usual_column
from covey.data.files import read_files
from covey.data.prompts import Conversation, as_messages, conversation, question
from covey.data.sources import read_source
from covey.data.table import Table
from covey.errors import DataError
from covey.runlog.completions import completion_files
from covey.runlog.directory import RunDirectory
from covey.runlog.names import COLUMN_OUTCOME, COLUMN_TRUNCATED

_KEY = "sft.rows"
_COMPLETIONS = ("completion", "completions", "response", "output", "generation")
_REASONS = ("not right", "cut off at the length limit", "of held-out problems", "the same as another")


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
    settings = config.sft
    table, held = _table(str(settings.rows)), {question(prompt, drop_reply=False) for prompt in held_out}
    left_out = dict.fromkeys(_REASONS, 0)
    by_prompt: dict[str, dict[str, Example]] = {}
    for example, right, truncated in _examples(table):
        same, key = by_prompt.setdefault(repr(example.prompt), {}), repr(example.completion)
        asked = {question(one, drop_reply=False) for one in (example.prompt, as_asked(example.prompt, config.dataset))}
        reasons = (settings.right_only and right is False, truncated, asked & held, key in same)
        if why := next((why for why, applies in zip(_REASONS, reasons, strict=True) if applies), None):
            left_out[why] += 1
        else:
            same[key] = example
    notes = [f"{_KEY}: {count} of {len(table)} rows are left out, {why}" for why, count in left_out.items() if count]
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


def _table(name: str) -> Table:
    """The rows of a run's completions, or of any data."""
    path = Path(name).expanduser()
    run = RunDirectory(path)
    if not run.config.is_file():
        here = path.exists() or path.suffix or name.count("/") != 1  # else it is a set on the hub
        source = MixtureSource(path=name) if here else MixtureSource(id=name)
        return read_source(source, _KEY, DatasetConfig(), [])
    files = [path for _, path in completion_files(run.completions)] if run.completions.is_dir() else []
    if not files:
        raise DataError(f"{_KEY}={name}: the run has no completions (logging.completions_every_steps=0 writes none).")
    return read_files(files, _KEY)


def _examples(table: Table) -> Iterator[tuple[Example, bool | None, bool]]:
    """Each example, whether it was right, if that is known, and whether it was cut off."""
    talk, asked, said = (usual_column(table, one) for one in (CONVERSATION_NAMES, PROMPT_NAMES, _COMPLETIONS))
    if said is None and talk is None:
        raise DataError(
            f"{_KEY}={table.name}: no column looks like what is to be learnt ({', '.join(_COMPLETIONS)}, or "
            f"{CONVERSATION_NAMES[0]} with whole conversations); it has {', '.join(table.columns)}. Rename one."
        )
    judged = next((one for one in (COLUMN_OUTCOME, "accuracy", "reward", "score") if one in table.columns), None)
    none = [None] * len(table)
    prompts, completions, outcomes, cut = (
        none if name not in table.columns else table.values(name)
        for name in ((talk, None) if said is None else (asked, said)) + (judged, COLUMN_TRUNCATED)
    )
    for at, (prompt, completion, outcome, truncated) in enumerate(
        zip(prompts, completions, outcomes, cut, strict=True)
    ):
        if said is None and (messages := as_messages(prompt)):
            first = next((i for i, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
            prompt, completion = messages[:first], messages[first:]
        prompt, completion = (as_messages(one) or one for one in (prompt, completion))
        roles = [one["role"] for one in completion] if isinstance(completion, list) else []
        learnt = "assistant" in roles if roles else isinstance(completion, str) and completion
        if not prompt or not learnt or not isinstance(prompt, str | list):
            raise DataError(
                f"{_KEY}={table.name}: {table.place(at)} has no {'completion' if prompt else 'prompt'}. Each row needs "
                "a prompt and a completion, as texts or messages with role and content, or one list of messages in "
                "which the assistant speaks."
            )
        right = outcome == "right" if isinstance(outcome, str) else None if outcome is None else float(outcome) >= 1
        yield Example(prompt, completion), right, truncated is True
