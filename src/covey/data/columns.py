"""From raw rows to training rows: a conversation in `prompt`, and in `answer` the extracted answer, if any."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from covey.answers import extractor
from covey.config.groups.dataset import RENAMED, TAKEN_NAMES
from covey.config.groups.environment import EnvironmentConfig
from covey.data.prompts import Conversation, PromptBuilder, as_messages, conversation, prompt_column, question, reply
from covey.data.table import Table, WrittenFloat, as_text, dataset_of
from covey.errors import DataError
from covey.runlog.completions import JSON_TEXT
from covey.runlog.names import NUM_MODES

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

    from covey.config import DatasetConfig


@dataclass(frozen=True, slots=True)
class RowNeeds:
    """What a run needs of its rows."""

    answer_for: str | None = "the run"
    """What needs gold answers (a reward, say), for messages; None: the rows may lack them."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    benchmark: str | None = None
    """The benchmark that the rows are; None: the data of the run."""

    @property
    def path_key(self) -> str:
        """The config key that names a local file of the rows."""
        return f"evaluation.benchmark_paths.{self.benchmark}" if self.benchmark else "dataset.path"

    @property
    def prompts(self) -> bool:
        """Whether every row needs a prompt."""
        return not self.environment.gives_prompts

    @property
    def exact(self) -> bool:
        """Whether an answer that nothing reads is a column like the others, for the `reset` of an environment."""
        return self.environment.factory is not None

    @property
    def environments(self) -> tuple[str, ...]:
        """The names among which rows choose in their column `environment`; empty where there is only one."""
        return tuple(name for name in self.environment.factories if name is not None)


CONVERSATION_NAMES = ("messages", "conversations", "conversation")
"""Columns that hold whole conversations: a reply at the end is not part of the prompt."""

PROMPT_NAMES = (
    *("prompt", "problem", "question", "query", "instruction", "input", "problem_statement"),
    *CONVERSATION_NAMES,
)
ANSWER_NAMES = (
    *("answer", "final_answer", "expected_answer", "correct_answer", "ground_truth", "reward_model.ground_truth"),
    *("solution", "target", "label", "gold"),
)
"""Column names to look for, in this order and ignoring case, when the config names none: short answers before worked
solutions. `a.b` is the field `b` of objects in the column `a`."""

_ASKED_WITH = ("instruction", "input", "context", "passage", "choices", "options", "system", "system_prompt", "tools")
"""Columns that usually belong to the question; a note names those that are left out of the prompt."""

UNSEEN = "the model does not see it"
"""What a note says of them, which is a warning."""

_PROMPT, _ENVIRONMENT = "prompt", "environment"
_SHOWN_ROWS = 3
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that are ready for training or evaluation."""

    data: datasets.Dataset
    questions: Sequence[str]
    """The question of each row as one text without the system prompt, to compare rows by; the row itself where an
    environment makes the question of it."""
    place: Callable[[int], str]
    """Where a row was read, for messages."""

    def __len__(self) -> int:
        return len(self.questions)

    def select(self, indices: Sequence[int]) -> Prepared:
        """The rows at `indices`, in that order."""
        kept = list(indices)
        questions = [self.questions[i] for i in kept]
        return Prepared(self.data.select(kept), questions, lambda i: self.place(kept[i]))


class Columns(NamedTuple):
    """Where prompts and answers are."""

    prompt: str | None
    """None where an environment makes the prompts."""
    answer: str | None
    """None where the answer is the reply that ends each conversation, or where there are none."""
    replies: bool = False
    """Whether the answers are these replies."""

    @property
    def drop_reply(self) -> bool:
        """Whether an assistant's message at the end is no part of the prompt; else it is one to be continued."""
        return self.replies or (self.prompt or "").lower() in CONVERSATION_NAMES


def find_columns(table: Table, dataset: DatasetConfig, needs: RowNeeds) -> Columns:
    """The prompt column and the answer column.

    Where an environment may make the prompts, only a column called `prompt`, or one that the config names, holds them;
    and an answer that nothing needs is a column like the others.

    Args:
        needs: of the run; nothing that needs answers means that they may be missing, unless the config names their
            column.

    Raises:
        DataError: one is missing; the message names the existing columns.
    """
    answer_for = needs.answer_for
    prompt = None
    if needs.prompts or dataset.prompt_column is not None or table.has(_PROMPT):
        usual_prompts = PROMPT_NAMES if needs.prompts else (_PROMPT,)
        prompt = _find(table, dataset.prompt_column, usual_prompts, "prompt", needs)
    usual = usual_column(table, ANSWER_NAMES)
    optional = dataset.answer_column is None and answer_for is None
    if needs.exact and optional:
        return Columns(prompt, None)
    unanswered = dataset.answer_column is None and usual is None and prompt is not None
    may_reply = answer_for is not None or str(prompt).lower() in CONVERSATION_NAMES  # else it is a prefill
    if unanswered and may_reply and any(map(as_messages, table.values(str(prompt)))):
        return Columns(prompt, None, replies=True)
    if optional and usual is None:
        return Columns(prompt, None)
    return Columns(prompt, _find(table, dataset.answer_column, ANSWER_NAMES, "answer", needs))


