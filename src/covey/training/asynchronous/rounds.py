"""Completions written ahead by an engine in a thread of its own.

The caller's thread, at the start of round r: `publish(r, weights)`, `submit` up to round r + staleness, `take(r)`.
`RoundPlan` says which rows of the data a round has before the trainer's data loader gets to them; a snapshot keeps the
weights of a version for as long as completions are written by it.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from covey.errors import ConfigError, CoveyError, EngineError, one_line
from covey.rollout.engine import Completion, InferenceEngine, NamedWeights, SamplingSettings
from covey.rollout.generate import complete, engine_failures
from covey.rollout.weight_folder import read_folder, write_folder
from covey.training.asynchronous.pool import Group, Policy, Pool, Row
from covey.training.asynchronous.schedule import Call, Schedule, ScheduleWriter
from covey.training.prompt_order import PromptOrder

logger = logging.getLogger(__name__)

_NextCall = tuple[int, list[tuple[Group, Row]], Call | None]
"""Version and rows, and in a replay the recorded call."""

_WAKE = 1.0
"""Seconds after which a waiting thread looks for signals."""
_CLOSE = 5.0
"""Seconds that an engine gets to leave a call, before it is closed under it."""


class Rollouts:
    """An engine in a thread, and the completions that it has written.

    Nothing here depends on a trainer: `publish`, `submit`, `take`, then `close`. They are called from one thread.

    Args:
        engine: used, and closed, by the thread alone.
        group_size: completions per prompt.
        seed: of the run. The seed of a completion is a hash of it, its round, and its place there.
        schedule: what is written is recorded there; may also be set before anything is published.
        replay: what is written, and what joins a round, is read from there.
        vocab_size: rows of the model's embedding, to check the tokens of engines that are not Covey's.

    Raises:
        ConfigError: the engine cannot do it.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        sampling: SamplingSettings,
        policy: Policy,
        *,
        group_size: int,
        seed: int,
        schedule: ScheduleWriter | None = None,
        replay: Schedule | None = None,
        vocab_size: int | None = None,
    ) -> None:
        _check_capabilities(engine, policy)
        self.engine = engine
        self.policy = policy
        self.next_round = 0
        """The round whose prompts are submitted next."""
        self.seconds_writing = 0.0
        """That the thread has spent in the engine, weight syncs included."""
        self._caller = EngineCaller(engine, sampling, vocab_size)
        self._group_size = group_size
        self._seed = seed
        self.schedule = schedule
        self.replay = replay
        self._calls = 0
        self._pool = Pool(policy)
        self._snapshots: dict[int, Snapshot] = {}
        self._newest = -1
        self._writing: int | None = None
        """The version of the call that is running."""
        self._blocked = False
        """Whether the thread waits for prompts or a version."""
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)

    def publish(self, version: int, snapshot: Snapshot) -> None:
        """The weights after so many rounds. Snapshots that nothing needs any more are dropped.

        Args:
            version: larger than the last one, except after `restore`.
            snapshot: the same object as for the last version if no weight has changed since.

        Raises:
            CoveyError: the thread has failed.
        """
        with self._changed:
            self._check()
            self._newest = version
            self._snapshots[version] = snapshot
            self._pool.pin(version)
            self._drop_snapshots()
            self._changed.notify_all()
        if self._thread.ident is None:
            self._thread.start()

    def submit(
        self,
        number: int,
        prompts: Sequence[Sequence[int]],
        *,
        rows: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> None:
        """Have completions of these prompts written.

        Args:
            number: the round whose prompts they are: `next_round`.
            prompts: token ids, one list per group.
            rows: of the prompts in the data.
            seeds: one per completion; None takes those of the round.

        Raises:
            ConfigError: the schedule that is replayed has other prompts.
        """
        if number != self.next_round:
            raise ValueError(f"round {number} was submitted, and {self.next_round} is the next one")
        size = self._group_size
        own = list(seeds) if seeds is not None else seeds_of(self._seed, number, len(prompts) * size)
        if self.replay is not None:
            self.replay.check_prompts(number, prompts)
        groups = [
            Group(
                number,
                place,
                place if rows is None else rows[place],
                list(ids),
                [Row(number, at, own[at]) for at in range(place * size, (place + 1) * size)],
                pinned=self._newest if self._newest >= 0 else None,
            )
            for place, ids in enumerate(prompts)
        ]
        with self._changed:
            self._check()
            if self.schedule is not None:
                self.schedule.prompts(number, prompts)
            self._pool.add(groups)
            self.next_round = number + 1
            self._changed.notify_all()

    def take(self, number: int) -> list[Group]:
        """The groups that round `number` trains on; waits until they are complete. Raises a `CoveyError` if the thread
        has failed; or a replayed schedule ends before this round."""
        with self._changed:
            while (groups := self._joining(number)) is None:
                self._check()
                self._changed.wait(_WAKE)
            self._pool.remove(groups)
            if self.schedule is not None:
                self.schedule.round(number, groups)
            self._drop_snapshots()
        return groups

    def is_complete(self, number: int) -> bool:
        """Whether `take` would not wait."""
        with self._changed:
            return self._joining(number) is not None

    def settle(self) -> dict[str, Any]:
        """Wait until all that was submitted is written, in a replay until the thread needs what is not there yet.

        Returns:
            The state, of plain data and tensors, for `restore`.

        Raises:
            CoveyError: the thread has failed.
        """
        with self._changed:
            while self._thread.ident is not None and not (self._blocked and self._call_or_none() is None):
                self._check()
                self._changed.wait(_WAKE)
            self._check()
            return {
                "groups": self._pool.state(),
                "next_round": self.next_round,
                "calls": self._calls,
                "schedule": 0 if self.schedule is None else self.schedule.sync(),
            }

    def restore(self, state: dict[str, Any], *, written: bool = True) -> None:
        """Go on from a state, before anything is published.

        Args:
            state: see `settle`.
            written: keep what was written; if not, only the prompts.
        """
        self._pool.restore(state["groups"], written=written)
        self.next_round = state["next_round"]
        self._calls = state["calls"]

    def close(self) -> None:
        """End the thread and its engine, at once; what is being written is dropped."""
        with self._changed:
            closed, self._closed = self._closed, True
            self._changed.notify_all()
        if closed:
            return
        if self._thread.ident is not None:
            self._thread.join(_CLOSE)
        self.engine.close()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE)
        for snapshot in {id(one): one for one in self._snapshots.values()}.values():
            snapshot.drop()
        self._snapshots.clear()
        if self.schedule is not None:
            self.schedule.close()

    # -- with the lock

    def _check(self) -> None:
        """Raise the error of the thread, if any."""
        if self._closed:
            raise EngineError("The completions of this run are not written any more: it was closed.")
        if isinstance(self._error, CoveyError):
            raise self._error
        if self._error is not None:
            raise EngineError(
                f"The engine {type(self.engine).__name__} failed while it wrote completions ahead: "
                f"{type(self._error).__name__}: {one_line(self._error)}"
            ) from self._error

    def _joining(self, number: int) -> list[Group] | None:
        if self.replay is None:
            return self._pool.joining(number)
        if number not in self.replay.rounds:
            raise self.replay.misfit(f"it ends before round {number}, as the recorded run did")
        groups = [group for key in self.replay.rounds[number] if (group := self._pool.get(key)) is not None]
        if len(groups) < len(self.replay.rounds[number]):
            raise self.replay.misfit(f"its round {number} trains on prompts that this run has not submitted")
        if all(group.arrived >= 0 for group in groups):
            return groups
        if self._calls >= len(self.replay.calls):
            raise self.replay.misfit(f"it ends before the completions of round {number} are written")
        return None

    def _drop_snapshots(self) -> None:
        needed = {self._newest, self._writing} | (self._pool.versions if self.policy.fixed else set())
        if self.replay is not None and self._calls < len(self.replay.calls):
            oldest = self.replay.calls[self._calls].version  # versions of calls never fall
            needed |= {version for version in self._snapshots if version >= oldest}
        kept = {id(one) for version, one in self._snapshots.items() if version in needed}
        for version in [version for version in self._snapshots if version not in needed]:
            snapshot = self._snapshots.pop(version)
            if id(snapshot) not in kept and all(other is not snapshot for other in self._snapshots.values()):
                snapshot.drop()

    def _call_or_none(self) -> _NextCall | None:
        """The next call; None if it has to wait."""
        if self.replay is not None:
            return self._replayed_call()
        if self._newest < 0:
            return None
        version, groups = self._pool.next_call(self._newest)
        if not groups or version not in self._snapshots:
            return None
        return version, [(group, row) for group in groups for row in group.open_rows], None

    def _replayed_call(self) -> _NextCall | None:
        assert self.replay is not None
        if self._calls >= len(self.replay.calls):
            return None
        call = self.replay.calls[self._calls]
        if call.version not in self._snapshots or any(number >= self.next_round for number, _, _ in call.rows):
            return None
        chosen = []
        for number, place, start in call.rows:
            key = (number, place // self._group_size)
            group = self._pool.get(key)
            row = None if group is None else group.rows[place % self._group_size]
            if group is None or row is None or row.length != start or row.ended:
                raise self.replay.misfit(f"its call {self._calls} goes on with completions that are not there")
            chosen.append((group, row))
        return call.version, chosen, call

    def _interrupts(self, version: int) -> bool:
        """Whether a call by this version ends between tokens; asked from its engine's thread."""
        renews = self.replay is None and self.policy.partial == "continue"
        return self._closed or (renews and self._newest > version)

    def _as_recorded(self, call: Call, place: int, part: Completion, row: Row) -> Completion:
        """A completion of a replayed call, open where the recorded one was interrupted."""
        assert self.replay is not None
        was_open = place in call.open
        cut = part.truncated and row.length + part.length < self._caller.max_length
        if part.length != call.tokens[place] or cut != was_open:
            raise self.replay.misfit(f"a completion of call {self._calls} does not end where the recorded one does")
        return replace(part, truncated=False, unfinished=True) if was_open else part

    # -- the thread

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._closed and (call := self._call_or_none()) is None:
                        self._blocked = True
                        self._changed.notify_all()
                        self._changed.wait()
                    self._blocked = False
                    if self._closed:
                        return
                    assert call is not None
                    version, rows, recorded = call
                    self._writing = version
                    self._pool.begin(list({group.key: group for group, _ in rows}.values()), version)
                self._write(version, rows, recorded)
        except BaseException as error:
            with self._changed:
                if not self._closed:
                    logger.warning("The completions that are written ahead ended with an error.", exc_info=True)
                self._error = error
                self._changed.notify_all()

    def _write(self, version: int, rows: Sequence[tuple[Group, Row]], call: Call | None) -> None:
        """One call of the engine, by these weights."""
        began = time.perf_counter()
        starts = [row.length for _, row in rows]
        added: set[int] = set()

        def add(place: int, part: Completion) -> None:
            with self._changed:
                if place in added or self._closed:
                    return
                added.add(place)
                group, row = rows[place]
                if call is not None:
                    part = self._as_recorded(call, place, part, row)
                row.add(part, version)
                self._pool.settle(group)
                self._changed.notify_all()

        self._caller.load(version, self._snapshots[version])
        found = self._caller.write(
            [[*group.prompt, *row.ids] for group, row in rows],
            seeds=[row.seed for _, row in rows],
            starts=starts,
            limits=None if call is None else call.tokens,
            interrupted=lambda: self._interrupts(version),
            on_ended=add,
        )
        for place, part in enumerate(found):
            add(place, part)
        with self._changed:
            self._writing = None
            self.seconds_writing += time.perf_counter() - began
            done = list(zip(rows, starts, strict=True))
            if self._closed:  # of a call that this cut short, what a round has trained on already
                done = [(one, start) for one, start in done if self._pool.get(one[0].key) is None]
            written = tuple(row.length - start for (_, row), start in done)
            if any(written):
                self._calls += 1
                if self.schedule is not None:
                    places = tuple((row.round, row.place, start) for (_, row), start in done)
                    still_open = tuple(place for place, ((_, row), _) in enumerate(done) if not row.ended)
                    self.schedule.call(Call(version, places, written, still_open))
            self._drop_snapshots()
            self._changed.notify_all()


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


class Snapshot(Protocol):
    """The weights of one version."""

    def load(self, engine: InferenceEngine, version: int) -> None:
        """Give them to an engine. Called from the thread that has the engine, again if the engine has lost them."""

    def drop(self) -> None:
        """They are not needed any more."""


class FolderSnapshot:
    """Weights in a folder of safetensors files.

    Args:
        folder: replaced if it exists; its parent is created.
        weights: written at once.
    """

    def __init__(self, folder: Path, weights: NamedWeights) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        write_folder(folder, weights)

    def load(self, engine: InferenceEngine, version: int) -> None:
        """By the engine's `sync_folder(folder, version)` if it has one, else by `sync`."""
        from_folder: Any = getattr(engine, "sync_folder", None)
        if from_folder is not None:
            from_folder(self.folder, version)
        else:
            engine.sync(read_folder(self.folder), version)

    def drop(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


_SEEDS = 2**31
"""Of engines with one seed a call: they are below this."""


def _check_capabilities(engine: InferenceEngine, policy: Policy) -> None:
    """Raise a `ConfigError` unless the engine can write completions ahead in this way."""
    can, name = engine.capabilities, type(engine).__name__
    off = f"or set training.staleness=0 instead of {policy.staleness}."
    if not can.logprobs:
        raise ConfigError(
            f"The engine {name} returns no log-probabilities (Capabilities.logprobs), and training on completions of "
            f"older weights needs them: return them, {off}"
        )
    if can.collective:
        raise ConfigError(
            f"The engine {name} must be called by all processes (Capabilities.collective), and completions that are "
            f"written ahead are asked for by a thread of the main one only: use another engine, {off}"
        )
    lacks = [one for one in ("interruptible", "row_limits", "row_seeds") if not getattr(can, one)]
    if policy.partial == "continue" and lacks:
        raise ConfigError(
            f"training.async_partial=continue goes on with interrupted completions, and the engine {name} does not say "
            f"that it can (Capabilities.{lacks[0]}): set training.async_partial=finish."
        )


class EngineCaller:
    """One engine, and the snapshot that it has.

    Args:
        sampling: the settings; log-probabilities are asked for in any case.
        vocab_size: see `covey.rollout.generate.complete`.
    """

    def __init__(self, engine: InferenceEngine, sampling: SamplingSettings, vocab_size: int | None) -> None:
        self._engine = engine
        self._sampling = replace(sampling, logprobs=True)
        self._vocab_size = vocab_size
        self._loaded: Snapshot | None = None

    @property
    def max_length(self) -> int:
        """The longest completion, in tokens."""
        return self._sampling.max_completion_length

    def load(self, version: int, snapshot: Snapshot) -> None:
        """Give the engine these weights, if it has others. Raises an `EngineError` if it fails, or does not have them
        afterwards."""
        engine = self._engine
        if snapshot is self._loaded:
            return
        self._loaded = None
        with engine_failures(engine, "sync"):
            snapshot.load(engine, version)
        if engine.version != version:
            raise EngineError(
                f"The engine {type(engine).__name__} has version {engine.version} after sync(weights, {version}): it "
                "must be the version that sync was given."
            )
        self._loaded = snapshot

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        starts: Sequence[int],
        limits: Sequence[int] | None,
        interrupted: Callable[[], bool],
        on_ended: Callable[[int, Completion], None],
    ) -> list[Completion]:
        """The completions of these prompts, or what follows the tokens that there are already.

        Args:
            prompts: token ids, those of the completions so far included.
            seeds: of each completion.
            starts: tokens of each completion so far.
            limits: most further tokens of each; None for up to the longest completion.
            interrupted: see `Capabilities.interruptible`.
            on_ended: see `Capabilities.interruptible`.

        Raises:
            EngineError: the engine fails, or returns no log-probabilities.
        """
        engine, can, more = self._engine, self._engine.capabilities, dict[str, Any]()
        if can.interruptible:
            more = {"interrupted": interrupted, "on_ended": on_ended}
        seed: Any = list(seeds) if can.row_seeds else seeds[0] % _SEEDS if can.seeded else None
        found = complete(
            engine,
            prompts,
            self._sampling,
            seed=seed,
            vocab_size=self._vocab_size,
            max_lengths=list(limits) if limits is not None else [self.max_length - start for start in starts],
            **more,
        )
        if any(one.logps is None for one in found if one.ids):
            raise EngineError(
                f"The engine {type(engine).__name__} returned completions without log-probabilities: training on "
                "completions of older weights (training.staleness above 0) needs them."
            )
        return found
