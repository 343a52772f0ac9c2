"""Training with environments in worker processes: calls and resets at once, typed outcomes, one start for a group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.environments.contract import EnvironmentSource
from covey.environments.runner import EnvironmentRunner
from covey.rewards.runner import RewardRunner
from forked import run_two
from stopped_runs import StopAfter, contents
from stopped_runs import logged as logs
from tool_trainers import END, ScriptedCovey, asked, call, games, lengths, tool_trainer

ENVIRONMENT = '''
import os
import random
import time
from pathlib import Path


class Counter:
    """Counts up to a goal."""

    def reset(self, **row):
        if row.get("breaks"):
            raise RuntimeError("there is no game today")
        self.count = 0
        self.goal = int(row.get("goal") or random.randint(2, 10**6))
        self.folder = Path(row.get("folder") or ".")
        return f" Count to {self.goal}." if row.get("tells") else None

    def increment(self, step: int) -> int:
        """
        Count on.

        Args:
            step: How far.
        """
        self.count += step
        return self.count

    def meet(self, others: int) -> str:
        """
        Wait until others are here.

        Args:
            others: How many.
        """
        (self.folder / str(os.getpid())).touch()
        while len(list(self.folder.iterdir())) < others:
            time.sleep(0.01)
        return "met"

    def hang(self) -> str:
        """Never return."""
        while True:
            time.sleep(1)

    def die(self) -> str:
        """End the process."""
        os._exit(3)

    def get_reward(self) -> float:
        return float(self.count == self.goal)
'''
SCRIPTS = {
    "reach": [f"{call('increment', {'step': 1})}\n{call('increment', {'step': 1})}{END}", f"2{END}"],
    "miss": [f"{call('increment', {'step': 5})}{END}", f"5{END}"],
    "none": [f"0{END}"],
    "meet": [f"{call('meet', {'others': 4})}{END}", f"Met.{END}"],
    "hang": [f"{call('hang', {})}{END}", f"Never.{END}"],
    "die": [f"{call('die', {})}\n{call('increment', {'step': 1})}{END}", f"Never.{END}"],
}


class Trainer(ScriptedCovey):
    scripts = SCRIPTS


@pytest.fixture(autouse=True)
def without_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentRunner]:
    file = tmp_path_factory.mktemp("code") / "game.py"
    file.write_text(ENVIRONMENT, encoding="utf-8")
    with EnvironmentRunner({None: EnvironmentSource(f"{file}:Counter")}, timeout=20.0) as made:
        made.start()
        yield made


def train(runner: EnvironmentRunner | None, folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Any:
    """A trained trainer; without a runner, the environment is in this process."""
    settings = dict(settings)
    namespace: dict[str, Any] = {}
    exec(ENVIRONMENT, namespace)
    factory = namespace["Counter"] if runner is None else runner.factory
    more = {"tools": None, "reward_funcs": None, "environment_factory": factory, **settings.pop("more", {})}
    stop, resume = settings.pop("stop", None), settings.pop("resume", None)
    trainer = tool_trainer(Trainer, folder, rows, more=more, **settings)
    if stop is not None:
        trainer.add_callback(StopAfter(stop))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer: Any) -> dict[str, Any]:
    return next(row for row in trainer.state.log_history if "loss" in row)


def with_columns(script: str, **columns: Any) -> list[dict[str, Any]]:
    return [{**row, **columns} for row in asked(script)]


def test_a_step_is_that_of_the_environment_in_this_process(runner: EnvironmentRunner, tmp_path: Path) -> None:
    rows = with_columns("reach,miss,none,reach", goal=2, tells=True)
    found, here = train(runner, tmp_path / "a", rows), train(None, tmp_path / "b", rows)
    assert found.latest_completions == here.latest_completions
    assert logged(found)["rewards/Counter/mean"] == logged(here)["rewards/Counter/mean"] == 0.5
    for name, gradient in here.gradient.items():
        assert gradient.equal(found.gradient[name]), name


def test_calls_of_different_rows_are_made_at_once(runner: EnvironmentRunner, tmp_path: Path) -> None:
    """Each call waits for all others."""
    folder = tmp_path / "meeting"
    folder.mkdir()
    trainer = train(runner, tmp_path, with_columns("meet", goal=1, folder=str(folder)))
    assert [one[1]["content"] for one in trainer.latest_completions["completion"]] == ["met"] * 4


def test_the_members_of_a_group_meet_the_same_start(runner: EnvironmentRunner, tmp_path: Path) -> None:
    rows = with_columns("none", tells=True) * 2
    said = []
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        trainer = train(runner, tmp_path / name, rows, per_device_train_batch_size=8, seed=seed)
        said.append([prompt[0]["content"] for prompt in trainer.latest_completions["prompt"]])
    assert len(set(said[0][:4])) == len(set(said[0][4:])) == 1
    assert said[0][0] != said[0][4]
    assert said[0] == said[1] != said[2]


def test_a_call_that_hangs_or_kills_its_process_ends_its_episode(tmp_path: Path) -> None:
    file = tmp_path / "game.py"
    file.write_text(ENVIRONMENT, encoding="utf-8")
    with EnvironmentRunner({None: EnvironmentSource(f"{file}:Counter")}, timeout=2.0) as runner:
        runner.start()
        trainer = train(runner, tmp_path / "out", with_columns("hang,die,reach,none", goal=2))
    row = logged(trainer)
    assert row["environment/timeouts"] == 1
    assert row["environment/crashes"] == 1
    assert row["environment/turns"] == (1 + 1 + 2 + 1) / 4
    assert row["tools/call_frequency"] == 5 / 4
    assert row["tools/failure_frequency"] == pytest.approx(3 / 5)
    assert trainer.latest_completions["Counter"] == [0.0, 0.0, 1.0, 0.0]
    hung, died, *_ = trainer.latest_completions["completion"]
    assert [message["role"] for message in hung] == ["assistant", "tool"]
    assert [message["role"] for message in died] == ["assistant", "tool", "tool"]
    assert "error" in hung[1]["content"]


def test_a_reset_that_fails_gives_no_reward_and_the_run_goes_on(runner: EnvironmentRunner, tmp_path: Path) -> None:
    rows = with_columns("reach,none,reach,none", goal=2, breaks=False) + with_columns("none", goal=2, breaks=True)
    trainer = train(runner, tmp_path, rows, per_device_train_batch_size=8)
    assert logged(trainer)["environment/crashes"] == 4
    assert trainer.latest_completions["Counter"][:4] == [1.0, 0.0, 1.0, 0.0]
    assert all(value != value for value in trainer.latest_completions["Counter"][4:])  # NaN: none applies


@pytest.mark.parametrize("resample", [0, 2])
def test_stop_and_go_equals_the_straight_run(runner: EnvironmentRunner, tmp_path: Path, resample: int) -> None:
    """Games of random goals; a generation batch is used for four steps, so one stop is in the middle of a batch."""
    rows = with_columns("reach,miss,none,reach", tells=True) + with_columns("none", tells=True)
    rows += with_columns("miss,none,reach,none", tells=True)
    settings: dict[str, Any] = {"num_iterations": 2, "steps_per_generation": 2, "max_steps": 7, "save_steps": 100}
    settings |= {"save_strategy": "steps", "shuffle_dataset": True, "beta": 0.05}
    settings |= {"more": {"resample_groups": resample, "reward_funcs": lengths}}
    straight = train(runner, tmp_path / "straight", rows, **settings)
    expected = contents(tmp_path / "straight" / "checkpoint-7")
    for stop in (1, 4):
        folder = tmp_path / f"stopped-{stop}"
        train(runner, folder, rows, stop=stop, **settings)
        resumed = train(runner, folder, rows, resume=str(folder / f"checkpoint-{stop}"), **settings)
        found = contents(folder / "checkpoint-7")
        for part in ("weights", "moments"):
            for name, tensor in expected[part].items():
                assert found[part][name].equal(tensor), (part, name, stop)
        assert found["random"].equal(expected["random"])
        assert resumed.latest_completions == straight.latest_completions
        kept = [
            [{k: v for k, v in row.items() if "seconds" not in k} for row in logs(one)] for one in (resumed, straight)
        ]
        assert kept[0] == kept[1]


REWARDS = """
def counted(completions, environments, **columns):
    return [float(environment.count) for environment in environments]