def prepare(
    table: Table, dataset: DatasetConfig, notes: list[str], extractor_name: str | None = None, *, needs: RowNeeds
) -> Prepared:
    """Build `prompt` and `answer`, and keep the other columns.

    Args:
        table: the rows; every one of them is checked.
        dataset: column names, answer extractor, system prompt and prompt template.
        notes: messages for the user are appended to it.
        extractor_name: overrides the config's `answer_extractor`.
        needs: see `find_columns`; if nothing needs answers, `answer` is built only if every row has one.

    Raises:
        DataError: a column is missing, or a row has no prompt, no answer, or no environment that there is.
    """
    columns = find_columns(table, dataset, needs)
    _check_environments(table, needs.environments)
    values, bad = table.values(NUM_MODES) if NUM_MODES in table.columns else [], []
    for row, value in enumerate(values):
        try:
            number_of_modes(value)
        except ValueError:
            bad.append(row)
    if bad:
        raise DataError(
            f"{table.count(len(bad))} have no number of right answers in column '{NUM_MODES}' "
            f"({_shown(table, bad, values)}). It is a whole number, or null where it is not known. A column that means "
            "something else needs another name."
        )
    prompts, questions = _prompts(table, columns, dataset, notes, needs)
    required = needs.answer_for is not None or dataset.answer_column is not None
    extract_by = extractor_name or dataset.answer_extractor
    answers = _answers(table, columns, extract_by, notes, needs, required=required)
    if columns.replies and answers is not None:
        notes.append(f"{table.name}: the answer is the assistant's reply that ends '{columns.prompt}'")
    return Prepared(_assemble(table, prompts, answers, notes, needs), questions, table.place)


def _prompts(
    table: Table, columns: Columns, dataset: DatasetConfig, notes: list[str], needs: RowNeeds
) -> tuple[list[Conversation] | None, list[str]]:
    """The conversations, None where there are none, and the questions of all rows."""
    if columns.prompt is None:
        again = bool(dataset.system_prompt or dataset.user_prompt_template)
        told_apart = set(table.columns) != {_ENVIRONMENT}  # else each is an episode of its own
        rows = [json.dumps(row, sort_keys=True, default=str) for row in table.data]
        questions = rows if told_apart else list(map(str, range(len(rows))))
        return [conversation("", dataset) for _ in questions] if again else None, questions
    values = table.values(columns.prompt)
    builder = PromptBuilder(dataset, drop_reply=columns.drop_reply)
    prompts = [builder.build(value) for value in values]
    if not needs.prompts:
        empty = [value is None or value == "" for value in values]
        prompts = [conversation("", dataset) if none else p for none, p in zip(empty, prompts, strict=True)]
    found = checked_prompts(table, columns.prompt, values, prompts, needs.environment)
    notes += [f"{table.name}: {note}" for note in builder.notes()]
    others = [name for name in table.columns if name.lower() in _ASKED_WITH and name != columns.prompt]
    if left_out := [name for name in others if name != columns.answer and any(table.values(name))]:
        notes.append(
            f"{table.name}: the prompt is column '{columns.prompt}' alone; {', '.join(map(repr, left_out))} may belong "
            f"to the question, and {UNSEEN}. Write it into the prompts if it does"
        )
    return found, [question(value, drop_reply=columns.drop_reply) for value in values]


def checked_prompts(
    table: Table, column: str, values: Sequence[Any], prompts: Sequence[Any], environment: EnvironmentConfig
) -> list[Any]:
    """The prompts that were made of a column's values. Raises a `DataError` if a row has none, or one that a model
    cannot go on from."""
    ends = [{} if isinstance(one, str) else one and one[-1] for one in prompts]
    text = 'A prompt is text, or a list of {"role": …, "content": …} messages with text in them.'
    result = 'Add its result, as a {"role": "tool", …} message, or remove it.'
    begun = "end with a message of the assistant, which cannot be continued with tools or an environment,"
    for what, right, is_bad in (
        ("have no prompt", text, lambda end: end is None),
        ("end with a call of a tool", result, lambda end: end.get("tool_calls")),
        (begun, "Remove it.", lambda end: environment.used and end.get("role") == "assistant"),
    ):
        if bad := [i for i, end in enumerate(ends) if is_bad(end)]:
            parts = values[bad[0]] if ends[bad[0]] is None and isinstance(values[bad[0]], list) else []
            at = next((at for at, one in enumerate(parts) if as_messages([one]) is None), None)
            which = (
                "" if at is None else f" Message {at + 1} of {table.place(bad[0])} has none: {beginning(parts[at])}."
            )
            shown = _shown(table, bad, values)
            raise DataError(f"{table.count(len(bad))} {what} in column '{column}' ({shown}). {right}{which}")
    return list(prompts)


