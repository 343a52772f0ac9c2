"""Completions as the pages show them: where a run's are, each as JSON can hold it, and the sample in a report."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from covey.errors import CoveyError, RunDirectoryError
from covey.evaluation.job import BENCHMARKS
from covey.evaluation.played import arguments_text, calls_of, content_text, reasoning_of, transcript
from covey.report.load import RunRecord, read_mapping
from covey.report.panels import reward_names
from covey.rewards.reward import last_user_message
from covey.runlog import RunDirectory, count_completions, names, read_completions, read_metrics
from covey.runlog.completions import completion_files
from covey.runlog.evaluations import COMPLETIONS, SETTINGS, is_evaluation, training_files
from covey.runlog.evaluations import read_completions as read_evaluated

logger = logging.getLogger(__name__)

MOST_LETTERS = 20_000
"""Limit of one message in a report: a tool may return much."""

_GRADED_BY = ("accuracy", "exact_match", "countdown")
"""Rewards that decide right or wrong for completions without an outcome."""
_VERSIONS = {names.COLUMN_VERSION, names.COLUMN_VERSIONS}
_KNOWN = {names.STEP} | {value for name, value in vars(names).items() if name.startswith("COLUMN_")} - _VERSIONS
_EXTRA_OF_EVALUATIONS = ("extracted", names.SCORE, names.MODE, names.NUM_MODES)

CompletionRow = Mapping[str, Any]
Shown = dict[str, Any]
"""What a page gets of a completion, or of a group with its `completions`; what is not known is left out.

A group has `prompt`, `question` (the last user message), `answer` (the gold answer), `step` and, of held-out ones,
`problem`. A completion has `text`, of an episode also its `turns`; `outcome`, `reward`, `rewards` by function,
`advantage`, `weight`, `length`, `truncated`; of an episode `ended`, `num_turns`, `calls`, `failures`, `seconds`; and
`extra`, other columns as text.
"""


@dataclass(frozen=True, slots=True)
class RewardColumns:
    """The reward functions of a run, whose columns its completions have."""

    names: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    """The first functions' weights; that of the others is 1."""

    @classmethod
    def of(cls, config: Mapping[str, Any], found: Iterable[str]) -> RewardColumns:
        """From a config and the names of the functions that gave rewards."""
        return cls((*found,), (*((config.get("training") or {}).get("reward_weights") or ()),))

    def total(self, row: CompletionRow) -> float | None:
        weights = [*self.weights, *[1.0] * (len(self.names) - len(self.weights))]  # an environment's has none
        pairs = [(row.get(name), weight) for name, weight in zip(self.names, weights, strict=False)]
        parts = [value * weight for value, weight in pairs if isinstance(value, int | float) and math.isfinite(value)]
        return _number(math.fsum(parts)) if parts else None


def in_groups(rows: Sequence[CompletionRow]) -> list[list[CompletionRow]]:
    """The groups of one step; without group numbers, consecutive rows with the same prompt are a group."""
    groups: list[list[CompletionRow]] = []
    before: object = None
    for row in rows:
        key = row.get(names.COLUMN_GROUP, row.get(names.COLUMN_PROMPT))
        if not groups or key != before:
            groups.append([])
        groups[-1].append(row)
        before = key
    return groups


def training_group(rows: Sequence[CompletionRow], rewards: RewardColumns, most: int | None = MOST_LETTERS) -> Shown:
    """A group of training completions.

    Args:
        rows: their rows, as they are stored.
        rewards: of the run.
        most: letters of a message; None for all.
    """
    head = rows[0]
    shown = _group(head, head.get(names.COLUMN_RENDERED), most) | _known(step=head.get(names.STEP))
    shown["completions"] = []
    for row in rows:
        each = {name: _number(row[name]) for name in rewards.names if name in row}
        extra = {name: value for name, value in row.items() if name not in _KNOWN and name not in each}
        weight = next((row[name] for name in names.COLUMN_WEIGHTS if name in row), None)
        figures: Shown = {"reward": rewards.total(row), "advantage": _number(row.get(names.COLUMN_ADVANTAGE))}
        figures |= {"weight": _number(weight), "outcome": _outcome(row)}
        shown["completions"].append(_completion(row, each, extra, figures, most))
    return shown


