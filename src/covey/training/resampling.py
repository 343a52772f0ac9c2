"""Replacing the groups of a generation batch without signal by groups of the next prompts in the data.

Knows rows, tensors and processes, not TRL.

Source: DAPO's dynamic sampling, https://arxiv.org/abs/2503.14476, equation 11: a group is used
when some of its completions are right and some are not, that is, when its rewards are not all equal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covey.config.groups.objectives import groups_per_round
from covey.environments.episodes import Episode
from covey.errors import ConfigError, RewardError
from covey.runlog import names
from covey.training.advantages import ScoredRewards
from covey.training.checkpoint.state import TrainingProgress
from covey.training.prompt_order import Cursor, PromptOrder


def has_signal(scored: ScoredRewards, counts_B: Tensor) -> Tensor:
    """Which groups have a gradient, `[P]`: rewards that differ, and a completion that counts in the loss.

    Args:
        scored: the rewards; completions without any reward are ignored.
        counts_B: False for completions that the loss leaves out.
    """
    rewards_PG = scored.grouped()
    high_P = rewards_PG.nan_to_num(nan=-torch.inf).amax(dim=1)
    low_P = rewards_PG.nan_to_num(nan=torch.inf).amin(dim=1)
    rewarded_P = ~rewards_PG.isnan().all(dim=1)
    counted_P = counts_B.view(rewards_PG.shape).any(dim=1)
    return rewarded_P & counted_P & ~torch.isclose(high_P, low_P)


def counts_in_loss(completion_ids: Sequence[Sequence[int]], eos_token_ids: Collection[int] | None) -> Tensor:
    """Which completions count in the loss, `[B]`: with `eos_token_ids`, those whose last token is one of them."""
    return torch.tensor([eos_token_ids is None or row[-1] in eos_token_ids for row in completion_ids])


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion with all that moves with it into another batch, on this process or another."""

    row: dict[str, Any]
    completion_ids: list[int]
    logps: list[float | None] | None
    """Log-prob of each token under the sampler, if it returns them."""
    extra: dict[str, Any]
    """What reward functions logged about this completion, by column."""
    episode: Episode | None = None
    """With tools or an environment, without these."""
    support: Tensor | None = None
    """The tokens that could be sampled in each place, `[T, C]`; None where that is not known, or all could."""


@dataclass(frozen=True, slots=True)
class SamplingRound:
    """Groups that were generated and rewarded together."""

    samples: list[Sample]
    """Those of this process."""
    rewards: Tensor
    """`[B, F]`, over all processes: one column per reward function."""
    signal: Tensor
    """`[P]`, over all processes: see `has_signal`."""
    reported: dict[str, float]
    """Metrics that reward functions logged, on this process."""


@dataclass(frozen=True, slots=True)
class FilledBatch:
    """The batch to train on, and the metrics of resampling."""

    samples: list[Sample]
    """Those of this process, in order."""
    rewards: Tensor
    """`[B, F]`, over all processes."""
    reported: dict[str, list[float]]
    """The mean of what reward functions logged, over all completions that they saw; one number in each list."""
    metrics: dict[str, float]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The data row of each completion, with the prompt that it was generated from."""
        return [
            sample.row if sample.episode is None else {**sample.row, "prompt": sample.episode.messages}
            for sample in self.samples
        ]

    @property
    def episodes(self) -> list[Episode]:
        """One per completion with tools or an environment, else none."""
        return [sample.episode for sample in self.samples if sample.episode is not None]

    @property
    def completions(self) -> tuple[list[list[int]], list[list[float | None]] | None]:
        """Token ids, and the sampler's log-probs if there are any."""
        logps = [sample.logps for sample in self.samples if sample.logps is not None]
        return [sample.completion_ids for sample in self.samples], logps or None

    @property
    def extra(self) -> dict[str, list[Any]]:
        """Columns that reward functions logged."""
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
    episodes: Sequence[Episode] = (),
    supports: Sequence[Tensor | None] = (),
) -> SamplingRound:
    """The round of these rows, from their completions and rewards. Raises a `RewardError` if a reward logged a column
    that does not fit the completions one to one."""
    for column, values in extra.items():
        if len(values) != len(rows):
            raise RewardError(
                f"A reward function logged {len(values)} values of {column!r} by log_extra for a batch of {len(rows)} "
                "completions: it must log exactly one for each, since "
                "objective.resample_groups moves completions between batches."
            )
    samples = [
        Sample(
            row,
            list(completion_ids[index]),
            None if logps is None else list(logps[index]),
            {column: values[index] for column, values in extra.items()},
            replace(episodes[index], tools={}, environment=None) if episodes else None,  # to go to another process
            supports[index] if supports else None,
        )
        for index, row in enumerate(rows)
    ]
    means = {name: sum(values) / len(values) for name, values in reported.items() if values}
    return SamplingRound(samples, rewards_BF, signal_P, means)


