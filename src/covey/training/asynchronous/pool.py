"""Groups between their submission and the round that trains on them: which are written next, and which join a round.

Plain state: `Rollouts` holds it under a lock, and a checkpoint holds what `Pool.state` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from covey.rollout.engine import Completion

Place = tuple[int, int]
"""The round for which a group was submitted, and its place there; of a completion, the place in the round's rows."""


@dataclass(slots=True)
class Row:
    """A completion that is being written."""

    round: int
    place: int
    seed: int
    parts: list[Completion] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    """Of the weights that wrote it: version and number of tokens, one after the other."""
    ended: bool = False

    @property
    def length(self) -> int:
        """Its tokens so far."""
        return sum(part.length for part in self.parts)

    @property
    def ids(self) -> list[int]:
        """Its tokens so far."""
        return [token for part in self.parts for token in part.ids]

    def add(self, part: Completion, version: int) -> None:
        """Append what was written by weights of this version; a part without tokens changes nothing."""
        if part.length:
            self.parts.append(part)
            if self.versions and self.versions[-1][0] == version:
                self.versions[-1] = (version, self.versions[-1][1] + part.length)
            else:
                self.versions.append((version, part.length))
        self.ended = self.ended or not part.unfinished

    @property
    def completion(self) -> Completion:
        """All of it, once it has ended."""
        if len(self.parts) == 1:
            return self.parts[0]
        logps = [part.logps for part in self.parts if part.logps is not None]
        return Completion(
            self.ids,
            truncated=self.parts[-1].truncated,
            logps=[logp for part in logps for logp in part] if len(logps) == len(self.parts) else None,
            support=_joined([part.support for part in self.parts]),
        )

    def staleness(self, number: int) -> float:
        """Rounds between its tokens' weights and those of this round, averaged over the tokens."""
        return sum((number - version) * count for version, count in self.versions) / self.length


@dataclass(slots=True)
class Group:
    """The completions of one prompt."""

    round: int
    place: int
    index: int
    """Of the prompt's row in the data."""
    prompt: list[int]
    rows: list[Row]
    pinned: int | None = None
    """The newest version when it was submitted, by which it is written where that is fixed in advance."""
    version: int | None = None
    """Of the oldest weights that wrote any of it; None before it is begun."""
    arrived: int = -1
    """How many groups were complete before it; -1 until it is."""

    @property
    def key(self) -> Place:
        """What a schedule calls it."""
        return self.round, self.place

    @property
    def open_rows(self) -> list[Row]:
        """Those without an end."""
        return [row for row in self.rows if not row.ended]


@dataclass(frozen=True, slots=True)
class Policy:
    """How completions are written ahead."""

    staleness: int
    """Most rounds between the weights that wrote a completion and those that first train on it."""
    prompts: int
    """Groups in a round."""
    order: str = "sampler"
    """`training.async_order`."""
    partial: str = "finish"
    """`training.async_partial`."""
    rows_at_once: int | None = None
    """Most completions in one call of the engine, but at least one group; None for no limit. With `sampler` and
    `finish`, a call is a round."""

    @property
    def fixed(self) -> bool:
        """Whether versions do not depend on any speed."""
        return self.order == "sampler" and self.partial == "finish"


