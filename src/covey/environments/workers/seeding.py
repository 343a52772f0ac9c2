"""Seeding what an environment draws from, so that equal seeds make equal episodes."""

from __future__ import annotations

import random
import sys


def seed_process(seed: int | None) -> None:
    """Seed the generators of `random`, NumPy and PyTorch, where they are loaded.

    Args:
        seed: None for new entropy: a fork would continue the stream of its parent.
    """
    random.seed(seed)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed(None if seed is None else seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed() if seed is None else torch.manual_seed(seed % 2**63)


def seed_shared(instance: object) -> None:
    """Give the generators of an instance's class and module new entropy: its process was forked from one that had
    loaded them, and so were those of the other instances."""
    _seed_held(instance, None, own=False)


def seed_instance(instance: object, seed: int) -> None:
    """Seed the process, and the generators that an instance, its class and its module hold."""
    seed_process(seed)
    _seed_held(instance, seed, own=True)


def _seed_held(instance: object, seed: int | None, *, own: bool) -> None:
    kind = type(instance)
    holders = [*([instance] if own else []), *kind.__mro__[:-1], sys.modules.get(kind.__module__)]
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    held = [value for holder in holders for value in list(getattr(holder, "__dict__", {}).values())]
    number = 0  # of generators, as the other attributes of an instance may differ
    for generator in held:
        one = None if seed is None else seed + number + 1
        if isinstance(generator, random.Random):
            generator.seed(one)
        elif numpy is not None and isinstance(generator, numpy.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(one).state
        elif numpy is not None and isinstance(generator, numpy.RandomState):
            generator.seed(None if one is None else one % 2**32)
        elif torch is not None and isinstance(generator, torch.Generator):
            generator.seed() if one is None else generator.manual_seed(one % 2**63)
        else:
            continue
        number += 1