class Resampler:
    """Fills generation batches with groups that have signal, drawing at most `max_prompts` further ones.

    The prompts of a batch come from the data in order. As many of the next prompts as there are groups without signal
    are drawn, in rounds, until every such group is replaced or `max_prompts` are used up. Groups stay whole; one drawn
    in excess or without signal is dropped; what cannot be replaced stays, so the batch keeps its size. Every process
    takes the same decisions, as all see all rewards.

    Args:
        max_prompts: most further prompts drawn for one generation batch.
        num_generations: completions per prompt.
        processes: their number; a round's completions must divide evenly among them.
        process_index: index of this process.
        gather_object: concatenates lists over all processes.

    Raises:
        ConfigError: so few groups cannot be divided among the processes.
    """

    def __init__(
        self,
        max_prompts: int,
        *,
        num_generations: int,
        processes: int,
        process_index: int,
        gather_object: Callable[[list[Any]], list[Any]],
    ) -> None:
        self._groups_per_round = groups_per_round(max_prompts, num_generations, processes)
        self._max_prompts = max_prompts
        self._num_generations = num_generations
        self._processes = processes
        self._process_index = process_index
        self._gather_object = gather_object
        self._data: Any = None
        self._order: PromptOrder | None = None

    def begin(self, sampler: Any, restored: TrainingProgress | None, *, generate_every: int) -> None:
        """Read the data and their order from the sampler of the run.

        Args:
            sampler: has `data_source`, `shuffle`, `seed`, and `batch_size`, the prompts in a generation batch.
            restored: the progress in a checkpoint; without a cursor (it was written without resampling), the place is
                computed from the batches generated so far.
            generate_every: micro-batches per generation batch.

        Raises:
            ConfigError: the sampler has another type.
        """
        if not all(hasattr(sampler, name) for name in ("data_source", "shuffle", "seed", "batch_size")):
            raise ConfigError(
                f"objective.resample_groups draws further prompts in the order of TRL's sampler, but this trainer has "
                f"another one, {type(sampler).__name__}: set resample_groups=0, or use TRL's sampler."
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
        """The position in the data after the batches filled so far; None before training."""
        return None if self._order is None else self._order.cursor

    def fill(self, local_rows: int, generate: Callable[[list[dict[str, Any]]], SamplingRound]) -> FilledBatch:
        """Draw a generation batch and replace groups without signal.

        Args:
            local_rows: completions of the batch on each process.
            generate: generates and rewards completions of these rows, this process's part of whole groups.
        """
        assert self._order is not None
        groups = local_rows * self._processes // self._num_generations
        rounds = [self._round(self._order.batch(groups), generate)]
        began = time.perf_counter()
        lacking = _places(~rounds[0].signal)
        found: list[tuple[SamplingRound, int]] = []
        drawn = 0
        while count := self._next_count(len(lacking) - len(found), drawn):
            rounds.append(self._round(self._order.more(count), generate))
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
        return FilledBatch(samples, rewards_BF, _mean_reported(rounds), {name: float(v) for name, v in metrics.items()})

    def _next_count(self, lacking: int, drawn: int) -> int:
        """How many prompts the next round draws: a number that divides evenly, no more than are left."""
        wanted = math.ceil(max(lacking, 0) / self._groups_per_round)
        return min(wanted, (self._max_prompts - drawn) // self._groups_per_round) * self._groups_per_round

    def _round(self, prompts: list[int], generate: Callable[[list[dict[str, Any]]], SamplingRound]) -> SamplingRound:
        """Generate groups of these prompts, each process its own consecutive part of the rows."""
        places = [prompt for prompt in prompts for _ in range(self._num_generations)]
        local = len(places) // self._processes
        mine = places[self._process_index * local : (self._process_index + 1) * local]
        return generate([dict(self._data[place]) for place in mine])

    def _joined(
        self, base: SamplingRound, moves: Mapping[int, tuple[SamplingRound, int]]
    ) -> tuple[list[Sample], Tensor]:
        """The base round with some groups replaced, each completion on the process that owns its place.

        Args:
            base: the batch as it was drawn.
            moves: for the index of a group, the round and the index of its replacement.
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


def check_resampling(dataset: Any, unsupported: Mapping[str, bool]) -> None:
    """Check that groups of this run can be resampled.

    Args:
        dataset: the training data.
        unsupported: trainer features that do not work with resampling, and whether they are used.

    Raises:
        ConfigError: with the features that rule it out.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigError(
            "objective.resample_groups draws further prompts from the data by index, and streamed data have no index: "
            "load the data in full, or set objective.resample_groups=0."
        )
    columns = getattr(dataset, "column_names", None) or ()
    found = [name for name, used in unsupported.items() if used]
    found += [f"the column {name}" for name in ("image", "images") if name in columns]
    if found:
        raise ConfigError(
            f"objective.resample_groups works with text prompts and completions only, but this run uses "
            f"{' and '.join(found)}: remove these, or set objective.resample_groups=0."
        )


def _places(chosen_P: Tensor) -> list[int]:
    return [int(place) for place in chosen_P.nonzero()[:, 0]]


def _mean_reported(rounds: Sequence[SamplingRound]) -> dict[str, list[float]]:
    """Means of the logged metrics over the rounds, weighted by their completions."""
    means = {}
    for name in sorted({name for part in rounds for name in part.reported}):
        parts = [(part.reported[name], len(part.samples)) for part in rounds if name in part.reported]
        means[name] = [sum(value * weight for value, weight in parts) / sum(weight for _, weight in parts)]
    return means
