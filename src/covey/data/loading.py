"""The entry point: a dataset config and a seed become training rows and held-out sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.config.groups.environment import EnvironmentConfig
from covey.data.columns import Prepared, beginning, check_prompts_differ, find_columns, prepare
from covey.data.holdout import shuffled, split_validation, subsample, test_rows
from covey.data.mixture import blend
from covey.data.needs import RowNeeds
from covey.data.sources.builtin import task_sets
from covey.data.sources.episodes import episode_sets
from covey.data.sources.sources import read_rows
from covey.data.table import SourceRows, Table
from covey.data.written import reading
from covey.errors import DataError
from covey.runlog.names import set_label

if TYPE_CHECKING:
    import datasets

    from covey.config import DatasetConfig


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
    """Those of the notes that make results doubtful: held-out problems that are also trained on."""


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
    needs = RowNeeds(answer_for, environment or EnvironmentConfig(), benchmark)
    if dataset.mixture.datasets:
        train, evaluation = blend(dataset, seed, notes, needs)
    elif dataset.path or dataset.id:
        train, evaluation = _read(dataset, seed, notes, needs)
    elif not dataset.has_source:
        train, evaluation = episode_sets(dataset, seed, needs.environments)
    else:
        train, evaluation = task_sets(dataset, seed)
    repeats = [note for name, held_out in evaluation.items() for note in _repeats(train, held_out, name)]
    sets = {name: reading(rows.data) for name, rows in evaluation.items()}
    notes = list(dict.fromkeys([*notes, *repeats]))
    return LoadedData(reading(train.data), sets, notes, frozenset(repeats))


def _read(dataset: DatasetConfig, seed: int, notes: list[str], needs: RowNeeds) -> tuple[Prepared, dict[str, Prepared]]:
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
    return prepared, evaluation


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
