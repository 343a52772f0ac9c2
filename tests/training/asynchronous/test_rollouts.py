"""Completions written ahead in a thread: versions, order, interruption, replay, and failures, by an engine whose every
token is known in advance."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.errors import ConfigError, EngineError
from covey.rollout import SamplingSettings
from covey.training.asynchronous.pool import Group, Policy
from covey.training.asynchronous.rounds import Rollouts, seeds_of
from covey.training.asynchronous.schedule import Schedule, ScheduleWriter
from stepping_engine import SteppingEngine, Weights, logp, written

GROUP, PROMPTS, LONGEST = 3, 2, 20
SEED = 4


class Run:
    """Rounds of two prompts with three completions, and snapshots whose name is their version."""

    def __init__(self, engine: SteppingEngine, policy: Policy, **more: Any) -> None:
        self.engine, self.policy = engine, policy
        self.weights: dict[int, Weights] = {}
        self.rollouts = Rollouts(engine, SamplingSettings(LONGEST), policy, group_size=GROUP, seed=SEED, **more)

    def begin(self, number: int, last: int = 1000) -> None:
        """Publish the weights of a round, and submit what it allows."""
        self.weights[number] = Weights(f"v{number}")
        self.rollouts.publish(number, self.weights[number])
        while self.rollouts.next_round <= min(number + self.policy.staleness, last):
            self.rollouts.submit(self.rollouts.next_round, prompts_of(self.rollouts.next_round))

    def rounds(self, first: int, end: int) -> list[list[Group]]:
        """Take rounds one after the other."""
        found = []
        for number in range(first, end):
            self.begin(number)
            found.append(self.rollouts.take(number))
        return found


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.rollouts.close()


def prompts_of(number: int) -> list[list[int]]:
    return [[5] * (1 + number % 3), [6, number]]


def contents(groups: list[Group]) -> list[Any]:
    return [
        (group.key, row.place, row.seed, row.ids, row.completion.logps, row.versions)
        for group in groups
        for row in group.rows
    ]


def expected_ids(number: int, place: int, parts: list[tuple[str, int]]) -> list[int]:
    prompt = prompts_of(number)[place // GROUP]
    return written(seeds_of(SEED, number, GROUP * PROMPTS)[place], len(prompt), parts, LONGEST)


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_round_k_is_written_by_version_k_minus_n(runs: list[Run], staleness: int) -> None:
    run = Run(SteppingEngine(), Policy(staleness, PROMPTS))
    runs.append(run)
    for number, groups in enumerate(run.rounds(0, 8)):
        version = max(0, number - staleness)
        assert [group.key for group in groups] == [(number, 0), (number, 1)]
        for group in groups:
            for row in group.rows:
                assert row.ids == expected_ids(number, row.place, [(f"v{version}", LONGEST)])
                assert row.versions == [(version, len(row.ids))]
                assert row.staleness(number) == min(number, staleness)
    assert run.engine.loaded == list(range(len(run.engine.loaded)))  # each version once
    kept = [version for version, weights in run.weights.items() if not weights.dropped]
    assert kept[-1] == 7
    assert len(kept) <= staleness + 1


def test_the_engine_writes_while_the_caller_does_not_wait(runs: list[Run]) -> None:
    run = Run(SteppingEngine(paused=True), Policy(2, PROMPTS))
    runs.append(run)
    run.begin(0)
    assert not run.rollouts.is_complete(0)
    run.engine.allow(1000)
    run.rollouts.settle()
    assert [run.rollouts.is_complete(number) for number in range(3)] == [True] * 3
    assert [len(call["prompts"]) for call in run.engine.calls] == [PROMPTS * GROUP] * 3


def test_unfinished_completions_go_on_with_newer_weights(runs: list[Run]) -> None:
    engine = SteppingEngine(paused=True)
    run = Run(engine, Policy(1, PROMPTS, partial="continue", rows_at_once=PROMPTS * GROUP))
    runs.append(run)
    run.begin(0)
    engine.allow(3)  # of round 0
    while len(engine.calls) < 1 or engine._steps._value:  # type: ignore[union-attr]
        pass
    run.weights[1] = Weights("v1")
    run.rollouts.publish(1, run.weights[1])
    engine.allow(1000)
    groups = run.rollouts.take(0)
    for group in groups:
        for row in group.rows:
            assert row.ids == expected_ids(0, row.place, [(f"v{version}", count) for version, count in row.versions])
            (first, count), *rest = row.versions
            assert first == 0
            assert count == row.length if count < 3 else [version for version, _ in rest] == [1] * (count < row.length)
            assert row.completion.logps == [logp(one) for one in row.ids]
            assert not row.completion.unfinished
    assert any(len(row.versions) == 2 for group in groups for row in group.rows)


@pytest.mark.parametrize("partial", ["finish", "continue"])
@pytest.mark.parametrize("order", ["sampler", "arrival"])
def test_the_bound_holds_and_every_group_joins_once(runs: list[Run], order: str, partial: str) -> None:
    policy = Policy(2, PROMPTS, order, partial, rows_at_once=PROMPTS * GROUP)
    run = Run(SteppingEngine(), policy)
    runs.append(run)
    rounds = run.rounds(0, 12)
    joined = [group.key for groups in rounds for group in groups]
    assert all(len(groups) == PROMPTS for groups in rounds)
    assert len(set(joined)) == len(joined)
    for number, groups in enumerate(rounds):
        for group in groups:
            for row in group.rows:
                assert all(number - 2 <= version <= number for version, _ in row.versions)
                assert sum(count for _, count in row.versions) == len(row.ids)
    if order == "sampler":
        assert joined == [(number, place) for number in range(12) for place in range(PROMPTS)]


@pytest.mark.parametrize("partial", ["finish", "continue"])
@pytest.mark.parametrize("order", ["sampler", "arrival"])
def test_a_recorded_schedule_is_replayed_exactly(runs: list[Run], tmp_path: Path, order: str, partial: str) -> None:
    policy = Policy(2, PROMPTS, order, partial, rows_at_once=PROMPTS * GROUP)
    file = tmp_path / "schedule.jsonl"
    recorded = Run(SteppingEngine(), policy, schedule=ScheduleWriter(file, {"seed": SEED}))
    first = [contents(groups) for groups in recorded.rounds(0, 12)]
    recorded.rollouts.close()

    replay, again = Schedule.read(file), tmp_path / "again.jsonl"
    run = Run(SteppingEngine(), policy, replay=replay, schedule=ScheduleWriter(again, {"seed": SEED}))
    runs.append(run)
    assert [contents(groups) for groups in run.rounds(0, 12)] == first
    run.rollouts.close()
    calls = [call for call in recorded.engine.calls if call["prompts"]]
    assert run.engine.calls[: len(replay.calls)] == calls[: len(run.engine.calls)]
    assert Schedule.read(again).rounds == replay.rounds


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_replay_goes_on_from_a_state_with_open_completions(runs: list[Run], tmp_path: Path, stop: int) -> None:
    policy = Policy(2, PROMPTS, "arrival", "continue", rows_at_once=PROMPTS * GROUP)
    file, again = tmp_path / "schedule.jsonl", tmp_path / "again.jsonl"
    engine = SteppingEngine(paused=True)
    recorded = Run(engine, policy, schedule=ScheduleWriter(file, {}))
    runs.append(recorded)
    expected = []
    for number in range(10):  # no more steps than a round needs, so that completions are interrupted
        recorded.begin(number)
        while not recorded.rollouts.is_complete(number):
            engine.allow(1)
            time.sleep(0.002)
        expected.append(contents(recorded.rollouts.take(number)))
    recorded.rollouts.close()
    replay = Schedule.read(file)
    assert any(call.open for call in replay.calls)

    stopped = Run(SteppingEngine(), policy, replay=replay, schedule=ScheduleWriter(again, {}))
    found = [contents(groups) for groups in stopped.rounds(0, stop)]
    state = stopped.rollouts.settle()
    stopped.rollouts.close()
    more = {"replay": replay, "schedule": ScheduleWriter(again, {}, keep=state["schedule"])}
    resumed = Run(SteppingEngine(), policy, **more)
    runs.append(resumed)
    resumed.rollouts.restore(state)
    found += [contents(groups) for groups in resumed.rounds(stop, 10)]
    assert found == expected
    resumed.rollouts.settle()
    resumed.rollouts.close()
    calls = Schedule.read(again).calls
    assert calls == replay.calls[: len(calls)]


def test_what_a_round_trained_on_is_in_the_schedule_of_a_run_that_ended_in_a_call(
    runs: list[Run], tmp_path: Path
) -> None:
    """The call goes on with completions that no round trains on any more. A schedule without it is refused at once."""
    policy, cut_short = Policy(2, PROMPTS, "arrival"), 0
    for end in range(1, 7):
        file, engine = tmp_path / f"{end}.jsonl", SteppingEngine(paused=True)
        recorded = Run(engine, policy, schedule=ScheduleWriter(file, {}))
        runs.append(recorded)
        expected = []
        for number in range(end):
            recorded.begin(number)
            while not recorded.rollouts.is_complete(number):
                engine.allow(1)
                time.sleep(0.002)
            expected.append(contents(recorded.rollouts.take(number)))
        recorded.rollouts.close()
        replay = Schedule.read(file)
        cut_short += len(replay.calls[-1].rows) < len(engine.calls[-1]["prompts"])
        again = Run(SteppingEngine(), policy, replay=replay)
        runs.append(again)
        assert [contents(groups) for groups in again.rounds(0, end)] == expected
    assert cut_short
    lines = file.read_text().splitlines(keepends=True)
    last = max(at for at, line in enumerate(lines) if '"call"' in line)
    file.write_text("".join(lines[:last] + lines[last + 1 :]))
    without = Run(SteppingEngine(), policy, replay=Schedule.read(file))
    runs.append(without)
    with pytest.raises(ConfigError, match="ends before the completions of round"):
        without.rounds(0, end)


def test_a_line_that_was_cut_short_is_ignored(tmp_path: Path) -> None:
    file, policy = tmp_path / "schedule.jsonl", Policy(1, PROMPTS)
    recorded = Run(SteppingEngine(), policy, schedule=ScheduleWriter(file, {}))
    recorded.rounds(0, 3)
    recorded.rollouts.close()
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    cut = Schedule.read(file)
    file.write_bytes(b"".join(lines[:-1]))
    assert cut == Schedule.read(file)


def test_a_replay_of_another_run_is_refused(runs: list[Run], tmp_path: Path) -> None:
    file, policy = tmp_path / "schedule.jsonl", Policy(1, PROMPTS)
    recorded = Run(SteppingEngine(), policy, schedule=ScheduleWriter(file, {"seed": SEED, "threads": 1}))
    recorded.rounds(0, 3)
    recorded.rollouts.close()
    replay = Schedule.read(file)
    replay.check({"seed": SEED})
    with pytest.raises(ConfigError, match="threads was 1 and is 2 here"):
        replay.check({"seed": SEED, "threads": 2})

    other = Run(SteppingEngine(vocabulary=39), policy, replay=replay)  # another model, by its completions
    runs.append(other)
    with pytest.raises(ConfigError, match=r"does not fit this run.*does not end where"):
        other.rounds(0, 3)
    same = Run(SteppingEngine(), policy, replay=replay)
    runs.append(same)
    same.rounds(0, 3)
    with pytest.raises(ConfigError, match="ends before round 3"):
        same.rounds(3, 4)
    prompts = Run(SteppingEngine(), policy, replay=replay)
    runs.append(prompts)
    prompts.rollouts.publish(0, Weights("v0"))
    with pytest.raises(ConfigError, match="prompts of its round 0 are others"):
        prompts.rollouts.submit(0, [[1], [2]])


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_state_goes_on_as_if_it_had_never_stopped(runs: list[Run], tmp_path: Path, stop: int) -> None:
    policy = Policy(2, PROMPTS)
    straight = Run(SteppingEngine(), policy)
    runs.append(straight)
    expected = [contents(groups) for groups in straight.rounds(0, 8)]
    file = tmp_path / "schedule.jsonl"
    stopped = Run(SteppingEngine(), policy, schedule=ScheduleWriter(file, {}))
    found = [contents(groups) for groups in stopped.rounds(0, stop)]
    state = stopped.rollouts.settle()
    stopped.begin(stop)  # after the checkpoint: a killed run's schedule is longer than that
    stopped.rollouts.close()

    resumed = Run(SteppingEngine(), policy, schedule=ScheduleWriter(file, {}, keep=state["schedule"]))
    runs.append(resumed)
    resumed.rollouts.restore(state)
    found += [contents(groups) for groups in resumed.rounds(stop, 8)]
    assert found == expected
    resumed.rollouts.close()
    whole = Schedule.read(file)
    assert sorted(whole.rounds) == list(range(8))
    assert sum(call.version == 0 for call in whole.calls) == 3
    assert [number for number, _, _ in (call.rows[0] for call in whole.calls)][:8] == list(range(8))


def test_an_error_of_the_engine_reaches_the_caller(runs: list[Run]) -> None:
    engine = SteppingEngine()

    def fails(call: int) -> None:
        if call == 1:
            raise ValueError("out of luck\nindeed")

    engine.fails = fails
    run = Run(engine, Policy(1, PROMPTS))
    runs.append(run)
    run.begin(0)
    run.rollouts.take(0)
    with pytest.raises(EngineError, match=r"SteppingEngine.*ValueError: out of luck") as raised:
        run.rounds(1, 3)
    assert "\n" not in str(raised.value)


def test_close_interrupts_a_call(runs: list[Run]) -> None:
    run = Run(SteppingEngine(paused=True), Policy(1, PROMPTS))
    run.begin(0)
    run.rollouts.close()
    run.rollouts.close()
    assert run.engine.closed.is_set()
    assert run.weights[0].dropped
    assert not run.rollouts._thread.is_alive()
    with pytest.raises(EngineError, match="closed"):
        run.rollouts.take(0)
