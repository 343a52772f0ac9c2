"""Dropping or truncating prompts that are too long in tokens.

The tokenizer belongs to a higher layer, so callers pass what needs it as functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from covey.data.loading import LoadedData
from covey.data.prompts import Conversation, prompt_column
from covey.data.written import dataset_of
from covey.errors import DataError
from covey.runlog.names import set_label

if TYPE_CHECKING:
    import datasets

    from covey.config import DatasetConfig

Length = Callable[[list[Conversation]], list[int]]
"""The lengths of prompts in tokens, with chat template and generation prompt."""
CutLeft = Callable[[str, int], str]
"""`(text, n)` to the text without its first `n` tokens; empty if it has no more than that."""

_MOST_CUTS = 8  # a truncated text may tokenize differently, so one cut is not always enough


def filter_by_length(loaded: LoadedData, length: Length, truncate: CutLeft, dataset: DatasetConfig) -> LoadedData:
    """Limit prompts to `dataset.max_prompt_length` tokens, in the training rows and in every held-out set.

    `overlong_prompts=drop` drops rows with longer prompts. `truncate` cuts the excess tokens from the left of the last
    user message; the system prompt, the earlier turns and the end of that message are kept. A row that is too long even
    without that message is dropped. Both are counted in notes.

    Args:
        loaded: from `load`.
        dataset: the limit, and whether to drop or truncate. Without a limit, or without prompts, since an environment
            makes them, `loaded` is returned unchanged.

    Raises:
        DataError: no row of a set is left.
    """
    if dataset.max_prompt_length is None or "prompt" not in loaded.train.column_names:
        return loaded
    notes = list(loaded.notes)
    kept = {
        name: _filter(rows, name, length, truncate, dataset, notes)
        for name, rows in {"train": loaded.train, **loaded.evaluation}.items()
    }
    return LoadedData(kept.pop("train"), kept, notes, loaded.warnings)


def _filter(
    rows: datasets.Dataset, name: str, length: Length, truncate: CutLeft, dataset: DatasetConfig, notes: list[str]
) -> datasets.Dataset:
    limit = dataset.max_prompt_length or 0
    prompts: list[Conversation] = [[dict(message) for message in prompt] for prompt in rows["prompt"]]
    lengths = length(prompts)
    overlong = [i for i, tokens in enumerate(lengths) if tokens > limit]
    if not overlong:
        return rows
    cut: dict[int, Conversation] = {}
    if dataset.overlong_prompts == "truncate":
        cut = _cut({i: (prompts[i], lengths[i]) for i in overlong}, limit, length, truncate)
        rows = _with_prompts(rows, [cut.get(i, prompt) for i, prompt in enumerate(prompts)])
    dropped = set(overlong) - cut.keys()
    what = "training" if name == "train" else set_label(name)
    if len(dropped) == len(prompts):
        raise DataError(
            f"All {len(prompts)} {what} prompts are longer than dataset.max_prompt_length={limit} tokens, with the "
            f"chat template and the system prompt; the shortest has {min(lengths)}. Raise the limit, or set it to null."
        )
    if cut:
        notes.append(
            f"{len(cut)} of {len(prompts)} {what} prompts were longer than {limit} tokens; the beginning of their last "
            "user message is cut off"
        )
    if dropped:
        even = " even without their last user message" if dataset.overlong_prompts == "truncate" else ""
        notes.append(
            f"{len(dropped)} of {len(prompts)} {what} prompts are dropped, because they are longer than {limit} "
            f"tokens{even} (dataset.max_prompt_length)"
        )
    return rows.select([i for i in range(len(prompts)) if i not in dropped]) if dropped else rows


def _cut(
    overlong: dict[int, tuple[Conversation, int]], limit: int, length: Length, truncate: CutLeft
) -> dict[int, Conversation]:
    """Truncate prompts until they fit; those that cannot fit are missing from the result."""
    done: dict[int, Conversation] = {}
    for _ in range(_MOST_CUTS):
        shorter = {i: _without(prompt, tokens - limit, truncate) for i, (prompt, tokens) in overlong.items()}
        found = {i: prompt for i, prompt in shorter.items() if prompt is not None}
        tokens_now = dict(zip(found, length(list(found.values())), strict=True)) if found else {}
        done |= {i: prompt for i, prompt in found.items() if tokens_now[i] <= limit}
        overlong = {i: (prompt, tokens_now[i]) for i, prompt in found.items() if tokens_now[i] > limit}
        if not overlong:
            break
    return done


def _without(prompt: Conversation, tokens: int, truncate: CutLeft) -> Conversation | None:
    """The prompt with this many tokens cut from its last user message; None if nothing of that would be left."""
    last = max(i for i, message in enumerate(prompt) if message["role"] == "user")
    text = truncate(prompt[last]["content"], tokens)
    if not text.strip():
        return None
    return [*prompt[:last], {**prompt[last], "content": text}, *prompt[last + 1 :]]


def _with_prompts(rows: datasets.Dataset, prompts: Sequence[Conversation]) -> datasets.Dataset:
    import pyarrow as pa

    arrow: pa.Table = rows.with_format("arrow")[:]
    at = arrow.column_names.index("prompt")
    column = prompt_column(prompts, as_text=pa.types.is_string(arrow.schema.field(at).type))
    changed = dataset_of(arrow.set_column(at, arrow.schema.field(at), column))
    return changed.with_format(**rows.format) if rows.format["type"] is not None else changed
