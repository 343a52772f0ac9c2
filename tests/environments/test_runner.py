"""The runner of environments and its proxies: what TRL sees, what is shared, and what is refused before training."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import random
import signal
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.utils import get_json_schema

import hostile_environments
from covey import importing
from covey.environments.contract import EnvironmentSource, check_environment, tool_methods
from covey.environments.runner import EnvironmentRunner
from covey.errors import EnvironmentSetupError
from covey.rewards.runner import RewardRunner
from game_environments import GAMES, source

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes and files as Linux has them")
HOSTILE = hostile_environments.__file__


def original(games: Path, name: str) -> Any:
    space: dict[str, Any] = {"__name__": "games_here"}
    sys.modules["games_here"] = type(sys)("games_here")
    exec(compile(games.read_text(encoding="utf-8"), str(games), "exec"), space)  # the user's file, in this process
    vars(sys.modules["games_here"]).update(space)
    return space[name]


@pytest.mark.parametrize("name", ["Game", "Scored"])
def test_trl_finds_the_same_tools_and_schemas_as_on_the_original(
    runner: EnvironmentRunner, games: Path, name: str
) -> None:
    (proxy,) = runner.instances([name.lower()])
    kind, own = type(proxy), original(games, name)
    here = own()
    assert kind.__name__ == name
    assert kind.__doc__ == inspect.getdoc(own)
    functions = [one for one, _ in inspect.getmembers(own, inspect.isfunction) if not one.startswith("_")]
    found = [one for one, _ in inspect.getmembers(kind, inspect.isfunction) if not one.startswith("_")]
    assert found == functions
    assert ("get_reward" in found) == (name == "Scored")
    assert tool_methods(kind) == ["inherited", "meet", "move", "nap", "rules"]
    for method in tool_methods(kind):
        assert get_json_schema(getattr(proxy, method)) == get_json_schema(getattr(here, method))
        assert get_json_schema(getattr(kind, method)) == get_json_schema(getattr(here, method))
        mine, theirs = inspect.signature(getattr(proxy, method)), inspect.signature(getattr(here, method))
        assert list(mine.parameters) == list(theirs.parameters)
        assert [p.kind for p in mine.parameters.values()] == [p.kind for p in theirs.parameters.values()]
        assert [p.default for p in mine.parameters.values()] == [p.default for p in theirs.parameters.values()]
        assert getattr(proxy, method).__name__ == method
        assert not inspect.iscoroutinefunction(getattr(kind, method))
    check_environment(proxy, "here")


def test_standalone_tools_have_the_originals_schema_and_come_first(runner: EnvironmentRunner, games: Path) -> None:
    (tool,) = runner.tools
    assert get_json_schema(tool) == get_json_schema(original(games, "meet"))
    assert [one.__name__ for one in runner.tools_of("game")] == ["meet", "inherited", "meet", "move", "nap", "rules"]
    assert [one.__name__ for one in runner.tools_of(None)] == ["meet"]


def test_each_class_has_one_class_of_proxies(runner: EnvironmentRunner) -> None:
    """TRL's rewards go by the exact type, and are named after the class."""
    game, other, scored, again = runner.instances(["game", "game", "scored", "again"])
    assert type(game) is type(other)
    assert type(scored) is type(again) is not type(game)
    assert len({id(one) for one in (game, other, scored, again)}) == 4
    assert runner.instances(["game", "again"]) == [game, again]
    factories = runner.factory
    assert isinstance(factories, dict)
    assert list(factories) == ["game", "scored", "again"]
    assert type(factories["game"]()) is type(game)


def test_methods_attributes_and_settings_are_those_of_the_original(runner: EnvironmentRunner) -> None:
    game, scored = runner.instances(["game", "scored"])
    assert game.reset(a=1, prompt=[{"role": "user"}]) is None
    assert game.row == {"a": 1, "prompt": [{"role": "user"}]}
    assert (game.top, scored.top) == (7, 3)
    assert game.rules(page=2) == "page 2"
    assert game.inherited() is False
    assert game.move(colour="red", how="up", where=[]) == {"colour": "red"}
    scored.reset(worth=0.5)
    assert scored.get_reward() == 0.5
    assert not hasattr(game, "get_reward")
    for name in ("unknown", "move_", "__len__"):
        with pytest.raises(AttributeError):
            getattr(game, name)
    with pytest.raises(AttributeError, match="only plain data can be read"):
        game._private()
    with pytest.raises(AttributeError, match="cannot be set"):
        game.top = 8


