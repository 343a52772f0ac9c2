"""The shortest time in which rounds can be generated and learned side by side, computed as events, without threads.

Round k may be generated once the weights after k - N rounds exist, and rounds are learned in order. With w_k the time
from the beginning of round k to its last completion (its completions one after the other on the slots), s the seconds
of a weight sync and l_k those of learning:

    in turns (N = 0)   L_k = L_{k-1} + s + w_k + l_k
    finish             E_k = max(E_{k-1}, L_{k-N-1}) + s_k + w_k,   L_k = max(L_{k-1}, E_k) + l_k

where s_k is s for round 0 and the rounds after N, which have new weights, and 0 for rounds 1 to N, which have the first
ones. With `continue`, slots that get free go on with later rounds, so there is no such recursion: `continued` moves
from event to event (the end of a completion, the end of a round's learning, which stops the slots for s).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence


def makespan(seconds: Sequence[float], slots: int) -> float:
    """Seconds until the last of these pieces of work ends, taken in order by the slots as they get free."""
    free = [0.0] * slots
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


def finished(
    rounds: Sequence[Sequence[float]], learning: Sequence[float], slots: int, staleness: int, sync: float
) -> list[float]:
    """When each round is learned, with `training.async_partial=finish`, or in turns with a staleness of 0.

    Args:
        rounds: seconds of each round's completions.
        learning: seconds of learning each round.
        slots: completions that are written at the same time.
        staleness: N.
        sync: seconds of a weight sync.
    """
    generated, learned = 0.0, list[float]()
    for number, (rows, seconds) in enumerate(zip(rounds, learning, strict=True)):
        weights = learned[number - staleness - 1] if number > staleness else 0.0
        new = number == 0 or number > staleness
        generated = max(generated, weights) + (sync if new else 0.0) + makespan(rows, slots)
        learned.append(max(learned[-1] if learned else 0.0, generated) + seconds)
    return learned


def continued(
    rounds: Sequence[Sequence[float]], learning: Sequence[float], slots: int, staleness: int, sync: float
) -> list[float]:
    """The same with `training.async_partial=continue`."""
    waiting = deque((number, one) for number, rows in enumerate(rounds[: staleness + 1]) for one in rows)
    left = [len(rows) for rows in rounds]
    running = list[tuple[int, float]]()
    now, paused_until, learned = 0.0, sync, list[float]()
    learns_until: float | None = None
    while len(learned) < len(rounds):
        while waiting and len(running) < slots:
            running.append(waiting.popleft())
        begin = max(now, paused_until)
        events = [begin + min(seconds for _, seconds in running)] if running else []
        events += [] if learns_until is None else [learns_until]
        after = min(events)
        done = max(0.0, after - begin)
        ended = [number for number, seconds in running if seconds <= done + 1e-12]
        running = [(number, seconds - done) for number, seconds in running if seconds > done + 1e-12]
        now = after
        for number in ended:
            left[number] -= 1
        if learns_until is not None and learns_until <= now:
            learned.append(now)
            learns_until = None
            new = len(learned) + staleness
            if new < len(rounds):
                waiting.extend((new, one) for one in rounds[new])
            if waiting or running:
                paused_until = max(now, paused_until) + sync
        if learns_until is None and len(learned) < len(rounds) and left[len(learned)] == 0:
            learns_until = now + learning[len(learned)]
    return learned
