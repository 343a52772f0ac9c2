"""Which rows of the data each generation round has, before the trainer's data loader gets to them; and their seeds."""

from __future__ import annotations

import hashlib

from covey.training.batch_source.prompt_order import PromptOrder


class RoundPlan:
    """The rows of one generation round after the other, in the order of the trainer's sampler, pass after pass.

    The rows of round k are a function of the arguments and k, so a resumed run needs only the number of its next round.

    Args:
        size: rows in the data.
        prompts: different prompts in a round, at most `size`.
        shuffle: as the sampler's.
        seed: as the sampler's.
        first: the round that `take` returns first.
    """

    def __init__(self, size: int, prompts: int, *, shuffle: bool, seed: int, first: int = 0) -> None:
        passes, place = divmod(first, size // prompts)
        cursor = (passes, place * prompts) if shuffle else divmod(first * prompts, size)
        self._order = PromptOrder(size, shuffle=shuffle, seed=seed, cursor=cursor)
        self._prompts = prompts

    def take(self) -> list[int]:
        """The rows of the next round, one per prompt."""
        return self._order.batch(self._prompts)


def rounds_in(steps: int, *, accumulation: int, generate_every: int, rounds_per_pass: int) -> int:
    """The generation rounds of a run.

    Args:
        steps: optimiser steps.
        accumulation: micro-batches per optimiser step; the last step of a pass over the data may have fewer.
        generate_every: micro-batches per round.
        rounds_per_pass: in one pass over the data.
    """
    in_pass = rounds_per_pass * generate_every
    passes, rest = divmod(steps, -(-in_pass // accumulation))
    return -(-(passes * in_pass + min(rest * accumulation, in_pass)) // generate_every)


def seeds_of(run_seed: int, number: int, count: int) -> list[int]:
    """One seed, below 2^63, for each completion of a round: a hash of the run's seed, the round and the place in it."""
    digests = (hashlib.sha256(f"{run_seed} {number} {place}".encode()).digest() for place in range(count))
    return [int.from_bytes(digest[:8], "big") >> 1 for digest in digests]