def test_equal_seeds_make_equal_starts_and_no_seed_makes_others(runner: EnvironmentRunner) -> None:
    environments = runner.instances(["game"] * 6)
    for _ in range(2):
        for environment, seed in zip(environments, (1, 1, 2, 2**40, None, None), strict=True):
            environment.covey.begin_reset({}, seed)
            environment.reset()
        starts = [environment.values for environment in environments]
        random.seed(1)
        np.random.seed(1)
        assert starts[0] == starts[1] == [random.random(), np.random.random()]
        assert len({value for start in starts[1:] for value in start}) == 10
        held = [environment.held for environment in environments]
        assert held[0] == held[1]
        assert len({value for start in held[1:4] for value in start}) == 12
        assert len({value for start in held for value in start[:2]}) == 10  # of the module and the class


def test_calls_of_several_episodes_run_at_once(runner: EnvironmentRunner, tmp_path: Path) -> None:
    environments = runner.instances(["game"] * 3)
    for environment in environments:
        environment.reset()
    files = [str(tmp_path / str(number)) for number in range(5)]
    around = list(zip(files, [*files[1:], files[0]], strict=True))
    calls = [
        one.meet.submit(here, there=there) for one, (here, there) in zip(environments, around[:3], strict=True)
    ] + [runner.tools[0].submit(here, there) for here, there in around[3:]]
    assert [call.result(60) for call in calls] == ["met"] * 5


def test_an_episode_has_a_limit_of_its_own(games: Path) -> None:
    with EnvironmentRunner({None: source(games, "Game")}, timeout=30.0, episode_timeout=0.5) as runner:
        first, second = runner.instances([None, None])
        for environment in (first, second):
            environment.reset()
        assert first.nap(0.3) == "rested"
        found = first.nap(20)
        assert "had not returned when its episode had taken" in found["error"]
        assert "(environment.episode_timeout=0.5)" in found["error"]
        assert first.covey.outcome == "timed_out"
        assert second.nap(0.3) == "rested"
        assert second.covey.seconds >= 0.1  # less what it waited for a core, before the call too
        assert first.covey.seconds >= 0.5
        assert second.covey.outcome is None
        first.reset()
        assert first.nap(0.01) == "rested"
        assert first.covey.outcome is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Wrong",
            r"environment.factory: .*:Wrong cannot be made: RuntimeError: no server at home \(.*games.py",
        ),
        ("Slow", "environment.factory=.*:Slow cannot be made: .*importing or constructing it took more than 1 s"),
        ("Dies", "environment.factory=.*:Dies cannot be made: .*its process ended with exit code 5"),
        ("exits", "environment.factory=.*:exits cannot be made: .*SystemExit: 2"),
        ("Reserved", "Reserved has a method covey, a name that Covey needs"),
        ("Missing", "environment.factory: .*games.py:Missing: .* has no Missing"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused(games: Path, name: str, message: str) -> None:
    with EnvironmentRunner({None: source(games, name)}, load_timeout=1.0) as runner:
        for _ in range(2):  # every use says so
            with pytest.raises(EnvironmentSetupError, match=message):
                runner.check()
    with pytest.raises(EnvironmentSetupError, match="were closed"):
        runner.check()


@pytest.mark.parametrize(("name", "message"), [("NoHint", "no type hint for what"), ("NoReset", "has no method reset")])
def test_the_contract_is_checked_on_a_proxy(games: Path, name: str, message: str) -> None:
    with EnvironmentRunner({None: source(games, name)}) as runner:
        (proxy,) = runner.instances([None])
        with pytest.raises(EnvironmentSetupError, match=message):
            check_environment(proxy, "environment.factory")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os._exit(7)", "its process ended with exit code 7"),
        ("raise ValueError('not today')", "ValueError: not today"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", None),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os, signal; signal.signal(signal.SIGINT, lambda *_: os._exit(8))", None),
    ],
    ids=["exit", "raise", "thread", "sys-exit", "signal"],
)
def test_code_that_fails_when_imported_or_starts_threads(tmp_path: Path, code: str, message: str | None) -> None:
    path = tmp_path / "code.py"
    path.write_text(f"{code}\n{textwrap.dedent(GAMES.replace('from __future__ import annotations', ''))}")
    with EnvironmentRunner({None: source(path, "Game")}) as runner:
        if message is None:
            (environment,) = runner.instances([None])
            for pid in runner.pids[:1]:
                os.kill(pid, signal.SIGINT)
            environment.reset()
            assert environment.rules(page=1) == "page 1"
        else:
            with pytest.raises(EnvironmentSetupError, match=message):
                runner.check()


