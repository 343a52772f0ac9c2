"""Replacing the groups of a generation batch that carry no signal, by the prompts that come next in the data.

Knows rows, tensors and processes, not TRL.

Source: DAPO's dynamic sampling, https://arxiv.org/abs/2503.14476, equation 11: a group counts when some of its
completions are right and some are not, which is to say that its rewards are not all alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covey.errors import ConfigError, RewardError
from covey.runlog import names
from covey.training.objective_step import ScoredRewards
from covey.training.progress import Progress
from covey.training.prompt_order import Cursor, PromptOrder


def has_signal(scored: ScoredRewards, counts_B: Tensor) -> Tensor:
    """Which groups teach anything, `[P]`: rewards that differ, and a completion that counts in the loss.

    Args:
        scored: the rewards; completions that no reward function could judge are left aside.
        counts_B: False for completions that the loss leaves out.
    """
    rewards_PG = scored.grouped()
    high_P = rewards_PG.nan_to_num(nan=-torch.inf).amax(dim=1)
    low_P = rewards_PG.nan_to_num(nan=torch.inf).amin(dim=1)
    judged_P = ~rewards_PG.isnan().all(dim=1)
    counted_P = counts_B.view(rewards_PG.shape).any(dim=1)
    return judged_P & counted_P & ~torch.isclose(high_P, low_P)


def counting(completion_ids: Sequence[Sequence[int]], ends: Collection[int] | None) -> Tensor:
    """Which completions count in the loss, `[B]`: with `ends`, those whose last token is one of them."""
    return torch.tensor([ends is None or row[-1] in ends for row in completion_ids])


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion with all that goes with it into another batch, on this process or another."""

    row: dict[str, Any]
    completion_ids: list[int]
    logps: list[float | None] | None
    """Log-probability of each token under the sampler, where the sampler gives them."""
    extra: dict[str, Any]
    """What reward functions logged about this completion, by column."""


@dataclass(frozen=True, slots=True)
class Round:
    """Groups that were written and rewarded together."""

    samples: list[Sample]
    """Those of this process."""
    rewards: Tensor
    """`[B, F]`, over all processes: one column per reward function."""
    signal: Tensor
    """`[P]`, over all processes: which groups teach anything."""
    reported: dict[str, float]
    """Numbers that reward functions reported, on this process."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The batch to learn from, and what it took."""

    samples: list[Sample]
    """Those of this process, in their places."""
    rewards: Tensor
    """`[B, F]`, over all processes."""
    reported: dict[str, list[float]]
    """The mean of what reward functions reported, over all completions that they saw; one number in each list."""
    metrics: dict[str, float]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The data's row of each completion."""
        return [sample.row for sample in self.samples]

    @property
    def completions(self) -> tuple[list[list[int]], list[list[float | None]] | None]:
        """Token ids, and the sampler's log-probabilities where there are any."""
        logps = [sample.logps for sample in self.samples if sample.logps is not None]
        return [sample.completion_ids for sample in self.samples], logps or None

    @property
    def extra(self) -> dict[str, list[Any]]:
        """What reward functions logged, one list per column."""
        columns = {column for sample in self.samples for column in sample.extra}
        return {column: [sample.extra.get(column) for sample in self.samples] for column in sorted(columns)}


def make_round(
    rows: Sequence[dict[str, Any]],
    completion_ids: Sequence[list[int]],
    logps: Sequence[list[float | None]] | None,
    rewards_BF: Tensor,
    signal_P: Tensor,
    *,
    extra: Mapping[str, Sequence[Any]],
    reported: Mapping[str, Sequence[float]],
) -> Round:
    """Put together what writing and rewarding these rows gave.

    Raises:
        RewardError: a reward logged a column that does not fit the completions one to one.
    """
    for column, values in extra.items():
        if len(values) != len(rows):
            raise RewardError(
                f"A reward function logged {len(values)} values of {column!r} by log_extra for a batch of {len(rows)} "
                "completions: it must log exactly one for each, so that they can follow the completions when "
                "objective.resample_groups replaces some of them."
            )
    samples = [
        Sample(
            row,
            list(completion_ids[index]),
            None if logps is None else list(logps[index]),
            {column: values[index] for column, values in extra.items()},
        )
        for index, row in enumerate(rows)
    ]
    means = {name: sum(values) / len(values) for name, values in reported.items() if values}
    return Round(samples, rewards_BF, signal_P, means)


