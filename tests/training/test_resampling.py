"""Groups without signal: which they are, and their replacement by whole groups in the order of the permutations."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl.trainer.utils import RepeatSampler

from covey import GRPOTrainer
from covey.errors import ConfigError, RewardError
from covey.training.advantages import ScoredRewards
from covey.training.checkpoint.state import TrainingProgress
from covey.training.prompt_order import OwnOrder, PromptOrder, replay_permutations
from covey.training.resampling import (
    FilledBatch,
    Resampler,
    SamplingRound,
    check_resampling,
    counts_in_loss,
    has_signal,
    make_round,
)
from trainers import build_trainer

NAN = float("nan")


# Which groups have signal


def signal(
    rewards: list[list[float]], weights: list[float], counts: list[bool] | None = None, group: int = 3
) -> list[bool]:
    scored = ScoredRewards(torch.tensor(rewards), torch.tensor(weights), "sum_then_normalize", group)
    return list(map(bool, has_signal(scored, torch.tensor(counts or [True] * len(rewards)))))


def test_a_group_has_signal_when_its_rewards_differ() -> None:
    groups = [[0, 1, 0], [1, 1, 1], [NAN, NAN, NAN], [NAN, 1, 1], [NAN, 1, 0], [-3, -3, -3]]
    assert signal([[float(reward)] for group in groups for reward in group], [1.0]) == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]


def test_the_weighted_sum_decides() -> None:
    rows = [[1.0, 0.0], [0.0, 2.0], [1.0, 0.0]]
    assert signal(rows, [2.0, 1.0]) == [False]
    assert signal(rows, [1.0, 1.0]) == [True]
    tenths = [[0.1, 0.2], [0.3, 0.0], [0.0, 0.3]]  # equal but for rounding
    assert signal(tenths, [1.0, 1.0]) == [False]


def test_a_group_that_the_loss_leaves_out_has_no_signal() -> None:
    rows = [[0.0], [1.0], [0.0]]
    assert signal(rows, [1.0], [False, False, False]) == [False]
    assert signal(rows, [1.0], [False, True, False]) == [True]
    assert counts_in_loss([[5, 1], [5, 6]], eos_token_ids={1, 0}).tolist() == [True, False]
    assert counts_in_loss([[5, 1], [5, 6]], eos_token_ids=None).tolist() == [True, True]


# The order of the prompts


def test_batches_alone_are_those_of_the_sampler() -> None:
    sampler = RepeatSampler(range(11), mini_repeat_count=2, batch_size=3, repeat_count=2, seed=7)
    expected = [index for _ in range(3) for index in list(sampler)]
    once = [expected[place : place + 6 : 2] for place in range(0, len(expected), 12)]
    order = PromptOrder(11, shuffle=True, seed=7)
    assert [order.batch(3) for _ in range(9)] == once


def test_further_prompts_are_the_next_ones_and_are_not_returned_again() -> None:
    order = PromptOrder(7, shuffle=False, seed=0)
    assert order.batch(3) == [0, 1, 2]
    assert order.more(2) == [3, 4]
    assert order.cursor == (0, 5)
    assert order.more(3) == [5, 6, 0]  # into the next pass, whose first prompt is then used up
    assert order.batch(3) == [1, 2, 3]
    assert order.batch(4) == [4, 5, 6, 0]  # three are left of the second pass: they are not left out
    assert order.passes == 2 + 1 / 7


def test_without_shuffling_passes_go_on_where_the_last_one_ended() -> None:
    """TRL's repetitions and number of rows, and every row as often as any other."""
    trls = RepeatSampler(range(7), mini_repeat_count=2, batch_size=3, repeat_count=2, shuffle=False, seed=1)
    sampler = OwnOrder(trls)
    passes = [list(sampler) for _ in range(7)]
    assert passes[0] == list(trls)
    assert passes[1] == [6, 6, 0, 0, 1, 1] * 2 + [2, 2, 3, 3, 4, 4] * 2
    assert all(len(rows) == len(sampler) == len(trls) for rows in passes)
    assert set(Counter(row for rows in passes for row in rows).values()) == {24}
    again = OwnOrder(trls)
    replay_permutations(again, 5)
    assert [list(again), list(again)] == passes[5:]


def test_an_order_resumes_from_its_cursor() -> None:
    straight = PromptOrder(10, shuffle=True, seed=3)
    straight.batch(4), straight.more(5), straight.batch(4)
    assert straight.cursor == (1, 4)
    again = PromptOrder(10, shuffle=True, seed=3, cursor=straight.cursor)
    assert [again.batch(4), again.more(7)] == [straight.batch(4), straight.more(7)]


