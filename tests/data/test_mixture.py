"""Mixtures: what a weight means, how long an epoch is, what is held out, and columns that must fit together.

Pinned here: `fraction` equals, row for row, what open-r1 does with the datasets library; `share` fills an epoch as long
as all sets together by the weights, repeating evenly; held-out rows are never trained on, repeats or not.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest

from covey import data
from covey.config import DatasetConfig, MixtureConfig
from covey.data.mixture import make_plan
from covey.errors import DataError
from data_files import write_jsonl


def rows_of(name: str, count: int) -> list[dict[str, Any]]:
    return [{"problem": f"{name} {i}", "answer": i} for i in range(count)]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    sizes = {"a": 60, "b": 20, "c": 10}
    return {name: str(write_jsonl(tmp_path / f"{name}.jsonl", rows_of(name, n))) for name, n in sizes.items()}


def mixed(
    sets: list[dict[str, Any]], options: dict[str, Any] | None = None, seed: int = 0, **keys: Any
) -> data.LoadedData:
    keys = {"test_size": 0, **keys}
    return data.load(DatasetConfig(mixture=MixtureConfig(datasets=sets, **(options or {})), **keys), seed)


def problems(rows: datasets.Dataset) -> list[str]:
    return list(rows["problem"])


def names(rows: datasets.Dataset) -> Counter[str]:
    return Counter(text.split()[0] for text in problems(rows))


# Weights


def test_shares_fill_an_epoch_of_all_sets_together(files: dict[str, str]) -> None:
    loaded = mixed([{"path": files["a"], "weight": 1}, {"path": files["b"], "weight": 2}])
    assert names(loaded.train) == {"a": 27, "b": 53}  # 80 rows; 26.67 and 53.33: the larger remainder is rounded up
    counts = Counter(problems(loaded.train))
    assert {counts[f"b {i}"] for i in range(20)} == {2, 3}  # 53 = 2 · 20 + 13, evenly
    assert sum(counts[f"b {i}"] == 3 for i in range(20)) == 13
    assert {counts[f"a {i}"] for i in range(60)} == {0, 1}
    assert problems(loaded.train)[:53] != sorted(problems(loaded.train))[-53:]  # not one set after the other
    assert len(loaded.notes) == 1
    assert "an epoch of the mixture has 80 rows: 27 of" in loaded.notes[0]
    assert "(66.2%; 20 of its 20 rows, so each comes 2.65 times)" in loaded.notes[0]


def test_a_missing_weight_is_one_and_without_weights_every_row_comes_once(files: dict[str, str]) -> None:
    one = mixed([{"path": files["a"]}, {"path": files["b"], "weight": 3}])
    assert names(one.train) == {"a": 20, "b": 60}
    none = mixed([{"path": files["a"]}, {"path": files["b"]}, {"path": files["c"]}])
    assert sorted(problems(none.train)) == sorted(
        f"{n} {i}" for n, c in (("a", 60), ("b", 20), ("c", 10)) for i in range(c)
    )


@pytest.mark.parametrize("test_split_size", [None, 0.25, 17])
def test_fractions_give_the_rows_that_open_r1_trains_on(files: dict[str, str], test_split_size: float | None) -> None:
    seed = 42
    weights = {"a": 0.33, "b": 1.0, "c": None}
    sizes = {"a": 60, "b": 20, "c": 10}
    kept = []
    for name, weight in weights.items():
        rows = datasets.Dataset.from_list(rows_of(name, sizes[name]))
        share = 1.0 if weight is None else weight  # open-r1 takes a missing weight for 1.0
        kept.append(rows.shuffle(seed=seed).select(range(int(len(rows) * share))))
    expected = datasets.concatenate_datasets(kept).shuffle(seed=seed)
    expected_test = None
    if test_split_size is not None:
        split = expected.train_test_split(test_size=test_split_size, seed=seed)
        expected, expected_test = split["train"], split["test"]
    loaded = mixed(
        [{"path": files[name], "weight": weight} for name, weight in weights.items()],
        {"weights": "fraction", "seed": seed, "test_split_size": test_split_size},
    )
    assert problems(loaded.train) == list(expected["problem"])
    assert list(loaded.train["answer"]) == [str(answer) for answer in expected["answer"]]
    assert set(loaded.evaluation) == (set() if test_split_size is None else {"test"})
    if expected_test is not None:
        assert problems(loaded.evaluation["test"]) == list(expected_test["problem"])


def test_the_same_seeds_give_the_same_blend(files: dict[str, str]) -> None:
    sets = [{"path": files["a"], "weight": 1}, {"path": files["b"], "weight": 1}]
    first = mixed(sets, {"seed": 3, "test_split_size": 0.1}, validation_fraction=0.1)
    again = mixed(sets, {"seed": 3, "test_split_size": 0.1}, validation_fraction=0.1)
    other = mixed(sets, {"seed": 4, "test_split_size": 0.1}, validation_fraction=0.1)
    assert first.train.to_list() == again.train.to_list()
    assert first.train.to_list() != other.train.to_list()
    assert problems(first.evaluation["test"]) == problems(again.evaluation["test"])
    assert problems(first.evaluation["test"]) != problems(other.evaluation["test"])
    run = mixed(sets, {"seed": 3, "test_split_size": 0.1}, seed=9, validation_fraction=0.1)
    assert problems(run.evaluation["test"]) == problems(first.evaluation["test"])  # the blend's seed, not the run's


# Holding out


@pytest.mark.parametrize(
    ("options", "keys", "test", "validation"),
    [
        ({"test_split_size": 0.25}, {}, 20, 0),
        ({"test_split_size": 7}, {}, 7, 0),
        ({}, {"test_size": 5}, 5, 0),
        ({}, {"test_size": 256}, 16, 0),  # a fifth at most
        ({}, {"test_fraction": 0.5}, 40, 0),
        ({"test_split_size": 0.25}, {"validation_fraction": 0.1}, 20, 6),
    ],
)
def test_held_out_rows_are_not_trained_on(
    files: dict[str, str], options: dict[str, Any], keys: dict[str, Any], test: int, validation: int
) -> None:
    sets = [{"path": files["a"], "weight": 1}, {"path": files["b"], "weight": 4}]
    loaded = mixed(sets, options, **keys)
    held_out = {name: problems(rows) for name, rows in loaded.evaluation.items()}
    assert {name: len(rows) for name, rows in held_out.items()} == {
        name: count for name, count in (("test", test), ("validation", validation)) if count
    }
    every = [text for texts in held_out.values() for text in texts]
    assert len(every) == len(set(every))
    assert not set(every) & set(problems(loaded.train))
    assert len(loaded.train) == 80 - test - validation
    assert not any("by heart" in note for note in loaded.notes)


def test_train_fraction_and_max_train_samples_cut_the_blend(files: dict[str, str]) -> None:
    sets = [{"path": files["a"], "weight": 1}, {"path": files["b"], "weight": 1}]
    whole = problems(mixed(sets).train)
    assert problems(mixed(sets, max_train_samples=9).train) == whole[:9]
    half = problems(mixed(sets, train_fraction=0.5).train)
    assert len(half) == 40
    positions = iter(whole)
    assert all(text in positions for text in half)  # in the blend's order


# Columns


def test_sets_of_different_columns_are_kept_and_renamed_to_blend(tmp_path: Path) -> None:
    a = write_jsonl(
        tmp_path / "a.jsonl", [{"question": f"a {i}", "answer": f"long\n#### {i}", "x": 1} for i in range(8)]
    )
    b = write_jsonl(
        tmp_path / "b.jsonl", [{"problem": f"b {i}", "reward_model": {"ground_truth": str(i)}} for i in range(8)]
    )
    loaded = mixed(
        [
            {"path": str(a), "columns": {"question": "problem", "answer": "answer"}, "answer_extractor": "gsm8k"},
            {"path": str(b), "columns": {"problem": "problem", "reward_model.ground_truth": "answer"}},
        ]
    )
    assert {row["problem"]: row["answer"] for row in loaded.train} == {
        f"{n} {i}": str(i) for n in "ab" for i in range(8)
    }
    assert loaded.train.column_names == ["prompt", "answer", "problem", "original_answer"]
    assert {row["original_answer"] for row in loaded.train if row["problem"].startswith("b")} == {None}


def test_the_error_of_different_columns_shows_both(tmp_path: Path, files: dict[str, str]) -> None:
    b = str(write_jsonl(tmp_path / "x.jsonl", [{"question": "q", "answer": 1, "level": 2}] * 3))
    message = error([{"path": files["a"]}, {"path": b}])
    assert f"{files['a']} has answer, problem; {b} has answer, level, question." in message
    assert "`columns` in dataset.mixture.datasets[0] or [1]" in message
    message = error([{"path": files["a"], "columns": ["problem", "anwser"]}, {"path": b}])
    assert "dataset.mixture.datasets[0].columns names 'anwser', but" in message
    assert "has problem, answer" in message
    message = error([{"path": files["a"], "columns": {"problem": "answer", "answer": "answer"}}])
    assert "gives the name 'answer' to more than one column" in message


def test_the_error_of_clashing_types_names_the_column(tmp_path: Path) -> None:
    sets = [
        {"path": str(write_jsonl(tmp_path / f"{i}.jsonl", [{"problem": "p", "answer": 1, "level": level}] * 2))}
        for i, level in enumerate((3, "hard"))
    ]
    message = error(sets)
    assert "Column 'level' is of different types" in message
    assert "int64 in set 0: " in message
    assert "string in set 1: " in message


# Errors


def error(sets: list[dict[str, Any]], options: dict[str, Any] | None = None, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        mixed(sets, options, **keys)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_and_sizes_that_leave_nothing(files: dict[str, str]) -> None:
    a, c = files["a"], files["c"]
    message = error([{"path": a}, {"path": c, "weight": 0.05}], {"weights": "fraction"})
    assert f"The weight 0.05 of {c} keeps none of its 10 rows" in message
    message = error([{"path": a, "weight": 1000}, {"path": c, "weight": 1}])
    assert f"The weight 1 of {c} is less than one of the 70 training rows" in message
    message = error([{"path": a}, {"path": c}], {"test_split_size": 70})
    assert "test_split_size=70 of the 70 rows of the mixture leaves no row to train on" in message
    message = error([{"path": a}, {"path": c}], {"test_split_size": 0.01})
    assert "leaves no row to evaluate on" in message
    message = error([{"path": a}, {"path": c}], train_fraction=0.01)
    assert "dataset.train_fraction=0.01 of the 70 training rows of the mixture is less than one row" in message


@pytest.mark.parametrize("weight", [0, -1, 1.5])
def test_invalid_weights(files: dict[str, str], weight: float) -> None:
    with pytest.raises(Exception, match=r"dataset\.mixture\.datasets\[1\]\.weight") as caught:
        MixtureConfig(datasets=[{"path": files["a"]}, {"path": files["b"], "weight": weight}], weights="fraction")
    assert "out of range" in str(caught.value)


def test_errors_of_missing_sources_name_their_key(files: dict[str, str], tmp_path: Path) -> None:
    message = error([{"path": files["a"]}, {"path": str(tmp_path / "d.jsonl")}])
    assert message.startswith(f"dataset.mixture.datasets[1].path={tmp_path / 'd.jsonl'}: there is no such file")
    message = error([{"id": "covey-test/no-such-set"}])
    assert "dataset.mixture.datasets[0].id=covey-test/no-such-set could not be loaded" in message


def test_the_error_of_a_row_without_an_answer_names_it(files: dict[str, str], tmp_path: Path) -> None:
    bad = write_jsonl(tmp_path / "bad.jsonl", [*rows_of("d", 3), {"problem": "d", "answer": ""}])
    message = error([{"path": files["a"]}, {"path": str(bad)}])
    assert f"1 of 4 rows of {bad} have no answer that can be read from column 'answer' (line 4: \"\")" in message


# The plan


@pytest.mark.parametrize("weights", [(1, 1, 1), (5, 3, 2), (0.5, 0.3, 0.2), (1, 10, 100)])
def test_shares_are_kept_to_the_row(weights: tuple[float, ...]) -> None:
    sizes = (700, 250, 51)
    mixture = MixtureConfig(datasets=[{"path": "x", "weight": weight} for weight in weights])
    plan = make_plan(sizes, ["x"] * 3, DatasetConfig(mixture=mixture, test_size=0), seed=0)
    assert len(plan.train) == sum(sizes)
    drawn = Counter(number for number, _ in plan.train)
    for number, weight in enumerate(weights):
        assert abs(drawn[number] - sum(sizes) * weight / sum(weights)) < 1
        per_row = Counter(row for own, row in plan.train if own == number)
        assert max(per_row.values()) - min(per_row.get(row, 0) for row in range(sizes[number])) <= 1