def test_a_reward_in_another_process_reads_a_copy(tmp_path: Path) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def steps(environments, **kwargs): return [one.count and one.count / 2 for one in environments]\n"
        "def missing(environments, **kwargs): return [one.missing for one in environments]\n"
    )
    with EnvironmentRunner({None: EnvironmentSource(f"{HOSTILE}:Obedient")}) as runner:
        environments = runner.instances([None] * 3)
        for environment in environments:
            environment.reset(worth=1)
        environments[0].do("say a")
        environments[1].do("exit")
        environments[2].keep("object")
        copy = pickle.loads(pickle.dumps(environments[0]))
        assert (copy.steps, copy.count, copy.kind, copy.row) == (["say a"], 1, "obedient", {"worth": 1})
        assert json.loads(json.dumps(vars(copy)))["at_reward"] is None
        for name in ("do", "broken", "unknown", "__len__"):
            with pytest.raises(AttributeError):
                getattr(copy, name)
        batch = {"prompts": ["p"] * 3, "completions": ["c"] * 3, "environments": environments}
        with RewardRunner([f"{reward}:steps", f"{reward}:missing"], workers=1, on_error="skip") as rewards:
            assert rewards.functions[0](**batch) == [0.5, None, 0.0]
            assert rewards.functions[1](**batch) == [None] * 3


def test_a_row_that_cannot_be_sent_is_an_error_of_the_data(runner: EnvironmentRunner) -> None:
    (environment,) = runner.instances(["game"])
    with pytest.raises(EnvironmentSetupError, match="the row cannot be sent to the process"):
        environment.reset(function=lambda: None)


def test_a_batch_names_only_environments_that_there_are(runner: EnvironmentRunner) -> None:
    with pytest.raises(EnvironmentSetupError, match="environment is 'golf', which is none of game, scored, again"):
        runner.instances(["golf"])


def test_an_environment_given_as_a_class_runs_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_given", {})

    class Counting:
        """Counts up to a limit, which it finds in the function around it."""

        def reset(self, **row: Any) -> str:
            self.count = 0
            return f"Count to {limit}."

        def add(self, by: int) -> int:
            """Add to the count.

            Args:
                by: How much.
            """
            self.count += by
            return self.count

        def get_reward(self) -> float:
            return float(self.count == limit)

    def double(number: int) -> int:
        """Double a number.

        Args:
            number: The number.
        """
        return factor * number

    limit, factor = 3, 2
    importing.give("mine:Counting", Counting)
    importing.give("mine:double", double)
    with EnvironmentRunner({None: EnvironmentSource("mine:Counting")}, ["mine:double"]) as runner:
        (environment,) = runner.instances([None])
        assert environment.reset() == "Count to 3."
        assert environment.add(by=3) == 3
        assert environment.get_reward() == 1.0
        (tool,) = runner.tools
        assert tool(number=4) == 8
        assert os.getpid() not in runner.pids


def test_what_cannot_be_copied_to_a_process_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_given", {})
    lock = threading.Lock()

    def make() -> object:
        return lock

    importing.give("mine:make", make)
    with (
        EnvironmentRunner({None: EnvironmentSource("mine:make")}) as runner,
        pytest.raises(EnvironmentSetupError, match=r"mine:make cannot be copied to another process: TypeError: .*lock"),
    ):
        runner.check()