def evaluated_group(items: Sequence[CompletionRow], step: int | None, most: int | None = MOST_LETTERS) -> Shown:
    """The completions of one held-out problem.

    Args:
        items: as an evaluation stores them.
        step: of an evaluation of training.
        most: see `training_group`.
    """
    rows = [_as_row(item) for item in items]
    shown = _group(rows[0], None, most) | _known(step=step, problem=items[0].get("problem"))
    shown["completions"] = []
    for item, row in zip(items, rows, strict=True):
        each = {name: _number(value) for name, value in (item.get("rewards") or {}).items()}
        extra = {name: item.get(name) for name in _EXTRA_OF_EVALUATIONS}
        extra |= {"well_formed": False} if item.get("well_formed") is False else {}
        figures = {"reward": _number(item.get("reward")), "outcome": item.get("outcome")}
        shown["completions"].append(_completion(row, each, extra, figures, most))
    return shown


def _as_row(item: CompletionRow) -> CompletionRow:
    """A held-out completion as a row of training's; an episode's messages begin with those of its prompt."""
    messages = item.get("messages")
    if not isinstance(messages, list) or not messages:
        return item
    roles = [one.get("role") if isinstance(one, Mapping) else None for one in messages]
    begin = roles.index("assistant") if "assistant" in roles else len(roles)
    return {**item, names.COLUMN_PROMPT: messages[:begin], names.COLUMN_COMPLETION: messages[begin:]}


def _group(row: CompletionRow, rendered: Any, most: int | None) -> Shown:
    prompt, answer = row.get(names.COLUMN_PROMPT), row.get(names.COLUMN_ANSWER)
    question = prompt if isinstance(prompt, str) else _question(prompt)
    return _known(
        prompt=_shortened(rendered if isinstance(rendered, str) else _prompt(prompt), most),
        question=_shortened(question, most),
        answer=None if answer is None else _text(answer, most),
    )


def _completion(
    row: CompletionRow,
    rewards: Mapping[str, float | None],
    extra: Mapping[str, Any],
    figures: Mapping[str, Any],
    most: int | None,
) -> Shown:
    completion = row.get(names.COLUMN_COMPLETION)
    shown = _known(length=_number(row.get(names.COLUMN_LENGTH)), truncated=row.get(names.COLUMN_TRUNCATED), **figures)
    if _is_episode(row):
        shown |= _known(
            turns=_turns(completion, most),
            ended=row.get(names.COLUMN_EPISODE),
            num_turns=_number(row.get(names.COLUMN_TURNS)),
            calls=_number(row.get(names.COLUMN_CALLS)),
            failures=_number(row.get(names.COLUMN_FAILURES)),
            seconds=_number(row.get(names.COLUMN_SECONDS)),
        )
    texts = {name: _text(value, most) for name, value in extra.items() if value is not None}
    return {"text": _text(completion, most), "rewards": rewards, **shown, **({"extra": texts} if texts else {})}


def _is_episode(row: CompletionRow) -> bool:
    """Whether its columns say so; or, of a trainer that records none, its messages."""
    if row.get(names.COLUMN_TURNS) is not None:
        return True
    completion = row.get(names.COLUMN_COMPLETION)
    return isinstance(completion, list) and any(
        isinstance(message, dict) and (message.get("tool_calls") or message.get("role") == "tool")
        for message in completion
    )


def _turns(completion: Any, most: int | None) -> list[list[Any]]:
    """Its messages: `[text, calls]` of the model, each call a name and its arguments, and `[text]` of a result."""
    messages = completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
    found: list[list[Any]] = []
    for message in messages:
        if not isinstance(message, dict):
            message = {"role": "assistant", "content": message}
        text = _shortened(content_text(message.get("content")), most)
        if message.get("role") in ("tool", "user"):  # an environment may answer as the user
            found.append([text])
        else:
            calls = [[name, _shortened(arguments_text(arguments), most)] for name, arguments in calls_of(message)]
            found.append([reasoning_of(message) + text, calls])
    return found