def turns(completions, **columns):
    return [float(len(completion)) for completion in completions]
"""


@pytest.mark.parametrize("functions", [["counted", "turns"], ["turns"]])
def test_rewards_by_name_start_early_and_read_the_environment_if_they_name_it(
    runner: EnvironmentRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, functions: list[str]
) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(REWARDS if "counted" in functions else REWARDS.replace("counted", "unused"), encoding="utf-8")
    begun: list[int] = []
    begin = RewardRunner.begin
    monkeypatch.setattr(RewardRunner, "begin", lambda *given: (begun.append(len(given[2])), begin(*given))[1])
    with RewardRunner([f"{file}:{name}" for name in functions], workers=1) as rewards:
        rows = with_columns("reach,miss,none,reach", goal=2)
        found = train(runner, tmp_path / "out", rows, more={"reward_funcs": rewards.functions}).latest_completions
    assert begun == [4]
    assert found["turns"] == [4.0, 3.0, 1.0, 4.0]
    assert found["Counter"] == [1.0, 0.0, 0.0, 1.0]
    assert found.get("counted", [2.0, 5.0, 0.0, 2.0]) == [2.0, 5.0, 0.0, 2.0]


@pytest.mark.slow
def test_two_processes_take_the_step_of_one(tmp_path: Path) -> None:
    """The middle group is in both processes, and so are its equal starts; turns differ in number between the two."""
    file = tmp_path / "game.py"
    file.write_text(ENVIRONMENT, encoding="utf-8")
    run_two("tool_trainers.py", str(file), tmp_path, folder=tmp_path)
    two = torch.load(tmp_path / "two.pt", weights_only=True)
    one = games(file, tmp_path / "alone")
    starts = [prompt[0]["content"] for prompt in two["columns"]["prompt"]]
    assert [len(set(starts[at : at + 4])) for at in (0, 4, 8)] == [1, 1, 1]
    assert len(set(starts)) == 3
    assert two["columns"]["completion"] == one.latest_completions["completion"]
    for name in ("tools/call_frequency", "environment/turns", "resampling/groups_replaced", "rewards/lengths/mean"):
        assert two["row"][name] == pytest.approx(logged(one)[name]), name
    assert logged(one)["resampling/groups_replaced"] == 1
