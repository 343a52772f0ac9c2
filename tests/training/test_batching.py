"""Micro-batches: whole groups, trimmed, sorted within an optimiser step, split by tokens, without zero-gradient rows.

Pinned here: which rows go where, by hand and as properties; and that the gradient of every loss type stays the same.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

from batches import PLAIN, WAYS, batching, generation_batch, relative_difference
from covey.config import SpeedConfig
from covey.training.chunks import PLAN, RowShape, split_rows
from covey.training.microbatch import shuffle_groups, sort_within, window
from second_pass import CASES, Case, TwoSteps, two_steps


def rows_of(*completions: int, group: int = 4, has_gradient: bool = True) -> list[RowShape]:
    """Rows of the given lengths after prompts of ten tokens, in groups of `group`."""
    return [RowShape(10, length, length, has_gradient, place // group) for place, length in enumerate(completions)]


def numbers_in(micro: dict[str, Any]) -> list[int]:
    """Which rows of `generation_batch` a micro-batch holds."""
    return [int(number) for number in micro["prompt_ids"].amax(dim=1)]


def test_groups_are_shuffled_whole_and_each_is_as_likely_to_come_first() -> None:
    # row 0 is drawn before row 2, so group 0 comes before group 1
    assert shuffle_groups([0, 0, 1, 1], [3, 0, 2, 1]) == [0, 1, 3, 2]
    orders = [tuple(shuffle_groups([0, 0, 0, 1], permutation)) for permutation in itertools.permutations(range(4))]
    assert sum(order[-1] == 3 for order in orders) == len(orders) // 2  # three rows come first no more often than one
    assert len(set(orders)) == 2 * 6


@pytest.mark.parametrize(
    ("micro_batches", "accumulation", "expected"), [(4, 4, 4), (4, 8, 4), (8, 4, 4), (6, 4, 1), (4, 6, 1), (1, 3, 1)]
)
def test_rows_of_two_optimiser_steps_are_never_sorted_together(
    micro_batches: int, accumulation: int, expected: int
) -> None:
    assert window(micro_batches, accumulation) == expected


def test_sorting_keeps_groups_together_and_every_row_in_its_optimiser_step() -> None:
    rows = rows_of(3, 1, 2, 9, 5, 5, 8, 1, group=2)
    assert sort_within([0, 1, 2, 3, 4, 5, 6, 7], rows, 4) == [3, 2, 0, 1, 6, 7, 4, 5]
    assert sort_within([0, 1, 2, 3, 4, 5, 6, 7], rows, 8) == [3, 2, 6, 7, 4, 5, 0, 1]
    assert sort_within([7, 2, 0, 6, 1, 3, 5, 4], rows, 4) == [6, 7, 0, 2, 3, 5, 4, 1]  # groups cut by the step


@pytest.mark.parametrize(("micro_batches", "accumulation"), [(1, 1), (3, 3), (6, 2), (6, 6), (12, 12)])
def test_micro_batches_are_a_permutation_in_whole_groups_without_needless_padding(
    micro_batches: int, accumulation: int
) -> None:
    for seed in range(10):
        batch = generation_batch(seed, groups=6)
        torch.manual_seed(seed)
        cut = batching(WAYS["trim"], micro_batches, accumulation).split(batch, beta=0.0)
        after = torch.rand(3)
        torch.manual_seed(seed)
        torch.randperm(24)
        assert torch.equal(after, torch.rand(3))  # no other random number is drawn than TRL's permutation
        assert sorted(row for micro in cut for row in numbers_in(micro)) == list(range(1, 25))
        for micro in cut:
            found = numbers_in(micro)
            groups = {(number - 1) // 4 for number in found}
            assert len(groups) == max(len(found) // 4, 1)
            assert micro["prompt_mask"][:, 0].any()
            assert micro["completion_mask"][:, -1].any()
            length, width = micro["prompt_ids"].shape[1], micro["completion_ids"].shape[1]
            original = torch.tensor(found) - 1
            for key, cut_of in (("prompt_ids", slice(9 - length, 9)), ("completion_mask", slice(0, width))):
                assert torch.equal(micro[key], batch[key][original][:, cut_of])
                assert int(micro[key].count_nonzero()) == int(batch[key][original].count_nonzero())
            assert torch.equal(micro["old_per_token_logps"], batch["old_per_token_logps"][original][:, :width])
            assert torch.equal(micro["token_type_ids"], batch["token_type_ids"][original][:, 9 - length : 9 + width])
            assert torch.equal(micro["importance_sampling_ratio"], batch["importance_sampling_ratio"][original])
            assert micro["num_items_in_batch"] == batch["num_items_in_batch"]


def test_length_does_not_decide_in_which_optimiser_step_a_row_is() -> None:
    """Six groups over three optimiser steps: over many seeds the longest group is in each of them as often."""
    seen = [0, 0, 0]
    for seed in range(300):
        batch = generation_batch(0, groups=6)
        longest = int(batch["completion_mask"].sum(dim=1).argmax()) + 1
        torch.manual_seed(seed)
        cut = batching(WAYS["trim"], 6, 2).split(batch, beta=0.0)
        seen[next(place for place, micro in enumerate(cut) if longest in numbers_in(micro)) // 2] += 1
    assert all(70 <= count <= 130 for count in seen)  # 100 ± 3.7 standard deviations


def test_padded_widths_stay_multiples() -> None:
    batch = generation_batch(3, groups=6)
    (micro,) = batching(WAYS["trim"], 1, 1, multiple_of=4).split(batch, beta=0.0)
    assert micro["completion_ids"].shape[1] == 12
    assert micro["prompt_ids"].shape[1] % 4 == 0 or micro["prompt_ids"].shape[1] == 9


@pytest.mark.parametrize("way", ["off", "bnpo"])
def test_rows_stay_where_trl_puts_them(way: str) -> None:
    batch = generation_batch(1, groups=6)
    torch.manual_seed(5)
    expected = split_tensor_dict(shuffle_sequence_dict(batch), 6)
    torch.manual_seed(5)
    if way == "off":
        cut = batching(WAYS["skip"], 6, 6).split(batch, beta=0.1)
        for micro, other in zip(cut, expected, strict=True):
            assert micro.keys() - {PLAN} == other.keys()
            assert all(torch.equal(micro[key], value) for key, value in other.items())
    else:
        cut = batching(WAYS["trim"], 6, 6, loss="bnpo").split(batch, beta=0.0)
        assert [sorted(numbers_in(m)) for m in cut] == [sorted(numbers_in(m)) for m in expected]


def test_an_unknown_tensor_is_not_trimmed(caplog: pytest.LogCaptureFixture) -> None:
    batch = generation_batch(1, groups=2) | {"mine": torch.ones(8, 12)}
    with caplog.at_level(logging.WARNING, logger="covey"):
        (micro,) = batching(WAYS["trim"], 1, 1).split(batch, beta=0.0)
    assert micro["completion_ids"].shape[1] == 12
    assert "mine" in caplog.text


def test_a_token_budget_splits_as_worked_out_by_hand() -> None:
    rows = rows_of(6, 5, 4, 1, 6, 5, 4, 1)  # prompts of ten
    # padded: three rows of 10 + 6 are 48, four would be 64
    assert split_rows(rows, 50, packed=False) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    # packed: a group is 10 + 16, both are 52
    assert split_rows(rows, 52, packed=True) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert split_rows(rows, 50, packed=True) == [[0, 1, 2, 3], [4, 5, 6, 7]]  # rather than within the second group
    assert split_rows(rows, 25, packed=True) == [[0, 1, 2], [3], [4, 5, 6], [7]]
    assert split_rows(rows, 3, packed=True) == [[place] for place in range(8)]
    assert split_rows(rows, None, packed=False, at_least=3) == [[0, 1], [2, 3], [4, 5, 6, 7]]
    mixed = [row._replace(has_gradient=place % 2 == 0) for place, row in enumerate(rows)]
    assert split_rows(mixed, 48, packed=False) == [[0, 2, 4], [6]]
    assert split_rows(rows_of(1, 2, has_gradient=False), 48, packed=False) == []


@pytest.fixture(scope="module")
def plain_steps(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two steps over the same completions as TRL does them, by case."""

    found: dict[str, TwoSteps] = {}

    def run(case: Case) -> TwoSteps:
        if case.name not in found:
            found[case.name] = steps_of(tiny_model, tmp_path_factory.mktemp("plain"), case, PLAIN)
        return found[case.name]

    return run


def steps_of(model: str, folder: Path, case: Case, speed: SpeedConfig, rows: int = 8) -> TwoSteps:
    return two_steps(
        model,
        folder,
        case,
        more={"speed": speed},
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=24 // rows,
    )


WITHOUT_KL = [replace(case, beta=0.0) for case in CASES if case.scale != "batch"]  # only the advantages' size differs


@pytest.mark.parametrize(
    ("case", "way"),
    [
        pytest.param(case, way, id=f"{case.name}-{way}")
        for case in WITHOUT_KL
        for way in WAYS
        if (case.loss, way) != ("bnpo", "budget")
    ],
)
def test_every_loss_keeps_its_gradient(tiny_model: str, tmp_path: Path, case: Case, way: str, plain_steps: Any) -> None:
    """The second step goes over the same completions again, with ratios other than 1."""
    found, expected = steps_of(tiny_model, tmp_path, case, WAYS[way]), plain_steps(case)
    assert relative_difference(found.gradients[0], expected.gradients[0]) < 1e-6
    assert relative_difference(found.gradients[1], expected.gradients[1]) < 3e-6  # from weights that differ by rounding