def check_prompts_differ(table: Table, columns: Columns, dataset: DatasetConfig, needs: RowNeeds) -> None:
    """Refuse rows that have the same prompt and differ elsewhere; copies of one row may be wanted."""
    if needs.exact or needs.environment.rollout_func or needs.benchmark:
        return
    values, builder = table.values(str(columns.prompt)), PromptBuilder(dataset, drop_reply=columns.drop_reply)
    first = builder.build(values[0])
    same = all(builder.build(value) == first for value in values[1:])
    if varied := [name for name in table.columns if same and len({*map(repr, table.values(name))}) > 1]:
        raise DataError(
            f"All {len(table)} rows of {table.name} have the same prompt, column '{columns.prompt}' "
            f"({beginning(values[0])}), and differ only in what the model does not see: {', '.join(varied)}. Write "
            "what the question needs into the prompts, or set dataset.prompt_column=NAME if another column holds it."
        )


def number_of_modes(value: Any) -> int | None:
    """How many different right answers a row's `num_modes` says that it has; None if it does not say. Raises a
    `ValueError` for anything but a whole number."""
    if value is None or value == "" or value != value:  # NaN: a missing number, as some tools write it
        return None
    number = int(str(value).strip().removesuffix(".0"))
    if number < 0:
        raise ValueError
    return number


def _check_environments(table: Table, names: Sequence[str]) -> None:
    """Check that every row chooses one of several environments."""
    if not names:
        return
    if _ENVIRONMENT not in table.columns:
        raise DataError(
            f"{table.name} has no column '{_ENVIRONMENT}', with which a row chooses one of the environments of "
            f"environment.factory ({', '.join(names)}); it has {', '.join(table.columns)}."
            f"{_nearest(table, [_ENVIRONMENT])}"
        )
    values = table.values(_ENVIRONMENT)
    bad = [i for i, value in enumerate(values) if value not in names]
    if bad:
        near = difflib.get_close_matches(str(values[bad[0]]), names, n=1)
        raise DataError(
            f"{table.count(len(bad))} choose no environment that there is, in column "
            f"'{_ENVIRONMENT}' ({_shown(table, bad, values)}). environment.factory has {', '.join(names)}."
            + (f" Did you mean {near[0]}?" if near else "")
        )


def _answers(
    table: Table, columns: Columns, extractor_name: str, notes: list[str], needs: RowNeeds, *, required: bool
) -> list[str | None] | None:
    """The answer of every row; None if they have none, and none is required."""
    if columns.answer is None and not columns.replies:
        return None
    values = table.values(columns.answer or str(columns.prompt), WrittenFloat)
    raw_answers = values if columns.answer else [reply(value) for value in values]
    extract = extractor(extractor_name)
    answers = [None if text is None else extract(text) for text in map(answer_text, raw_answers)]
    bad = [i for i, answer in enumerate(answers) if answer is None]
    if not bad:
        return answers
    where = f"column '{columns.answer}'" if columns.answer else f"the reply that ends column '{columns.prompt}'"
    problem = f"{table.count(len(bad))} have no answer that can be read from {where}"
    if required:
        others = "" if needs.benchmark else ", or choose another dataset.answer_column or dataset.answer_extractor"
        pattern = f"dataset.answer_extractor={extractor_name} takes what that pattern finds."
        wants = _EXTRACTOR_WANTS.get(extractor_name, pattern)
        raise DataError(f"{problem} ({_shown(table, bad, values)}). {wants} Fix or remove these rows{others}.")
    if columns.answer:
        notes.append(f"{problem}; no reward or grader needs one, so the column stays as it is")
    return None


def answer_text(value: Any) -> str | None:
    """A raw answer as text; None if it is not an answer.

    `27.0` becomes `27`, other numbers, dates and times keep their text, and an object with `numbers` and `target` (a
    countdown problem) becomes JSON text with these two; so does one with `vertices`, `edges` and `given`
    (graph_coloring).
    """
    if isinstance(value, bool | int | str):
        return str(value)
    if isinstance(value, float) and value == value:
        return repr(value).removesuffix(".0")
    if isinstance(value, Mapping) and value.get("numbers") and value.get("target") is not None:
        return json.dumps({"numbers": value["numbers"], "target": value["target"]})
    if isinstance(value, Mapping) and value.get("vertices") and isinstance(value.get("given"), Mapping):
        return json.dumps({key: value.get(key) for key in ("vertices", "edges", "given")})
    try:
        return as_text(value)
    except TypeError:
        return None