class Pool:
    """The groups that were submitted and have not joined a round."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._groups: dict[Place, Group] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, key: Place) -> Group | None:
        """A group, unless it has joined a round or was not submitted."""
        return self._groups.get(key)

    def add(self, groups: Sequence[Group]) -> None:
        """Submit groups, after all earlier ones."""
        self._groups |= {group.key: group for group in groups}

    def pin(self, version: int) -> None:
        """Fix the version of the groups that have none yet."""
        for group in self._groups.values():
            if group.pinned is None:
                group.pinned = version

    @property
    def open_groups(self) -> list[Group]:
        """Those with completions to write, in the order of the data."""
        return [group for group in self._groups.values() if group.open_rows]

    @property
    def versions(self) -> set[int]:
        """Those that groups to write are pinned to."""
        return {group.pinned for group in self.open_groups if group.pinned is not None}

    def next_call(self, newest: int) -> tuple[int, list[Group]]:
        """The version and the groups of the next call, whose open rows are written; no group if all are complete."""
        waiting = self.open_groups
        if self._policy.fixed and waiting:
            first = waiting[0]
            version = newest if first.pinned is None else first.pinned
            return version, [group for group in waiting if group.round == first.round]
        chosen, rows, limit = list[Group](), 0, self._policy.rows_at_once
        for group in waiting:
            rows += len(group.open_rows)
            if chosen and limit is not None and rows > limit:
                break
            chosen.append(group)
        return newest, chosen

    def begin(self, groups: Sequence[Group], version: int) -> None:
        """A call writes these groups by this version."""
        for group in groups:
            group.version = version if group.version is None else min(group.version, version)

    def settle(self, group: Group) -> None:
        """Note when a group is complete."""
        if group.arrived < 0 and not group.open_rows:
            group.arrived = self._arrivals
            self._arrivals += 1

    def joining(self, number: int) -> list[Group] | None:
        """The groups that join this round, in order; None while they are not complete."""
        if self._policy.order == "arrival":
            return self._arrived(number)
        found = [group for group in self._groups.values() if group.round == number]
        return None if any(group.arrived < 0 for group in found) else found

    def remove(self, groups: Sequence[Group]) -> None:
        """They have joined a round."""
        for group in groups:
            del self._groups[group.key]

    def _arrived(self, number: int) -> list[Group] | None:
        """The first complete groups, among them all that no later round could take.

        After this round, as many groups of version v or older may be left as fit into the rounds up to v + staleness;
        the rest must join now, and is waited for.
        """
        prompts, started = self._policy.prompts, [one for one in self._groups.values() if one.version is not None]
        done = sorted((one for one in started if one.arrived >= 0), key=lambda one: one.arrived)
        chosen: list[Group] = []
        for version in sorted({one.version or 0 for one in started}):
            old = {one.key for one in started if (one.version or 0) <= version}
            later = max(version + self._policy.staleness - number, 0) * prompts
            lacking = len(old) - later - sum(one.key in old for one in chosen)
            found = [one for one in done if one.key in old and one not in chosen][: max(lacking, 0)]
            if len(found) < lacking:
                return None
            chosen += found
        chosen += [one for one in done if one not in chosen][: max(prompts - len(chosen), 0)]
        return sorted(chosen, key=lambda one: one.arrived) if len(chosen) == prompts else None

    def state(self) -> list[dict[str, Any]]:
        """Plain data and tensors, for a checkpoint."""
        return [_state(group) for group in self._groups.values()]

    def restore(self, state: Sequence[dict[str, Any]], *, written: bool) -> None:
        """The groups of a checkpoint.

        Args:
            state: what `state` returned.
            written: keep what is written of them; if not, only their prompts and seeds.
        """
        for entry in state:
            group = _group(entry)
            if not written:
                group.pinned = group.version = None
                group.arrived = -1
                group.rows = [Row(row.round, row.place, row.seed) for row in group.rows]
            self._groups[group.key] = group
        self._arrivals = 1 + max((group.arrived for group in self._groups.values()), default=-1)


def _joined(supports: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Supports `[T, C]` of the parts of a completion, one after the other."""
    found = [one for one in supports if one is not None]
    if len(found) < len(supports) or not found:
        return None
    widest = max(one.shape[1] for one in found)
    return torch.cat([torch.nn.functional.pad(one, (0, widest - one.shape[1]), value=-1) for one in found])


_PARTS = ("ids", "truncated", "logps", "support", "unfinished")
_GROUP = ("round", "place", "index", "prompt", "pinned", "version", "arrived")


def _state(group: Group) -> dict[str, Any]:
    rows = [
        {
            "place": row.place,
            "seed": row.seed,
            "versions": [list(part) for part in row.versions],
            "ended": row.ended,
            "parts": [{name: getattr(part, name) for name in _PARTS} for part in row.parts],
        }
        for row in group.rows
    ]
    return {**{name: getattr(group, name) for name in _GROUP}, "rows": rows}


def _group(state: dict[str, Any]) -> Group:
    rows = [
        Row(
            state["round"],
            row["place"],
            row["seed"],
            [Completion(**part) for part in row["parts"]],
            [(version, count) for version, count in row["versions"]],
            row["ended"],
        )
        for row in state["rows"]
    ]
    return Group(**{**{name: state[name] for name in _GROUP}, "rows": rows})
