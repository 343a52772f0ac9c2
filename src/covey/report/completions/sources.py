"""Where a run's completions are: of training, of held-out evaluations, and those of `covey eval`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from covey.errors import CoveyError
from covey.evaluation.benchmarks import BENCHMARKS
from covey.report.charts.panels import reward_names, set_label
from covey.report.completions.rows import MOST_LETTERS, RewardColumns, Shown, evaluated_group, in_groups, training_group
from covey.report.load import read_mapping
from covey.runlog import RunDirectory, count_completions, read_completions, read_metrics
from covey.runlog.completions import completion_files
from covey.runlog.evaluations import COMPLETIONS, SETTINGS, is_evaluation, training_files
from covey.runlog.evaluations import read_completions as read_evaluated

TRAINING = "training"

logger = logging.getLogger(__name__)


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
    found += [Source(f"held-out/{name}", "held-out", set_label(name), files) for name, files in sets.items()]
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