_EXTRACTOR_WANTS = {
    "none": "With dataset.answer_extractor=none an answer is any non-empty text or number.",
    "gsm8k": "dataset.answer_extractor=gsm8k takes what follows the last '####'.",
    "boxed": r"dataset.answer_extractor=boxed takes the content of the last \boxed{…}.",
    "answer_tag": "dataset.answer_extractor=answer_tag takes the content of the last <answer>…</answer>.",
}


def usual_column(table: Table, names: Sequence[str]) -> str | None:
    """The first of these names that the table has as a column, in the table's own case."""
    there = {column.lower(): column for column in reversed([*table.columns, *table.inner_columns])}
    return next((there[name] for name in names if name in there), None)


def _find(table: Table, named: str | None, usual: Sequence[str], what: str, needs: RowNeeds) -> str:
    key = f"dataset.{what}_column"
    column = named or usual_column(table, usual)
    if column is None:
        needed_by = f", which {needs.answer_for} needs" if what == "answer" and needs.answer_for else ""
        raise DataError(
            f"{table.name} has no column that looks like the {what} (one of {', '.join(usual)}){needed_by}; it has "
            f"{', '.join(table.columns)}. Set {key}=NAME.{_nearest(table, usual)}"
        )
    if not table.has(column):
        by = f"{key} names" if needs.benchmark is None else f"holds the {what} in {needs.benchmark} as on the hub"
        raise DataError(
            f"{table.name} has no column '{column}', which {by}; it has {', '.join(table.columns)}."
            f"{_nearest(table, [column])}"
        )
    return column


def _nearest(table: Table, wanted: Sequence[str]) -> str:
    """A hint with the column most similar to one of those wanted; empty when none is."""
    there = {column.lower(): column for column in [*table.columns, *table.inner_columns]}
    near = [found for name in wanted for found in difflib.get_close_matches(name.lower(), there, n=1, cutoff=0.7)]
    return f" Did you mean {there[near[0]]}?" if near else ""


def _assemble(
    table: Table,
    prompts: Sequence[Conversation] | None,
    answers: Sequence[str | None] | None,
    notes: list[str],
    needs: RowNeeds,
) -> datasets.Dataset:
    """The new columns first, then the original ones, renamed where their name is taken."""
    import pyarrow as pa

    arrow: pa.Table = table.data.with_format("arrow")[:]
    made: dict[str, Any] = {_PROMPT: prompts, "answer": answers}
    texts = {name: list(values) for name, values in made.items() if values is not None}
    as_text = any(message.keys() != {"role", "content"} for prompt in prompts or () for message in prompt)
    new = {
        name: prompt_column(values, as_text=as_text) if name == _PROMPT else pa.array(values, pa.string())
        for name, values in texts.items()
    }
    taken = {*TAKEN_NAMES} - ({_ENVIRONMENT} if needs.environments else set())
    kept = {}
    for name in arrow.column_names:
        if name not in new and name not in taken:
            kept[name] = name
        elif name not in new or not _same(name, table.values(name, WrittenFloat), texts[name], exact=needs.exact):
            other = f"{RENAMED}{name}"
            if other in arrow.column_names:
                notes.append(f"{table.name}: column '{name}' is dropped, because there is already a column '{other}'")
                continue
            kept[name] = other
            if name not in new:
                notes.append(f"{table.name}: column '{name}' is renamed '{other}', because TRL uses its name")
    columns = arrow.select(list(kept)).rename_columns(list(kept.values()))
    for name in reversed(new):
        mark = JSON_TEXT if as_text and name == _PROMPT else None
        columns = columns.add_column(0, pa.field(name, new[name].type, metadata=mark), new[name])
    return dataset_of(columns)


def _same(name: str, values: list[Any], new: list[Any], *, exact: bool) -> bool:
    """Whether an original column equals the new one of its name; with `exact`, in its types too."""
    as_text = name == "answer" and not exact
    return (list(map(answer_text, values)) if as_text else values) == new


def _shown(table: Table, bad: Sequence[int], values: Sequence[Any]) -> str:
    """Where the first few bad rows are, and how their values begin."""
    shown = "; ".join(f"{table.place(i)}: {beginning(values[i])}" for i in bad[:_SHOWN_ROWS])
    return shown + (f"; and {len(bad) - _SHOWN_ROWS} more" if len(bad) > _SHOWN_ROWS else "")


def beginning(value: Any) -> str:
    """How a value begins, for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
