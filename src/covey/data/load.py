"""Data for a run: a dataset config and a seed become training rows and held-out sets, within a length in tokens.

The tokenizer belongs to a higher layer, so callers pass what needs it as functions. Rows that a Python program gives
are written to files, so that a run's config can name its data and the run resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config import DatasetConfig
from covey.config.groups.dataset import DATA_FILES
from covey.config.groups.environment import EnvironmentConfig
from covey.data.columns import (
    CONVERSATION_NAMES,
    PROMPT_NAMES,
    UNSEEN,
    Prepared,
    RowNeeds,
    beginning,
    check_prompts_differ,
    checked_prompts,
    find_columns,
    prepare,
    usual_column,
)
from covey.data.files import READABLE, find_path, read_files
from covey.data.holdout import shuffled, split_validation, subsample, test_rows
from covey.data.mixture import blend
from covey.data.prompts import Conversation, PromptBuilder, as_messages, prompt_column
from covey.data.sources import read_rows
from covey.data.table import SourceRows, Table, as_text, dataset_of, from_arrow, reading
from covey.data.tasks.builtin import episode_sets, task_sets
from covey.errors import DataError
from covey.runlog.files import guard_disk, write_atomically
from covey.runlog.names import set_label

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, slots=True)
class LoadedData:
    """The training rows and held-out sets of a run.

    Every row has `prompt` (a conversation), unless an environment makes it, and `answer` (text), unless nothing needs
    it.
    """

    train: datasets.Dataset
    evaluation: dict[str, datasets.Dataset]
    """Held-out sets by name: `test`; `hard` for a built-in task; `validation` with `validation_fraction`."""
    notes: list[str]
    """Messages for the user about how the data was read."""
    warnings: frozenset[str] = frozenset()
    """Those of the notes that make results doubtful: held-out problems that are also trained on, or parts of
    questions that no prompt holds."""
    source: Table | None = None
    """The training rows as they were read, in the order of `train`; None of drawn ones, and of mixtures."""


def load(
    dataset: DatasetConfig,
    seed: int,
    *,
    answer_for: str | None = "the run",
    environment: EnvironmentConfig | None = None,
    benchmark: str | None = None,
) -> LoadedData:
    """Load the data of a config; the same for the same files, config and seed.

    Held-out rows are taken first (`test`, then `validation`); of the others `train_fraction`, and of these the first
    `max_train_samples`, are trained on.

    Args:
        dataset: the config group `dataset`. `path` takes precedence over `id` and `task`.
        seed: draws the training problems of a task or environment, and the rows of `train_fraction`. All that is held
            out is drawn with `dataset.seed`; a mixture is blended, and its `test` held out, with its own seed.
        answer_for: what needs gold answers (a reward, say), for messages; None: the rows may lack them.
        environment: the config group `environment`: with a factory, prompts may be missing, and without a source there
            are rows of seeds.
        benchmark: the benchmark that this is, for messages; None for the data of a run.

    Returns:
        Training rows, held-out sets, and notes.

    Raises:
        DataError: the data cannot be found, read, or used.
    """
    notes: list[str] = []
    source = None
    needs = RowNeeds(answer_for, environment or EnvironmentConfig(), benchmark)
    if dataset.mixture.datasets:
        train, evaluation = blend(dataset, seed, notes, needs)
    elif dataset.path or dataset.id:
        train, evaluation, source = _read(dataset, seed, notes, needs)
    elif not dataset.has_source:
        train, evaluation = episode_sets(dataset, seed, needs.environments)
    else:
        train, evaluation = task_sets(dataset, seed)
    repeats = [note for name, held_out in evaluation.items() for note in _repeats(train, held_out, name)]
    sets = {name: reading(rows.data) for name, rows in evaluation.items()}
    notes = list(dict.fromkeys([*notes, *repeats]))
    doubtful = frozenset([*repeats, *(note for note in notes if UNSEEN in note)])
    return LoadedData(reading(train.data), sets, notes, doubtful, source)


def _read(
    dataset: DatasetConfig, seed: int, notes: list[str], needs: RowNeeds
) -> tuple[Prepared, dict[str, Prepared], Table]:
    source = read_rows(dataset, notes, needs)
    columns = find_columns(source.train, dataset, needs)  # checked first: wrong columns are the likelier mistake
    try:
        train, test = _hold_out_test(source, dataset, notes)
    except DataError as error:  # files that were not read may be the reason
        raise DataError(f"{error}{''.join(f' Note: {note}.' for note in notes)}") from error
    stay, chosen = split_validation(len(train), dataset, train.name)
    kept = subsample(len(stay), dataset, seed, train.name)
    wanted = train if len(kept) == len(train) else train.select([stay[i] for i in kept])
    prepared = prepare(wanted, dataset, notes, needs=needs)
    evaluation = {}
    if test is not None:
        evaluation["test"] = prepare(test, dataset, notes, needs=needs)
    if chosen:
        evaluation["validation"] = prepare(train.select(chosen), dataset, notes, needs=needs)
    check_prompts_differ(source.train, columns, dataset, needs)
    return prepared, evaluation, wanted


def _hold_out_test(source: SourceRows, dataset: DatasetConfig, notes: list[str]) -> tuple[Table, Table | None]:
    """Training rows in their own order, and the held-out rows in an order drawn from `dataset.seed`."""
    if source.test is not None:
        if dataset.test_fraction is not None:
            notes.append(
                f"dataset.test_fraction={dataset.test_fraction:g} is not used, because there is a test split; "
                "dataset.test_size limits it"
            )
        if dataset.test_size == 0:
            return source.train, None
        return source.train, source.test.select(shuffled(len(source.test), dataset.seed)[: dataset.test_size])
    rows = len(source.train)
    count = test_rows(rows, dataset, source.train.name)
    if count == 0:
        return source.train, None
    drawn = shuffled(rows, dataset.seed)[:count]
    chosen = set(drawn)
    notes.append(
        f"{count} of the {rows} rows of {source.train.name} are held out for evaluation, because {source.why_no_test}"
    )
    return source.train.select([i for i in range(rows) if i not in chosen]), source.train.select(drawn)


def _repeats(train: Prepared, held_out: Prepared, name: str) -> Iterator[str]:
    """A note on how many held-out questions are also trained on, ignoring white space and case, with an example."""
    first = {_folded(question): i for i, question in reversed(list(enumerate(train.questions)))}
    repeats = [i for i, question in enumerate(held_out.questions) if _folded(question) in first]
    if not repeats:
        return
    i = repeats[0]
    question = held_out.questions[i]
    yield (
        f"{len(repeats)} of the {len(held_out)} {set_label(name)} problems are also in the training rows, "
        f"ignoring white space and case: the model may memorise them. For example {beginning(question)} "
        f"(held out: {held_out.place(i)}; training: {train.place(first[_folded(question)])})"
    )


def _folded(question: str) -> str:
    return " ".join(question.split()).casefold()


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
    train, stay = kept.pop("train")
    source = loaded.source.select(stay) if loaded.source is not None else None
    return LoadedData(train, {name: rows for name, (rows, _) in kept.items()}, notes, loaded.warnings, source)


def _filter(
    rows: datasets.Dataset, name: str, length: Length, truncate: CutLeft, dataset: DatasetConfig, notes: list[str]
) -> tuple[datasets.Dataset, Sequence[int]]:
    """The rows that stay, and their indices."""
    limit = dataset.max_prompt_length or 0
    prompts: list[Conversation] = [[dict(message) for message in prompt] for prompt in rows["prompt"]]
    lengths = length(prompts)
    overlong = [i for i, tokens in enumerate(lengths) if tokens > limit]
    if not overlong:
        return rows, range(len(prompts))
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
    stay = [i for i in range(len(prompts)) if i not in dropped]
    return rows.select(stay) if dropped else rows, stay


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


_PROMPTS_FILE = "FILE"
"""What `covey generate` calls a file of prompts."""


def read_prompts(
    name: str, column: str | None = None, environment: EnvironmentConfig | None = None
) -> list[dict[str, Any]]:
    """The rows of a file of prompts to complete, read as training reads its data; `prompt` is a text or messages.

    Args:
        name: of a data file, as `dataset.path` takes one; any other is text with one prompt per line.
        column: the prompts' column, if there is one of this name; else it has one of the usual names.
        environment: of the model's run.

    Raises:
        DataError: the file cannot be read, or a row has no prompt.
    """
    path = find_path(name, _PROMPTS_FILE)
    if not path.name.lower().endswith(DATA_FILES):
        return _text_rows(path)
    table = read_files([path], _PROMPTS_FILE)
    found = column if column is not None and table.has(column) else usual_column(table, PROMPT_NAMES)
    if found is None:
        raise DataError(
            f"{path} has no column that looks like the prompt (one of {', '.join(PROMPT_NAMES)}); it has "
            f"{', '.join(table.columns)}. Rename one of them to prompt."
        )
    builder = PromptBuilder(DatasetConfig(), drop_reply=found.lower() in CONVERSATION_NAMES)
    values = table.values(found)
    prompts = [
        value if isinstance(value, str) and as_messages(value) is None else builder.build(value) for value in values
    ]
    checked_prompts(table, found, values, prompts, environment or EnvironmentConfig())
    columns = {name: table.values(name) for name in table.columns}
    given = ({name: values[row] for name, values in columns.items()} for row in range(len(table)))
    rows = ({name: value for name, value in row.items() if value is not None} for row in given)
    return [{**row, "prompt": prompt} for row, prompt in zip(rows, prompts, strict=True)]


def _text_rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        right = f"Write one prompt per line, as UTF-8 text that is not compressed, or a file of rows: {READABLE}."
        raise DataError(f"The prompts in {path} cannot be read: {error}. {right}") from None
    rows: list[dict[str, Any]] = [{"prompt": line} for line in lines if line.strip()]
    if not rows:
        raise DataError(f"{path} holds no prompts: write one per line.")
    return rows


_NARROW = ("float16", "float32")
_SPLIT_KEYS = {"train": "dataset.path", "test": "dataset.test_path"}
_WANTED = (
    "give a list of rows such as {'prompt': '2 + 2', 'answer': '4'}, a mapping of columns to lists, a datasets.Dataset "
    "or a pandas.DataFrame; or {'train': …, 'test': …} of these"
)


def write_rows(data: Any, folder: Path) -> dict[str, str]:
    """Write rows to files, which are called by a hash of what they hold.

    Args:
        data: rows as mappings, a mapping of columns to lists, a `datasets.Dataset` or a `pandas.DataFrame`; or
            `{"train": …, "test": …}` of these, whose `test` is held out.
        folder: where the files are.

    Returns:
        The config keys that name the files, `dataset.path` and, with held-out rows, `dataset.test_path`.

    Raises:
        DataError: the data is something else, empty, or holds what no file of rows can hold.
        RunDirectoryError: a file cannot be written.
    """
    splits = dict(data) if isinstance(data, Mapping) and "train" in data else {"train": data}
    if unknown := [name for name in splits if name not in _SPLIT_KEYS]:
        raise DataError(
            f"data has the part {unknown[0]!r} besides train: the rows to train on are called train, held-out ones "
            "test."
        )
    texts = {
        name: json_lines(rows, "data" if splits.keys() == {"train"} else f"data[{name!r}]")
        for name, rows in splits.items()
    }
    found = {}
    for name, text in texts.items():
        file = folder / f"rows-{hashlib.sha256(text).hexdigest()[:12]}.jsonl"
        found[_SPLIT_KEYS[name]] = str(file)
        if not file.is_file():
            with guard_disk("the rows given as data", folder, elsewhere="set output_dir to another place"):
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(file, text)
    return found


def json_lines(data: Any, what: str) -> bytes:
    """Rows as JSON, one a line; `data` as of `write_rows`, called `what` in errors."""
    lines = []
    for number, row in enumerate(_rows(data, what)):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{what}[{number}] is of type {type(row).__name__}, and a row maps columns to values: {_WANTED}."
            )
        cells = []
        try:
            for column, value in row.items():
                _check_keys(value)
                cells.append(json.dumps({column: value}, ensure_ascii=False, default=_plain).encode()[1:-1])
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{what}[{number}] cannot be written as JSON (column {column!r}: {error}): values are texts, numbers, "
                "lists and mappings."
            ) from None
        lines.append(b"{" + b", ".join(cells) + b"}\n")
    if not lines:
        raise DataError(f"{what} has no rows: {_WANTED}.")
    return b"".join(lines)


def _rows(data: Any, what: str) -> Iterable[Any]:
    if hasattr(data, "to_dict") and hasattr(data, "notna"):  # a DataFrame, whose missing values are NaN
        narrow = [name for name, kind in data.dtypes.items() if str(kind) in _NARROW]
        data = data.astype(dict.fromkeys(narrow, str)).astype(dict.fromkeys(narrow, float))
        data = data.astype(object).where(data.notna(), None).to_dict("records")
    elif hasattr(data, "set_format") and data.format["type"] != "custom":  # a Dataset
        data = reading(dataset_of(from_arrow(data.with_format("arrow")[:])))
    elif isinstance(data, Mapping):
        columns = {name: list(values) for name, values in data.items() if _is_column(values)}
        if len(columns) < len(data) or len({len(values) for values in columns.values()}) != 1:
            raise DataError(f"{what} is a mapping, but not one of columns to lists of one length: {_WANTED}.")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if not _is_column(data):
        raise DataError(f"{what} is of type {type(data).__name__}: {_WANTED}.")
    rows: Iterable[Any] = data
    return rows


def _is_column(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)


def _plain(value: Any) -> Any:
    """A number or array of another library as Python's own; the text of what JSON has not."""
    if str(getattr(value, "dtype", "")).removeprefix("torch.") in _NARROW:
        import numpy as np

        return np.asarray(value).astype(str).astype(float).tolist()  # 0.1 of 32 bits is 0.1
    if hasattr(value, "tolist"):
        return value.tolist()
    return as_text(value)


def _check_keys(value: Any) -> None:
    """Refuse keys of objects that JSON would make text."""
    if isinstance(value, Mapping) and (bad := [key for key in value if not isinstance(key, str)]):
        raise TypeError(f"its key {bad[0]!r} is not text")
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _check_keys(inner)