class Resampler:
    """Fills generation batches with groups that teach something, as far as `most` further prompts go.

    The prompts of a batch come from the data in their order. Where groups carry no signal, as many of the prompts that
    come next are drawn, in rounds, until every such group is replaced or `most` prompts are used up. Groups stay whole;
    one drawn in excess or without signal is thrown away; what cannot be replaced stays, so that the batch keeps its
    size. Every process takes the same decisions, for all see all rewards.

    Args:
        most: most further prompts drawn for one generation batch.
        num_generations: completions per prompt.
        processes: how many there are; a round's completions must divide evenly among them.
        process_index: which of them this is.
        gather_object: concatenates lists over all processes.

    Raises:
        ConfigError: the processes cannot share so few groups.
    """

    def __init__(
        self,
        most: int,
        *,
        num_generations: int,
        processes: int,
        process_index: int,
        gather_object: Callable[[list[Any]], list[Any]],
    ) -> None:
        self._granule = processes // math.gcd(processes, num_generations)
        if most < self._granule:
            raise ConfigError(
                f"objective.resample_groups={most} is too small: {processes} processes share out groups of "
                f"{num_generations} completions evenly only {self._granule} groups at a time. Set it to "
                f"{self._granule} or more (multiples of it are used in full), or to 0 for none."
            )
        self._most = most
        self._num_generations = num_generations
        self._processes = processes
        self._process_index = process_index
        self._gather_object = gather_object
        self._data: Any = None
        self._order: PromptOrder | None = None

    def begin(self, sampler: Any, restored: Progress | None, *, generate_every: int) -> None:
        """Take the data and their order from the sampler of the run.

        Args:
            sampler: has `data_source`, `shuffle`, `seed`, and `batch_size`, the prompts in a generation batch.
            restored: what a checkpoint holds; without a cursor in it (it was written without resampling), the batches
                generated so far tell the place.
            generate_every: micro-batches that one generation batch is learned from.

        Raises:
            ConfigError: the sampler is of another kind.
        """
        if not all(hasattr(sampler, name) for name in ("data_source", "shuffle", "seed", "batch_size")):
            raise ConfigError(
                f"objective.resample_groups draws further prompts in the order of TRL's sampler, but this trainer has "
                f"one of its own, {type(sampler).__name__}: set resample_groups=0, or leave the sampler as it is."
            )
        self._data = sampler.data_source
        cursor = restored.prompt_cursor if restored is not None else None
        shuffle, seed = sampler.shuffle, sampler.seed
        self._order = PromptOrder(len(self._data), shuffle=shuffle, seed=seed, cursor=cursor or (0, 0))
        if restored is not None and cursor is None:
            for _ in range(math.ceil(restored.micro_step / generate_every)):
                self._order.batch(sampler.batch_size)

    @property
    def cursor(self) -> Cursor | None:
        """The place in the data after the batches filled so far; None before training."""
        return None if self._order is None else self._order.cursor

    def fill(self, local_rows: int, write: Callable[[list[dict[str, Any]]], Round]) -> Filled:
        """Draw a generation batch and replace what carries no signal.

        Args:
            local_rows: completions of the batch on each process.
            write: has completions of these rows (this process's part of whole groups) written and rewarded.
        """
        assert self._order is not None
        groups = local_rows * self._processes // self._num_generations
        rounds = [self._round(self._order.batch(groups), write)]
        began = time.perf_counter()
        lacking = _places(~rounds[0].signal)
        found: list[tuple[Round, int]] = []
        drawn = 0
        while count := self._next_count(len(lacking) - len(found), drawn):
            rounds.append(self._round(self._order.more(count), write))
            found += [(rounds[-1], group) for group in _places(rounds[-1].signal)]
            drawn += count
        moves = dict(zip(lacking, found, strict=False))
        metrics = {
            "resampling/groups_without_signal": len(lacking),
            "resampling/groups_drawn": drawn,
            "resampling/groups_replaced": len(moves),
            "resampling/completions": drawn * self._num_generations,
            "resampling/passes_over_data": self._order.passes,
            names.RESAMPLING_TIME: time.perf_counter() - began if drawn else 0.0,
        }
        samples, rewards_BF = self._joined(rounds[0], moves)
        return Filled(samples, rewards_BF, _mean_reported(rounds), {name: float(v) for name, v in metrics.items()})

    def _next_count(self, lacking: int, drawn: int) -> int:
        """How many prompts the next round draws: enough to share out evenly, no more than are left."""
        wanted = math.ceil(max(lacking, 0) / self._granule)
        return min(wanted, (self._most - drawn) // self._granule) * self._granule

    def _round(self, prompts: list[int], write: Callable[[list[dict[str, Any]]], Round]) -> Round:
        """Have groups of these prompts written, each process its own consecutive part of the rows."""
        places = [prompt for prompt in prompts for _ in range(self._num_generations)]
        local = len(places) // self._processes
        mine = places[self._process_index * local : (self._process_index + 1) * local]
        return write([dict(self._data[place]) for place in mine])

    def _joined(self, base: Round, moves: Mapping[int, tuple[Round, int]]) -> tuple[list[Sample], Tensor]:
        """The base round with other groups in some places, each completion on the process that its place belongs to.

        Args:
            base: the batch as it was drawn.
            moves: for the place of a group, the round and the place that another one comes from.
        """
        samples, rewards_BF, size = list(base.samples), base.rewards.clone(), self._num_generations
        leaving: list[tuple[int, Sample]] = []
        for place, (source, group) in moves.items():
            rewards_BF[place * size : (place + 1) * size] = source.rewards[group * size : (group + 1) * size]
            for offset in range(size):
                process, index = divmod(group * size + offset, len(source.samples))
                if process == self._process_index:
                    leaving.append((place * size + offset, source.samples[index]))
        first = self._process_index * len(samples)
        for target, sample in self._gather_object(leaving) if moves else ():
            if 0 <= target - first < len(samples):
                samples[target - first] = sample
        return samples, rewards_BF


@contextmanager
def standing_in(owner: object, **methods: Callable[..., Any]) -> Iterator[None]:
    """Within, calls of these methods of one object go elsewhere, whichever class defines them."""
    for name, method in methods.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name in methods:
            delattr(owner, name)


def check_data(dataset: Any, obstacles: Mapping[str, bool]) -> None:
    """Check that groups of this run can be drawn and moved about.

    Args:
        dataset: the training data.
        obstacles: what the trainer may use that cannot be taken along, and whether it does.

    Raises:
        ConfigError: naming what stands in the way.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigError(
            "objective.resample_groups goes back to the data for further prompts, and streamed data have no places to "
            "go back to: load the data in full, or set objective.resample_groups=0."
        )
    columns = getattr(dataset, "column_names", None) or ()
    found = [name for name, used in obstacles.items() if used]
    found += [f"the column {name}" for name in ("image", "images") if name in columns]
    if found:
        raise ConfigError(
            f"objective.resample_groups works with text prompts and completions only, but this run uses "
            f"{' and '.join(found)}: do without, or set objective.resample_groups=0."
        )


def _places(chosen_P: Tensor) -> list[int]:
    return [int(place) for place in chosen_P.nonzero()[:, 0]]


def _mean_reported(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """What was reported of each round, weighted by its completions."""
    means = {}
    for name in sorted({name for part in rounds for name in part.reported}):
        parts = [(part.reported[name], len(part.samples)) for part in rounds if name in part.reported]
        means[name] = [sum(value * weight for value, weight in parts) / sum(weight for _, weight in parts)]
    return means