# Which groups replace which


class Data:
    """Rows that know their number."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> dict[str, int]:
        return {"number": place}


def fill(
    most: int, silent: set[int], *, groups: int = 4, size: int = 20, group: int = 2, processes: int = 1, index: int = 0
) -> tuple[FilledBatch, list[list[int]], Resampler]:
    """A batch filled from rows in their own order; the numbers in `silent` give groups without signal.

    With two processes, the call of process 0 also runs process 1, on a thread.
    """
    threads_gather = ThreadGather(processes)
    results: dict[int, tuple[FilledBatch, list[list[int]], Resampler]] = {}

    def run(rank: int) -> None:
        drawn: list[list[int]] = []

        def generate(rows: list[dict[str, Any]]) -> SamplingRound:
            numbers = [row["number"] for row in rows]
            all_numbers = threads_gather.gather(rank, numbers)
            drawn.append(all_numbers[::group])
            rewards = torch.tensor([[float(n)] for n in all_numbers])
            signal_P = torch.tensor([n not in silent for n in all_numbers[::group]])
            return make_round(rows, [[n] for n in numbers], None, rewards, signal_P, extra={}, reported={})

        resampler = Resampler(
            most,
            num_generations=group,
            processes=processes,
            process_index=rank,
            gather_object=lambda mine: threads_gather.gather(rank, mine),
        )
        sampler = RepeatSampler(Data(size), mini_repeat_count=group, batch_size=groups, shuffle=False)
        sampler.seed = 0
        resampler.begin(sampler, None, generate_every=1)
        results[rank] = (resampler.fill(groups * group // processes, generate), drawn, resampler)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return results[index]


class ThreadGather:
    """Concatenates lists over threads."""

    def __init__(self, processes: int) -> None:
        self.barrier = threading.Barrier(processes, timeout=20)
        self.parts: list[list[Any]] = [[] for _ in range(processes)]

    def gather(self, rank: int, mine: list[Any]) -> list[Any]:
        self.parts[rank] = mine
        self.barrier.wait()
        gathered = [item for part in self.parts for item in part]
        self.barrier.wait()
        return gathered


def numbers(filled: FilledBatch) -> list[int]:
    return [row["number"] for row in filled.rows]


def test_groups_without_signal_are_replaced_in_place_by_the_next_with_signal() -> None:
    filled, drawn, resampler = fill(8, silent={1, 2, 4, 7})
    assert drawn == [[0, 1, 2, 3], [4, 5], [6]]
    assert numbers(filled) == [0, 0, 5, 5, 6, 6, 3, 3]
    assert filled.rewards.flatten().tolist() == [0, 0, 5, 5, 6, 6, 3, 3]
    assert filled.completions == ([[n] for n in [0, 0, 5, 5, 6, 6, 3, 3]], None)
    assert resampler.cursor == (0, 7)
    metrics = dict(filled.metrics)
    assert metrics.pop("time/resampling") > 0
    assert metrics == {
        "resampling/groups_without_signal": 2,
        "resampling/groups_drawn": 3,
        "resampling/groups_replaced": 2,
        "resampling/completions": 6,
        "resampling/passes_over_data": 7 / 20,
    }


def test_no_more_prompts_are_drawn_than_allowed_and_what_is_left_stays() -> None:
    filled, drawn, _ = fill(3, silent={0, 1, 2, 3, 5, 6})
    assert drawn == [[0, 1, 2, 3], [4, 5, 6]]
    assert numbers(filled) == [4, 4, 1, 1, 2, 2, 3, 3]
    filled, drawn, _ = fill(3, silent=set())
    assert drawn == [[0, 1, 2, 3]]
    assert numbers(filled) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert filled.metrics["time/resampling"] == 0
    filled, drawn, resampler = fill(3, silent={1, 2, 3}, size=6)
    assert drawn == [[0, 1, 2, 3], [4, 5, 0]]  # the data end in between
    assert numbers(filled) == [0, 0, 4, 4, 5, 5, 0, 0]
    assert resampler.cursor == (1, 1)


@pytest.mark.parametrize("group", [2, 3, 4])
def test_two_processes_fill_the_same_batch(group: int) -> None:
    """Three completions a group: a group lies on both processes, and only two groups at a time divide evenly."""
    silent = {1, 2, 3, 5}
    expected, drawn, _ = fill(5, silent, group=group)
    parts = [fill(5, silent, group=group, processes=2, index=rank) for rank in (0, 1)]
    if group != 3:
        assert parts[0][1] == parts[1][1] == drawn
        assert numbers(parts[0][0]) + numbers(parts[1][0]) == numbers(expected)
    else:
        assert parts[0][1] == parts[1][1] == [[0, 1, 2, 3], [4, 5, 6, 7]]  # an odd number does not divide evenly
        assert numbers(parts[0][0]) + numbers(parts[1][0]) == [n for n in (0, 4, 6, 7) for _ in range(3)]
    for part, _, _ in parts:
        assert part.rewards.flatten().tolist() == numbers(parts[0][0]) + numbers(parts[1][0])


def progress(micro_step: int, cursor: tuple[int, int] | None) -> TrainingProgress:
    return TrainingProgress(
        micro_step=micro_step,
        passes_done=0,
        buffered_inputs=None,
        pending_metrics={},
        completion_log={},
        step_time=0.0,
        loss_since_log=0.0,
        loss_total=0.0,
        last_logged_step=0,
        prompt_cursor=cursor,
    )


def test_without_a_cursor_the_position_follows_from_the_batches_done() -> None:
    resampler = Resampler(2, num_generations=2, processes=1, process_index=0, gather_object=list)
    assert resampler.cursor is None
    sampler = RepeatSampler(Data(11), mini_repeat_count=2, batch_size=4, seed=1)
    resampler.begin(sampler, progress(5, None), generate_every=2)  # in the middle of the third batch
    assert resampler.cursor == (1, 4)
    resampler.begin(sampler, progress(5, (2, 5)), generate_every=2)
    assert resampler.cursor == (2, 5)


def test_what_rewards_log_moves_with_the_completions() -> None:
    def part(first: int, rows: int, value: float) -> SamplingRound:
        given = [{"number": first + row} for row in range(rows)]
        extra = {"note": [f"note {first + row}" for row in range(rows)]}
        rewards = torch.zeros(rows, 1)
        signal_P = torch.tensor([first > 0] * (rows // 2))
        return make_round(given, [[1]] * rows, None, rewards, signal_P, extra=extra, reported={"share": [value]})

    parts = iter([part(0, 4, 0.0), part(4, 4, 0.5), part(8, 2, 1.0)])
    resampler = Resampler(9, num_generations=2, processes=1, process_index=0, gather_object=list)
    sampler = RepeatSampler(Data(20), mini_repeat_count=2, batch_size=2, seed=0)
    resampler.begin(sampler, None, generate_every=1)
    filled = resampler.fill(4, lambda rows: next(parts))
    assert filled.extra == {"note": ["note 4", "note 5", "note 6", "note 7"]}
    assert filled.reported == {"share": [0.25]}
    with pytest.raises(RewardError, match=r"1 values of 'note' by log_extra for a batch of 2 completions"):
        make_round([{}, {}], [[1], [1]], None, torch.zeros(2, 1), torch.ones(1), extra={"note": [1]}, reported={})


# What is refused


def test_too_few_groups_for_the_processes_are_refused() -> None:
    settings: dict[str, Any] = {"process_index": 0, "gather_object": list}
    with pytest.raises(ConfigError, match=r"resample_groups=3 is too small.*Set it to 4 or more"):
        Resampler(3, num_generations=6, processes=8, **settings)
    Resampler(4, num_generations=6, processes=8, **settings)
    with pytest.raises(ConfigError, match=r"resample_groups=-1 is too small"):
        Resampler(-1, num_generations=8, processes=1, **settings)


def test_streamed_data_images_and_tools_are_refused() -> None:
    data = Dataset.from_dict({"prompt": ["a"], "image": ["b"]})
    with pytest.raises(ConfigError, match="streamed data"):
        check_resampling(data.to_iterable_dataset(), {})
    with pytest.raises(ConfigError, match="uses tools and the column image"):
        check_resampling(data, {"tools": True, "rollout_func": False})
    check_resampling(data.remove_columns("image"), {"tools": False})


def test_the_trainer_refuses_before_it_trains(tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    more: dict[str, Any] = {"rollout_func": lambda prompts, trainer: {}, "resample_groups": 2}
    with pytest.raises(ConfigError, match="rollout_func"):
        build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=4, more=more)
    resampler = Resampler(2, num_generations=2, processes=1, process_index=0, gather_object=list)
    with pytest.raises(ConfigError, match="another one, list"):
        resampler.begin([], None, generate_every=1)


def test_the_key_reaches_the_trainer() -> None:
    from covey.config import load
    from covey.training.advantages import objective_arguments

    assert objective_arguments(load([]))["resample_groups"] == 0
    assert objective_arguments(load(["objective.resample_groups=16"]))["resample_groups"] == 16
    with pytest.raises(ConfigError, match=r"objective\.resample_groups"):
        load(["objective.resample_groups=-1"])