def _shortened(text: str, most: int | None) -> str:
    more = 0 if most is None else len(text) - most
    return text if more <= 0 else f"{text[:most]}… ({more:,} more letters in the run's folder completions)"


def _prompt(prompt: Any) -> str:
    if isinstance(prompt, list):
        messages = [message for message in prompt if isinstance(message, Mapping)]
        if len(messages) == 1:
            return content_text(messages[0].get("content"))
        return "\n".join(f"[{message.get('role')}] {content_text(message.get('content'))}" for message in messages)
    return _text(prompt, None)


def _question(prompt: Any) -> str:
    try:
        return last_user_message(prompt)
    except (KeyError, TypeError):  # another trainer's, or damaged
        return _text(prompt, None)


def _text(value: Any, most: int | None) -> str:
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        return _shortened(transcript(message for message in value if isinstance(message, dict)), most)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _known(**values: Any) -> Shown:
    return {name: value for name, value in values.items() if value is not None}


def _number(value: Any) -> float | None:
    """A number to four significant figures; whole ones in full."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if abs(value) < 2**53 and value == int(value) else float(f"{value:.4g}")


def _outcome(row: CompletionRow) -> str | None:
    outcome = row.get(names.COLUMN_OUTCOME)
    if outcome is not None:
        return str(outcome)
    graded = next((row[name] for name in _GRADED_BY if row.get(name) is not None), None)
    return None if graded is None else "right" if graded >= 1 else "wrong"


TRAINING = "training"


@dataclass(frozen=True, slots=True)
class Source:
    """Completions of one kind, in one or more files."""

    name: str
    """`training`, `held-out/SET`, or `evaluation/FOLDER`."""
    kind: str
    """`training`, `held-out`, `evaluation` or `benchmark`."""
    title: str
    files: Mapping[int | None, Path]
    """By step; None where there is none."""
    rewards: Callable[[], RewardColumns] = RewardColumns
    """Of training: reading them takes the metrics of the whole run, so that is done only when a file is read."""

    @property
    def steps(self) -> list[int]:
        return [step for step in self.files if step is not None]

    def groups(
        self, step: int | None, *, only: Container[int] | None = None, most: int | None = MOST_LETTERS
    ) -> list[tuple[list[int], Shown]]:
        """The groups of one file, each with the places of its completions in the file.

        Args:
            step: of the file.
            only: leave out the groups that have none of these places.
            most: see `training_group`.

        Raises:
            RunDirectoryError: the file is damaged.
        """
        file = self.files[step]
        if self.kind == TRAINING:
            found, place = [], 0
            for rows in in_groups(read_completions(file)):
                places = [*range(place, place := place + len(rows))]
                if only is None or any(one in only for one in places):
                    found.append((places, training_group(rows, self.rewards(), most)))
            return found
        placed = enumerate(read_evaluated(file))
        problems = [[*items] for _, items in groupby(placed, key=lambda one: one[1].get("problem"))]
        return [
            ([place for place, _ in items], evaluated_group([item for _, item in items], step, most))
            for items in problems
            if only is None or any(place in only for place, _ in items)
        ]

    def count(self, step: int | None) -> int:
        """The completions in one file. Raises a `RunDirectoryError` if the file is damaged."""
        file = self.files[step]
        if self.kind == TRAINING:
            return count_completions(file)
        file = file / COMPLETIONS if file.is_dir() else file
        return file.read_bytes().count(b"\n") if file.is_file() else 0


def sources_of(root: Path) -> list[Source]:
    """The completions in a run directory, or in the folder of an evaluation; a damaged config counts as none."""
    if is_evaluation(root):
        return [_evaluation(root, "evaluation")]
    run = RunDirectory(root)
    found = []
    if files := completion_files(run.completions):
        rewards = partial(_rewards, root, _state(run.config), _state(run.metrics))
        found.append(Source(TRAINING, TRAINING, "training", dict(files), rewards))
    sets: dict[str, dict[int | None, Path]] = {}
    for name, step, file in training_files(root):
        sets.setdefault(name, {})[step] = file
    found += [Source(f"held-out/{name}", "held-out", names.set_label(name), files) for name, files in sets.items()]
    folders = sorted(path.parent for path in run.evaluation.glob(f"*/{SETTINGS}"))
    return [*found, *(_evaluation(folder, f"evaluation/{folder.name}") for folder in folders)]


def tags_of(root: Path) -> list[str]:
    """The thinking tag and the answer tag of a run's completions."""
    found = _config(RunDirectory(root)).get("rewards")
    tags = found if isinstance(found, dict) else {}
    return [str(tags.get("think_tag") or "think"), str(tags.get("answer_tag") or "answer")]


