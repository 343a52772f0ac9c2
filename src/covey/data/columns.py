"""From rows as they come to rows as training takes them: a conversation in `prompt`, the checked answer in `answer`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covey.answers import EXTRACTORS
from covey.data.table import Table
from covey.errors import DataError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

    from covey.config import DatasetConfig

PROMPT_NAMES = ("prompt", "problem", "question", "query", "instruction", "input", "messages")
ANSWER_NAMES = ("answer", "solution", "ground_truth", "final_answer", "target", "label", "expected_answer")
"""Where to look, in this order, when the config names no column."""

TAKEN_NAMES = (
    *("prompts", "completions", "completion", "completion_ids", "trainer_state", "log_extra", "log_metric"),
    *("environment", "environments", "image", "images"),
)
"""Names by which TRL hands its own things to rewards, or reads as pictures; such columns are renamed `original_…`."""

_SHOWN_ROWS = 3
_SHOWN_CHARACTERS = 60

Conversation = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that are ready for training or evaluation."""

    data: datasets.Dataset
    questions: list[str]
    """The prompt of each row as it was read, as one text: what tells whether two rows ask the same."""


def find_columns(table: Table, dataset: DatasetConfig) -> tuple[str, str]:
    """The prompt column and the answer column.

    Raises:
        DataError: one is missing; the message names the columns that there are.
    """
    return (
        _find(table, dataset.prompt_column, PROMPT_NAMES, "prompt"),
        _find(table, dataset.answer_column, ANSWER_NAMES, "answer"),
    )


def prepare(table: Table, dataset: DatasetConfig, notes: list[str]) -> Prepared:
    """Build `prompt` and `answer`, and keep the other columns.

    Args:
        table: the rows that are wanted, and no others: every one of them is checked.
        dataset: column names, answer extractor, system prompt and prompt template.
        notes: what the user should know is added to it.

    Raises:
        DataError: a column is missing, or a row has no prompt or no answer.
    """
    prompt_column, answer_column = find_columns(table, dataset)
    raw_prompts, raw_answers = table.values(prompt_column), table.values(answer_column)
    builder = _PromptBuilder(dataset, drop_reply=prompt_column == "messages")
    prompts = [builder.build(value) for value in raw_prompts]
    bad = [i for i, prompt in enumerate(prompts) if prompt is None]
    if bad:
        raise DataError(
            f"{len(bad)} of {len(table)} rows of {table.name} have no prompt in column '{prompt_column}' "
            f"({_shown(table, bad, raw_prompts)}). A prompt is text, or a list of "
            '{"role": …, "content": …} messages with text in them.'
        )
    extract = EXTRACTORS[dataset.answer_extractor]
    answers = [None if text is None else extract(text) for text in map(answer_text, raw_answers)]
    bad = [i for i, answer in enumerate(answers) if answer is None]
    if bad:
        raise DataError(
            f"{len(bad)} of {len(table)} rows of {table.name} have no answer that can be read from column "
            f"'{answer_column}' ({_shown(table, bad, raw_answers)}). {_EXTRACTOR_WANTS[dataset.answer_extractor]} "
            "Mend or remove these rows, or choose another dataset.answer_column or dataset.answer_extractor."
        )
    notes += [f"{table.name}: {note}" for note in builder.notes()]
    return Prepared(_assemble(table, prompts, answers, notes), [_question(value) for value in raw_prompts])


def conversation(text: str, dataset: DatasetConfig) -> Conversation:
    """The messages that put one question to the model."""
    messages = [{"role": "user", "content": _fill(dataset.user_prompt_template, text)}]
    if dataset.system_prompt:
        messages.insert(0, {"role": "system", "content": dataset.system_prompt})
    return messages


def prompt_type() -> Any:
    """The Arrow type of `prompt`."""
    import pyarrow as pa

    return pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def answer_text(value: Any) -> str | None:
    """A raw answer as text: `27.0` as `27`; None for what is no text and no number."""
    if isinstance(value, bool | int | str):
        return str(value)
    if isinstance(value, float) and value == value:
        return str(int(value)) if value.is_integer() else str(value)
    return None


_EXTRACTOR_WANTS = {
    "none": "With dataset.answer_extractor=none an answer is any text or number that is not empty.",
    "gsm8k": "dataset.answer_extractor=gsm8k takes what follows the last '####'.",
    "boxed": r"dataset.answer_extractor=boxed takes the content of the last \boxed{…}.",
    "answer_tag": "dataset.answer_extractor=answer_tag takes the content of the last <answer>…</answer>.",
}


