"""Rows for environments that make their own prompts: a seed for each episode."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from covey.data.columns import Prepared
from covey.data.prompts import conversation, prompt_column
from covey.data.sources.builtin import cut

if TYPE_CHECKING:
    from covey.config import DatasetConfig

_SEEDS = 2**30


def episode_sets(
    dataset: DatasetConfig, seed: int, environments: Sequence[str]
) -> tuple[Prepared, dict[str, Prepared]]:
    """`dataset.train_size` rows and, as `test`, `dataset.test_size` rows, each with another `seed`.

    Training has odd seeds and `test` even ones, so no held-out episode is trained on, whatever the seeds.

    Args:
        dataset: the sizes, the seed of what is held out, and what is cut from the training rows.
        seed: of the training rows.
        environments: the names that the rows choose in turn, where there are several.
    """
    evaluation = {}
    if dataset.test_size:
        evaluation["test"] = _rows(dataset, "test", dataset.test_size, environments, dataset.seed)
    draw = partial(_rows, dataset, "train", dataset.train_size, environments)
    return cut(draw, dataset, seed, evaluation, "the environment's own episodes"), evaluation


def _rows(dataset: DatasetConfig, split: str, count: int, environments: Sequence[str], seed: int) -> Prepared:
    import datasets
    import pyarrow as pa

    drawn = random.Random(f"covey-episodes-{split}-{seed}").sample(range(_SEEDS), count)
    seeds = [2 * number + (split == "train") for number in drawn]
    columns: dict[str, Any] = {"seed": pa.array(seeds, pa.int64())}
    if dataset.system_prompt or dataset.user_prompt_template:
        columns["prompt"] = prompt_column([conversation("", dataset)] * count)
    if environments:
        columns["environment"] = pa.array([environments[i % len(environments)] for i in range(count)], pa.string())
    return Prepared(datasets.Dataset(pa.table(columns)), list(map(str, seeds)), lambda i: f"episode {i + 1}")
