"""The group `dataset`: which problems are trained on and held out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from covey.config.values import BadKeyError, Group, check_choice, option, show

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""Suffixes of compressed files, with PyArrow's names of the codecs."""
DATA_FILES = tuple(
    kind + packed for kind in (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet") for packed in ("", *COMPRESSED)
)
"""Suffixes of data files."""


def without_suffix(file: str) -> str:
    """The name of a data file without its folder and suffix, or that of a folder."""
    name = Path(file).resolve().name
    return next((name[: -len(suffix)] for suffix in reversed(DATA_FILES) if name.lower().endswith(suffix)), name)


MAX_PROBLEMS = 1_000_000
"""Most problems of a built-in task; generating so many takes about half a minute and 2 GB."""

TAKEN_NAMES = (
    *("prompts", "completions", "completion", "completion_ids", "trainer_state", "log_extra", "log_metric"),
    *("environment", "environments", "image", "images"),
)
"""Names that TRL uses for arguments of rewards or for images; such columns are renamed."""
RENAMED = "original_"
"""The prefix of a column that is renamed: one of these, or a prompt or answer that differs from the one made of it."""


_OF_NUMBERS = "dataset.task in ('arithmetic', 'countdown')"
_OF_MODES = "dataset.task in ('countdown', 'graph_coloring')"
_OF_GRAPHS = "dataset.task == 'graph_coloring'"
_OF_MIXTURES = "dataset.mixture.datasets"
_OF_ROWS = "dataset.has_rows"
_WITH_SPLITS = "dataset.path or dataset.id"
_HOLDS_OUT = "not dataset.mixture.datasets or dataset.validation_fraction or environment.factory"


def name_in_file(column: str) -> str:
    """The name that a column of the training rows has in the user's file."""
    name = column.removeprefix(RENAMED)
    return name if name in (*TAKEN_NAMES, "prompt", "answer") else column


@dataclass(frozen=True, kw_only=True)
class DifficultyConfig(Group):
    """What the problems of a built-in task look like."""

    PREFIX: ClassVar[str] = "dataset.difficulty."
    LIVE: ClassVar[str] = "not dataset.path and not dataset.library"

    min_digits: int = option(2, low=1, high=18, live=_OF_NUMBERS)
    """Fewest digits of an operand."""
    max_digits: int = option(4, low=1, high=18, live=_OF_NUMBERS)
    """Most digits of an operand."""
    min_operands: int = option(2, low=2, high=16, live=_OF_NUMBERS)
    """Fewest operands of a problem."""
    max_operands: int = option(2, low=2, high=16, live=_OF_NUMBERS)
    """Most operands of a problem."""
    operators: tuple[str, ...] = option(("+", "-"), choices=("+", "-", "*", "/"), live=_OF_NUMBERS)
    """Operators that problems are made with; `/` only in countdown."""
    allow_negative: bool = option(False, live=_OF_NUMBERS)
    """Whether an answer may be below zero."""
    min_vertices: int = option(5, low=4, high=12, live=_OF_GRAPHS)
    """Fewest vertices of a graph, in graph_coloring; graphs of four leave more to chance than its problems may."""
    max_vertices: int = option(8, low=4, high=12, live=_OF_GRAPHS)
    """Most vertices of a graph, in graph_coloring."""
    min_modes: int | None = option(None, low=1, live=_OF_MODES)
    """Fewest different right answers of a problem, in countdown (of at most five numbers) and graph_coloring; null
    means any number in countdown, and 2 in graph_coloring."""
    max_modes: int | None = option(None, low=1, live=_OF_MODES)
    """Most of them; null means any number in countdown, and 16 in graph_coloring."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("digits", "operands", "vertices", "modes"):
            low, high = f"min_{what}", f"max_{what}"
            least, most = getattr(self, low), getattr(self, high)
            if None not in (least, most) and least > most:
                raise BadKeyError(self.PREFIX + low, f"={least} must not be above {self.PREFIX}{high}={most}.")
        if not self.operators:
            raise BadKeyError(self.PREFIX + "operators", "=[] is empty: name one or more of +, -, *, /.")


@dataclass(frozen=True, kw_only=True)
class HardDifficultyConfig(DifficultyConfig):
    """What the harder held-out problems of a built-in task look like."""

    PREFIX: ClassVar[str] = "dataset.hard_difficulty."
    LIVE: ClassVar[str] = "dataset.hard_size > 0 and not dataset.path and not dataset.library"

    min_digits: int = option(5, low=1, high=18, live=_OF_NUMBERS)
    max_digits: int = option(5, low=1, high=18, live=_OF_NUMBERS)


@dataclass(frozen=True, kw_only=True)
class MixtureSource(Group):
    """One of the datasets of a mixture."""

    PREFIX: ClassVar[str] = "dataset.mixture.datasets."

    id: str | None = None
    """A dataset on the Hugging Face hub."""
    path: str | None = None
    """A local file or folder, or `kaggle://owner/name[/file]`, in place of `id`."""
    config: str | None = None
    """Configuration of the hub dataset, where it has several."""
    revision: str | None = None
    """Branch, tag or commit of the hub dataset."""
    split: str = "train"
    """The split to read."""
    columns: tuple[str, ...] | dict[str, str] | None = None
    """Columns to keep, or `{old name: new name}` to keep and rename them; null keeps all."""
    weight: float | None = option(None, above=0, high=1e9)
    """Its share or fraction, as `dataset.mixture.weights` says; null means 1."""
    answer_extractor: str | None = None
    """Where its answers are found, in place of `dataset.answer_extractor`."""


@dataclass(frozen=True, kw_only=True)
class MixtureConfig(Group):
    """Several datasets blended into one; an empty list means there is no mixture."""

    PREFIX: ClassVar[str] = "dataset.mixture."

    datasets: list[dict] = field(default_factory=list)  # type: ignore[type-arg]
    """The datasets: each `{id or path, config, split, columns, weight}`."""
    weights: str = option("share", choices=("share", "fraction"), live=_OF_MIXTURES)
    """What a weight is: a set's share of the rows of an epoch, which has as many as all sets together (`share`; without
    weights every set is used whole, once), or the fraction of the set to keep (`fraction`)."""
    seed: int = option(0, low=0, live=_OF_MIXTURES)
    """Seed of drawing and shuffling the rows, and of those held out as `test`, in place of `dataset.seed`."""
    test_split_size: float | None = option(None, above=0, live=_OF_MIXTURES)
    """Rows of the mixture to hold out: a share below 1, or a number of rows; null derives it from
    `dataset.test_fraction` or `dataset.test_size`."""

    @property
    def sources(self) -> tuple[MixtureSource, ...]:
        """The datasets, checked."""
        return tuple(_source(number, dict(item)) for number, item in enumerate(self.datasets))

    def __post_init__(self) -> None:
        super().__post_init__()
        for number, source in enumerate(self.sources):
            key = f"dataset.mixture.datasets[{number}]"
            if (source.id is None) == (source.path is None):
                raise BadKeyError(key, " needs one of id (a name on the hub) and path (a local file or folder).")
            if self.weights == "fraction" and source.weight is not None and source.weight > 1:
                raise BadKeyError(
                    f"{key}.weight",
                    f"={show(source.weight)} is out of range: with dataset.mixture.weights=fraction it "
                    "is the fraction of the set that is kept, at most 1.",
                )
            if source.columns is not None and not source.columns:
                raise BadKeyError(f"{key}.columns", " is empty: name the columns to keep, or null to keep all.")
            if source.answer_extractor is not None:
                _check_extractor(source.answer_extractor, f"{key}.answer_extractor")
        size = self.test_split_size
        if size is not None and size >= 1 and size != int(size):
            raise BadKeyError(
                "dataset.mixture.test_split_size",
                f"={show(size)} is neither a share of the rows (below 1) nor an integer of them.",
            )


def _source(number: int, values: Mapping[str, Any]) -> MixtureSource:
    key = f"dataset.mixture.datasets[{number}]"
    known = [item.name for item in fields(MixtureSource)]
    for name in values:
        if name not in known:
            raise BadKeyError(f"{key}.{name}", f" is not a key of a mixture's dataset; those are: {', '.join(known)}.")
    try:
        return MixtureSource(**values)
    except BadKeyError as problem:
        inside = problem.key.removeprefix(MixtureSource.PREFIX)
        raise BadKeyError(f"{key}.{inside}", problem.text) from None


TASKS = ("arithmetic", "countdown", "graph_coloring")
"""The built-in tasks."""
LIBRARIES = ("reasoning_gym",)
"""Libraries that make problems of many tasks."""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Group):
    """Which problems are trained on and held out.

    The source is one of `task`, `id`, `path` and `mixture`; `path` overrides `id`, and `task=countdown`, whose problems
    can also come from a file. Without a source, an environment (`environment.factory`) makes the prompts.
    """

    PREFIX: ClassVar[str] = "dataset."

    task: str | None = None
    """A built-in task, `arithmetic`, `countdown` or `graph_coloring`; or one of `dataset.library`."""
    library: str | None = option(None, choices=LIBRARIES)
    """The library whose task `dataset.task` is; null means Covey's own tasks."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of a library's task, as in `{min_terms: 2}`."""
    hard_settings: dict[str, Any] = field(default_factory=dict, metadata={"live": "dataset.hard_size > 0"})
    """Settings of its harder held-out problems, in addition to `dataset.settings`."""
    id: str | None = option(None, live="not dataset.path")
    """A dataset on the Hugging Face hub."""
    path: str | None = None
    """A local json, jsonl, csv or parquet file, a folder of such files, a folder saved by the datasets library, or
    `kaggle://owner/name[/file]`; overrides `id`."""
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    """Several datasets blended into one, in place of the other sources."""
    streaming: bool = option(False, live="dataset.id and not dataset.path or dataset.mixture.datasets")
    """Whether to read a hub dataset row by row instead of downloading all of it; `max_train_samples` bounds it and
    must be set."""
    test_path: str | None = None
    """A local file or folder with the held-out problems that belong to `path`."""
    config: str | None = option(None, live=_WITH_SPLITS)
    """Configuration of the hub dataset (its subset), where it has several."""
    revision: str | None = option(None, live="dataset.id and not dataset.path")
    """Branch, tag or commit of the hub dataset."""
    train_split: str = option("train", live=_WITH_SPLITS)
    """The split that is trained on."""
    test_split: str | None = option("test", live=_WITH_SPLITS)
    """The split held out for evaluation; null holds out rows of the training split."""
    prompt_column: str | None = option(None, live=_OF_ROWS)
    """The column that holds the problem; null looks for one under the usual names."""
    answer_column: str | None = option(None, live=_OF_ROWS)
    """The column that holds the answer or the worked solution; null looks for one under the usual names."""
    answer_extractor: str = option("none", live=_OF_ROWS)
    r"""Where the answer is found in the column: all of it (`none`), after `####` (`gsm8k`), in `\boxed{}` (`boxed`), in
    `<answer>` tags (`answer_tag`), or by a regular expression (`regex:...`, its first group or the whole match)."""
    system_prompt: str | None = None
    """A system message put before every problem."""
    user_prompt_template: str | None = None
    """Template of the user's message; `{prompt}` is replaced by the problem."""
    max_train_samples: int | None = option(None, low=1)
    """Train on the first so many rows only."""
    max_prompt_length: int | None = option(None, low=1)
    """Longest prompt in tokens, chat template included, tools and what an environment adds not; null means any."""
    overlong_prompts: str = option("drop", choices=("drop", "truncate"), live="dataset.max_prompt_length")
    """What happens to longer prompts: drop their rows, or cut off their beginning. Both are counted."""
    train_fraction: float = option(1.0, above=0, high=1)
    """Train on this share of the training rows only, after rows were held out."""
    validation_fraction: float = option(0.0, low=0)
    """Share of the training rows held out for evaluation in training, besides the test split; 0 means none."""
    test_fraction: float | None = option(None, above=0, live="dataset.has_rows and not dataset.mixture.test_split_size")
    """Share of the training rows held out where there is no test split; null holds out `test_size` rows."""
    test_size: int = option(256, low=0)
    """Most held-out problems."""
    seed: int = option(0, low=0, live=_HOLDS_OUT)
    """Seed of all that is held out (`test`, `hard`, `single`, `validation`, and the starts of their episodes), so that
    runs with other values of `seed` meet the same problems; a mixture's `test` is drawn with `dataset.mixture.seed`."""
    train_size: int = option(8192, low=1, live="not dataset.has_rows")
    """Number of training problems that a built-in task generates; without a source, of episodes in an epoch."""
    hard_size: int = option(0, low=0, live="dataset.task and not dataset.path")
    """Size of the harder held-out set of a built-in task; 0 means none."""
    single_size: int = option(0, low=0)
    """Size of a held-out set of countdown or graph_coloring whose problems have one right answer each, as a control for
    those with several; 0 means none."""
    difficulty: DifficultyConfig = field(default_factory=DifficultyConfig)
    """What the problems of a built-in task look like."""
    hard_difficulty: DifficultyConfig = field(default_factory=HardDifficultyConfig)
    """What the harder held-out problems look like."""

    @property
    def has_source(self) -> bool:
        """Whether there are rows; without, an environment makes the prompts."""
        return bool(self.task or self.path or self.id or self.mixture.datasets)

    @property
    def has_rows(self) -> bool:
        """Whether rows are read, rather than made by a task or an environment."""
        return bool(self.path or self.id or self.mixture.datasets)

    @property
    def label(self) -> str:
        """A short name of the source, without slashes: for titles and run names."""
        if self.mixture.datasets:
            return "mixture"
        if self.path:
            return Path(self.path).stem
        if not self.has_source:
            return "environment"
        return self.task or str(self.id).rpartition("/")[2]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.library is None:
            check_choice("dataset.task", self.task, TASKS)
        elif self.task is None:
            raise BadKeyError("dataset.library", f"={self.library} needs one of its tasks: set dataset.task=NAME.")
        for name in ("settings", "hard_settings"):
            given = getattr(self, name)
            if given and self.library is None:
                raise BadKeyError(
                    f"dataset.{name}",
                    f"={show(given)} is for the tasks of a library (dataset=reasoning_gym); the built-in tasks have "
                    "dataset.difficulty and dataset.hard_difficulty.",
                )
        other = "path" if self.path else "id"
        if self.mixture.datasets and (self.task or self.path or self.id):
            named = "task" if self.task else other
            raise BadKeyError(
                f"dataset.{named}",
                f"={show(getattr(self, named))} and dataset.mixture both name a source: set one of them only.",
            )
        if self.task and (self.id or (self.path and self.task != "countdown")):
            raise BadKeyError(
                f"dataset.{other}",
                f"={show(getattr(self, other))} and dataset.task={self.task} both name a source: to use "
                f"dataset.{other}, set dataset.task=null as well, or choose another group such as dataset=gsm8k.",
            )
        if not (self.path or self.id or self.mixture.datasets):
            for name in ("train_size", "test_size", "hard_size", "single_size"):
                if getattr(self, name) > MAX_PROBLEMS:
                    raise BadKeyError(
                        f"dataset.{name}",
                        f"={getattr(self, name)} is out of range: a built-in task makes all its problems before "
                        f"training, and at most {MAX_PROBLEMS:,}.",
                    )
        if self.single_size and (self.path or self.library or self.task not in TASKS[1:]):
            raise BadKeyError(
                "dataset.single_size",
                f"={self.single_size} is for dataset=countdown and dataset=graph_coloring, whose right answers are all "
                "known.",
            )
        if self.test_path and not self.path:
            raise BadKeyError(
                "dataset.test_path", f"={show(self.test_path)} belongs to dataset.path, which is not set."
            )
        if self.user_prompt_template is not None and "{prompt}" not in self.user_prompt_template:
            raise BadKeyError("dataset.user_prompt_template", " must contain {prompt}, where the problem goes.")
        for name in ("validation_fraction", "test_fraction"):
            share = getattr(self, name)
            if share is not None and share >= 1:
                raise BadKeyError(f"dataset.{name}", f"={show(share)} is out of range: it must be below 1.")
        _check_extractor(self.answer_extractor, "dataset.answer_extractor")


EXTRACTORS = ("none", "gsm8k", "boxed", "answer_tag")
"""Where an answer can be found, besides `regex:...`."""


def _check_extractor(name: str, key: str) -> None:
    if name in EXTRACTORS:
        return
    if not name.startswith("regex:"):
        raise BadKeyError(
            key, f"={show(name)} is not possible: it must be one of {', '.join(EXTRACTORS)} or regex:PATTERN."
        )
    try:
        re.compile(name.removeprefix("regex:"))
    except re.error as error:
        raise BadKeyError(key, f"={show(name)} is not a regular expression: {error}.") from None
