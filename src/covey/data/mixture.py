"""Several datasets blended into one.

`dataset.mixture.weights` sets the meaning of a weight and the length of an epoch:

- `share`: an epoch has as many rows as all sets together, and each set fills its share of them. The rows of a set that
  is smaller than its share are repeated (equally often, plus or minus one); of a larger set a part is drawn with the
  seed. So weights change the composition of an epoch and not its cost, and a small set does not shrink the mixture.
  Without any weights each set is taken whole, once.
- `fraction`: the fraction of each set that is kept; no row is repeated. The rows are exactly those of open-r1's
  mixtures: each set is shuffled and cut, all are joined and shuffled, then `test_split_size` is held out (one seed).

Rows are held out before any is repeated, so no held-out row is trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.data.columns import Prepared, RowNeeds, check_prompts_differ, find_columns, prepare
from covey.data.holdout import rounded_share, split_validation, subsample, test_rows
from covey.data.sources import read_source
from covey.data.table import Table, combine, dataset_of
from covey.errors import DataError
from covey.runlog.completions import is_json

if TYPE_CHECKING:
    import datasets

    from covey.config import DatasetConfig, MixtureConfig, MixtureSource


Pick = tuple[int, int]
"""A row: the number of its set, and its index in that set."""

_NAME = "the mixture"


@dataclass(frozen=True, slots=True)
class MixtureSplit:
    """Which rows go where, in their order."""

    train: list[Pick]
    test: list[Pick]
    validation: list[Pick]


def blend(dataset: DatasetConfig, seed: int, notes: list[str], needs: RowNeeds) -> tuple[Prepared, dict[str, Prepared]]:
    """Read the datasets of `dataset.mixture` and blend them.

    Args:
        dataset: the mixture, and how rows are prepared and held out.
        seed: draws the rows of `train_fraction`; `validation` has `dataset.seed`, the rest `dataset.mixture.seed`.
        notes: messages for the user are appended to it.
        needs: of the run, see `find_columns`.

    Returns:
        Training rows, and held-out rows by name (`test`, `validation`).

    Raises:
        DataError: a set cannot be read, the columns do not fit together, or a set is left without rows.
    """
    sources = dataset.mixture.sources
    tables = []
    for number, source in enumerate(sources):
        key = f"dataset.mixture.datasets[{number}]"
        table = _project(read_source(source, key, dataset, notes), source, key)
        check_prompts_differ(table, find_columns(table, dataset, needs), dataset, needs)
        tables.append(table)
    first = tables[0]
    for number, table in enumerate(tables[1:], start=1):
        if set(table.columns) != set(first.columns):
            raise DataError(
                f"The datasets of the mixture have different columns: {first.name} has "
                f"{', '.join(sorted(first.columns))}; {table.name} has {', '.join(sorted(table.columns))}. Keep and "
                "rename columns so that they are the same, with `columns` in dataset.mixture.datasets[0] or "
                f"[{number}]: a list of names, or {{old name: new name}}."
            )
    names = [table.name for table in tables]
    plan = make_plan([len(table) for table in tables], names, dataset, seed)
    _note_shares(plan.train, tables, notes)
    rows, index = _prepare(tables, sources, [*plan.train, *plan.test, *plan.validation], dataset, notes, needs)
    if plan.test and dataset.mixture.test_split_size is None:
        notes.append(f"{len(plan.test)} rows of the mixture are held out for evaluation")
    held_out = {name: picks for name, picks in (("test", plan.test), ("validation", plan.validation)) if picks}
    evaluation = {name: rows.select([index[pick] for pick in picks]) for name, picks in held_out.items()}
    return rows.select([index[pick] for pick in plan.train]), evaluation


def make_plan(sizes: Sequence[int], names: Sequence[str], dataset: DatasetConfig, seed: int) -> MixtureSplit:
    """Choose rows by the rules in the module's docstring.

    Args:
        sizes: rows of each set.
        names: the name of each set in messages.
        dataset: the mixture's weights and seed, and what is held out.
        seed: of the run.

    Raises:
        DataError: a weight leaves a set without rows, or nothing is left to train or to evaluate on.
    """
    mixture = dataset.mixture
    weights = [source.weight for source in mixture.sources]
    pool: list[Pick] = []
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        pool += [(number, row) for row in _kept(size, weight, mixture, names[number])]
    pool = [pool[i] for i in _permuted(len(pool), mixture.seed)]
    rest, test = _hold_out_test(pool, dataset)
    stay, chosen = split_validation(len(rest), dataset, _NAME)
    validation = [rest[i] for i in chosen]
    train = [rest[i] for i in stay]
    if mixture.weights == "share" and any(weight is not None for weight in weights):
        train = _fill_shares(train, [1.0 if weight is None else weight for weight in weights], names, mixture.seed)
    return MixtureSplit([train[i] for i in subsample(len(train), dataset, seed, _NAME)], test, validation)


def _kept(size: int, weight: float | None, mixture: MixtureConfig, name: str) -> Sequence[int]:
    """The rows of one set that are in the mixture: the fraction that its weight gives, or all."""
    if mixture.weights != "fraction":
        return range(size)
    weight = 1.0 if weight is None else weight
    count = int(size * weight)  # rounded as open-r1 rounds it
    if count == 0:
        raise DataError(
            f"The weight {weight:g} of {name} keeps none of its {size} rows: with dataset.mixture.weights=fraction a "
            f"weight is the fraction of a set that is kept. One row is {1 / size:.3g}."
        )
    return _permuted(size, mixture.seed)[:count]


def _hold_out_test(pool: list[Pick], dataset: DatasetConfig) -> tuple[list[Pick], list[Pick]]:
    """Training rows and held-out rows of the shuffled pool."""
    size = dataset.mixture.test_split_size
    if size is None:
        count = test_rows(len(pool), dataset, _NAME)
        return pool[count:], pool[:count]
    if (size < 1 and rounded_share(len(pool), size) == 0) or size >= len(pool):
        left = "no row to evaluate on" if size < 1 else "no row to train on"
        raise DataError(
            f"dataset.mixture.test_split_size={size:g} of the {len(pool)} rows of the mixture leaves {left}."
        )
    split = _numbered(len(pool)).train_test_split(test_size=size if size < 1 else int(size), seed=dataset.mixture.seed)
    train, test = ([pool[i] for i in split[name]["row"]] for name in ("train", "test"))
    return train, test


def _fill_shares(rows: list[Pick], weights: Sequence[float], names: Sequence[str], seed: int) -> list[Pick]:
    """As many rows, of which each set fills its share, with repeats where needed; shuffled."""
    filled: list[Pick] = []
    for number, count in enumerate(_apportion(len(rows), weights)):
        own = [pick for pick in rows if pick[0] == number]
        if not own:
            raise DataError(f"All rows of {names[number]} are held out, so none is left for its share of the mixture.")
        if count == 0:
            raise DataError(
                f"The weight {weights[number]:g} of {names[number]} is less than one of the {len(rows)} training rows "
                f"of the mixture. One row is a weight of {sum(weights) / len(rows):.3g}."
            )
        times, more = divmod(count, len(own))
        filled += own * times + own[:more]
    return [filled[i] for i in _permuted(len(filled), seed)]


def _apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the weights that sum to `total`: the largest remainders are rounded up."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(value) for value in exact]
    order = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _project(table: Table, source: MixtureSource, key: str) -> Table:
    """Only the columns that `columns` names, under their new names."""
    if source.columns is None:
        return table
    columns = source.columns if isinstance(source.columns, dict) else {name: name for name in source.columns}
    missing = [name for name in columns if not table.has(name)]
    if missing:
        raise DataError(
            f"{key}.columns names {', '.join(map(repr, missing))}, but {table.name} has {', '.join(table.columns)}."
        )
    twice = [name for name, count in Counter(columns.values()).items() if count > 1]
    if twice:
        raise DataError(f"{key}.columns gives the name {', '.join(map(repr, twice))} to more than one column.")
    return table.project(columns)


def _prepare(
    tables: Sequence[Table],
    sources: Sequence[MixtureSource],
    picks: Sequence[Pick],
    dataset: DatasetConfig,
    notes: list[str],
    needs: RowNeeds,
) -> tuple[Prepared, dict[Pick, int]]:
    """Every picked row, once, and the index of each."""

    index: dict[Pick, int] = {}
    sets: dict[str, Prepared] = {}
    for number, (table, source) in enumerate(zip(tables, sources, strict=True)):
        chosen = sorted({row for set_number, row in picks if set_number == number})
        if chosen:  # a small `max_train_samples` can leave a set out
            index |= {(number, row): len(index) + i for i, row in enumerate(chosen)}
            sets[f"{number}: {table.name}"] = prepare(
                table.select(chosen), dataset, notes, source.answer_extractor, needs=needs
            )
    _check_types(sets)
    try:
        arrow = combine([rows.data.with_format("arrow")[:] for rows in sets.values()])
    except TypeError as error:
        raise DataError(f"The columns of the datasets of the mixture cannot be combined: {error}.") from error
    places = [f"{table.name}, {table.place(row)}" for table, row in ((tables[n], row) for n, row in index)]
    questions = [question for rows in sets.values() for question in rows.questions]
    return Prepared(dataset_of(arrow), questions, places.__getitem__), index


def _check_types(sets: Mapping[str, Prepared]) -> None:
    """Refuse a column that holds, say, numbers in one set and text in another; lists, objects and values of several
    kinds are kept as they are."""
    import pyarrow as pa

    for column in dict.fromkeys(name for rows in sets.values() for name in rows.data.column_names):
        there = {name: rows for name, rows in sets.items() if column in rows.data.column_names}
        kinds = {name: rows.data.data.schema.field(column) for name, rows in there.items()}
        if any(is_json(kind) or pa.types.is_nested(kind.type) for kind in kinds.values()):
            continue
        try:
            pa.unify_schemas([pa.schema([kind]) for kind in kinds.values()], promote_options="permissive")
        except pa.ArrowException as error:
            shown = "; ".join(f"{kind.type} in set {name}" for name, kind in kinds.items())
            raise DataError(
                f"Column '{column}' is of different types in the datasets of the mixture: {shown}. Leave it out with "
                "`columns` (a list of the names to keep), or make the types the same."
            ) from error


def _note_shares(train: Sequence[Pick], tables: Sequence[Table], notes: list[str]) -> None:
    drawn = Counter(number for number, _ in train)
    distinct = Counter(number for number, _ in set(train))
    parts = []
    for number, table in enumerate(tables):
        times = drawn[number] / distinct[number] if distinct[number] else 1
        again = f", so each comes {times:.3g} times" if times > 1 else ""
        parts.append(
            f"{drawn[number]} of {table.name} ({drawn[number] / len(train):.1%}; {distinct[number]} of its "
            f"{len(table)} rows{again})"
        )
    notes.append(f"an epoch of the mixture has {len(train)} rows: {', '.join(parts)}")


def _permuted(count: int, seed: int) -> list[int]:
    """The order in which `Dataset.shuffle(seed)` puts this many rows."""
    return list(_numbered(count).shuffle(seed=seed)["row"])


def _numbered(count: int) -> datasets.Dataset:
    import datasets

    return datasets.Dataset.from_dict({"row": range(count)})