class _PromptBuilder:
    """Builds conversations and counts what it had to change in those that the data brings."""

    def __init__(self, dataset: DatasetConfig, *, drop_reply: bool) -> None:
        self._dataset = dataset
        self._drop_reply = drop_reply
        self._replies = self._systems = 0
        self._keys: set[str] = set()

    def build(self, value: Any) -> Conversation | None:
        """The conversation of one raw prompt; None when there is no prompt in it."""
        if isinstance(value, str):
            return conversation(value, self._dataset) if value.strip() else None
        if not isinstance(value, list) or not all(_is_message(message) for message in value):
            return None
        messages: Conversation = [{"role": m["role"], "content": m["content"]} for m in value]
        self._keys |= {key for m in value for key, held in m.items() if held is not None} - {"role", "content"}
        if self._drop_reply and messages and messages[-1]["role"] == "assistant":
            messages.pop()
            self._replies += 1
        if not any(message["role"] == "user" for message in messages):
            return None
        if self._dataset.system_prompt:
            kept = [message for message in messages if message["role"] != "system"]
            self._systems += len(kept) < len(messages)
            messages = [{"role": "system", "content": self._dataset.system_prompt}, *kept]
        asked = next(message for message in reversed(messages) if message["role"] == "user")
        asked["content"] = _fill(self._dataset.user_prompt_template, asked["content"])
        return messages

    def notes(self) -> list[str]:
        found = []
        if self._replies:
            found.append(f"the assistant's reply at the end of {self._replies} conversations is not part of the prompt")
        if self._systems:
            found.append(f"dataset.system_prompt replaces the system message of {self._systems} rows")
        if self._keys:
            found.append(f"of messages only role and content are used, not {', '.join(sorted(self._keys))}")
        return found


def _find(table: Table, named: str | None, usual: Sequence[str], what: str) -> str:
    key = f"dataset.{what}_column"
    column = named or next((name for name in usual if name in table.columns), None)
    if column is None:
        raise DataError(
            f"{table.name} has no column that looks like the {what} (one of {', '.join(usual)}); it has "
            f"{', '.join(table.columns)}. Say which one it is with {key}=NAME."
        )
    if column not in table.columns:
        raise DataError(f"{table.name} has no column '{column}', which {key} names; it has {', '.join(table.columns)}.")
    if column in table.mixed:
        raise DataError(
            f"Column '{column}' of {table.name} holds {table.mixed[column]} in different rows, so it cannot be the "
            f"{what}. Make all rows alike, or name another column with {key}=NAME."
        )
    return column


def _assemble(
    table: Table, prompts: Sequence[Conversation | None], answers: Sequence[str | None], notes: list[str]
) -> datasets.Dataset:
    """The new columns first, then the original ones, renamed where their name is taken."""
    import datasets
    import pyarrow as pa

    arrow: pa.Table = table.data.with_format("arrow")[:]
    new = {"prompt": pa.array(prompts, prompt_type()), "answer": pa.array(answers, pa.string())}
    columns = dict(new)
    for name in arrow.column_names:
        values = arrow.column(name)
        if name not in new and name not in TAKEN_NAMES:
            columns[name] = values
        elif name not in new or not _same(name, values, new[name]):
            other = f"original_{name}"
            if other in arrow.column_names:
                notes.append(f"{table.name}: column '{name}' is not kept, because there is a column '{other}' already")
                continue
            columns[other] = values
            if name not in new:
                notes.append(f"{table.name}: column '{name}' is called '{other}', because TRL uses its name")
    return datasets.Dataset(pa.table(columns))


def _same(name: str, old: pa.ChunkedArray, new: pa.Array) -> bool:
    """Whether an original column says no more than the new one of its name."""
    values = old.to_pylist()
    return bool((list(map(answer_text, values)) if name == "answer" else values) == new.to_pylist())


def _shown(table: Table, bad: Sequence[int], values: Sequence[Any]) -> str:
    """Where the first few bad rows stand, and how their values begin."""
    shown = "; ".join(f"{table.place(i)}: {_beginning(values[i])}" for i in bad[:_SHOWN_ROWS])
    return shown + (f"; and {len(bad) - _SHOWN_ROWS} more" if len(bad) > _SHOWN_ROWS else "")


def _beginning(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def _fill(template: str | None, text: str) -> str:
    """Put the prompt into its template. Not `str.format`: mathematics is full of braces."""
    return text if template is None else template.replace("{prompt}", text)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _question(value: Any) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value, sort_keys=True)