def _evaluation(folder: Path, name: str) -> Source:
    set_name = str(read_mapping(folder / SETTINGS).get("name"))
    return Source(name, "benchmark" if set_name in BENCHMARKS else "evaluation", folder.name, {None: folder})


def _config(run: RunDirectory) -> dict[str, Any]:
    try:
        return read_mapping(run.config)
    except CoveyError as error:
        logger.warning("%s", error)
        return {}


@lru_cache(maxsize=16)
def _rewards(root: Path, *states: tuple[int, int]) -> RewardColumns:
    """The reward functions of a run whose config and metrics are in these states."""
    run = RunDirectory(root)
    try:
        return RewardColumns.of(_config(run), reward_names(read_metrics(run.metrics)))
    except CoveyError as error:
        logger.warning("%s", error)
        return RewardColumns()


def _state(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


MOST_COMPLETIONS = 12_000
MOST_BYTES = 2_800_000
"""Limit of the compressed, base64-encoded completions in the page."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The compressed completions of a page."""

    text: str
    """base64 of gzipped JSON; empty if there are none."""
    shown: int
    total: int


def pack_completions(record: RunRecord, *, most: int = MOST_COMPLETIONS, most_bytes: int = MOST_BYTES) -> Packed:
    """Pack a run's completions: all if they fit, else whole groups, evenly over the files of each source.

    Damaged files are skipped with a warning.
    """
    sources = sources_of(record.run.root)
    counts = {(source.name, step): _count(source, step) for source in sources for step in source.files}
    total = sum(counts.values())
    if not total:
        return Packed("", 0, 0)
    groups: list[Shown] = []
    for source in sources:
        held = [step for step in source.files if counts[source.name, step]]
        if source.kind == "held-out" and total > most:
            held = [*dict.fromkeys([held[0], held[-1]])] if held else []  # before and after
        for number, step in enumerate(held):
            here = [{"source": source.name} | shown for _, shown in _groups(source, step)]
            share = math.ceil(len(here) * most / total) if total > most else len(here)
            # In training not always the first problems of a batch; elsewhere the same problems of every step.
            offset = number % max(1, len(here) - share + 1) if source.kind == TRAINING else 0
            groups += here[offset : offset + share]
    while True:
        found = content(record, sources, groups)
        # ASCII: lone surrogates and line separators become escapes; base64 cannot close a script tag.
        plain = json.dumps(found, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii")
        text = base64.b64encode(gzip.compress(plain, 7, mtime=0)).decode("ascii")
        if len(text) <= most_bytes or len(groups) <= 1:
            return Packed(text, sum(len(group["completions"]) for group in groups), total)
        keep = max(1, int(len(groups) * 0.93 * most_bytes / len(text)))
        groups = [groups[index * len(groups) // keep] for index in range(keep)]


def content(record: RunRecord, sources: Sequence[Source], groups: Sequence[Shown]) -> dict[str, Any]:
    """What the page's script gets, see the head of `completions.js`."""
    shown = {group["source"] for group in groups}
    about = [{"source": one.name, "kind": one.kind, "title": one.title} for one in sources if one.name in shown]
    return {"tags": tags_of(record.run.root), "sources": about, "groups": groups}


def _count(source: Source, step: int | None) -> int:
    try:
        return source.count(step)
    except RunDirectoryError as error:
        logger.warning("Left out of the report: %s", error)
        return 0


def _groups(source: Source, step: int | None) -> list[tuple[list[int], Shown]]:
    try:
        return source.groups(step)
    except RunDirectoryError as error:
        logger.warning("Left out of the report: %s", error)
        return []
