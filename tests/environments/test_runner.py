"""The runner of environments and its proxies: what TRL sees, what is shared, and what is refused before training."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.utils import get_json_schema

import hostile_environments
from covey import importing
from covey.environments.contract import check_environment, tool_methods
from covey.environments.proxies import ToolError
from covey.environments.registry import EnvironmentSource
from covey.environments.runner import EnvironmentRunner
from covey.errors import EnvironmentSetupError
from covey.rewards.runner import RewardRunner

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes and files as Linux has them")
HOSTILE = hostile_environments.__file__

GAMES = '''
"""Environments as written for TRL; the annotations of the first are text."""
from __future__ import annotations
import random
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional, Union
import time
import numpy

class Colour(Enum):
    RED = "red"
    BLUE = "blue"

RNG = random.Random(0)

class Base:
    """What games share."""

    shared = numpy.random.default_rng(0)

    def reset(self, **row) -> str | None:
        """Begin.

        Args:
            row: The row.
        """
        self.row = row
        self.values = [random.random(), float(numpy.random.random())]
        self.held = [RNG.random(), float(self.shared.random()), self.rng.random(), self.state.random()]
        return None

    def inherited(self, flag: bool = True) -> bool:
        """Be inherited.

        Args:
            flag: Any.
        """
        return flag

class Game(Base):
    """A game."""

    def __init__(self, top: int = 3) -> None:
        self.top = top
        self.rng = random.Random(0)
        self.state = numpy.random.RandomState(0)

    def move(self, colour: Colour, how: Literal["up", 2, None], where: list[tuple[int, str]], *, far: float = 0.5,
             note: Optional[str] = None, more: Union[int, list[str]] = 1, table: dict[str, Any] | None = None) -> dict:
        """Move a piece.

        Args:
            colour: The colour.
            how: The way.
            where: The squares.
            far: How far (choices: [0.5, 1.5])
            note: Any note.
            more: More.
            table: A table.

        Returns:
            The board.
        """
        return {"colour": colour}

    @staticmethod
    def rules(page: int) -> str:
        """Read the rules.

        Args:
            page: The page.
        """
        return f"page {page}"

    def inherited(self, flag: bool = True) -> bool:
        return not flag

    def meet(self, here: str, there: str) -> str:
        """Wait for another.

        Args:
            here: A file to make.
            there: A file to wait for.
        """
        Path(here).touch()
        while not Path(there).exists():
            time.sleep(0.001)
        return "met"

    def nap(self, seconds: float) -> str:
        """Sleep.

        Args:
            seconds: How long.
        """
        time.sleep(seconds)
        return "rested"

    def _private(self) -> None: ...

class Scored(Game):
    async def get_reward(self) -> float:
        return float(self.row["worth"])

class NoHint:
    def reset(self, **row): ...
    def act(self, what): ...

class NoReset:
    def act(self, what: int) -> int:
        """Act.

        Args:
            what: It.
        """
        return what

class Reserved(Game):
    def covey(self) -> None:
        """A name that is taken."""

class Wrong:
    def __init__(self, **settings): raise RuntimeError("no server at home")
    def reset(self, **row): ...

class Slow:
    def __init__(self): time.sleep(1000)

class Dies:
    def __init__(self): __import__("os")._exit(5)

def exits(): raise SystemExit(2)

def meet(here: str, there: str) -> str:
    """Wait for another.

    Args:
        here: A file to make.
        there: A file to wait for.
    """
    return Game().meet(here, there)
'''


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("games") / "games.py"
    path.write_text(GAMES, encoding="utf-8")
    return path


def source(path: Path, name: str, **settings: Any) -> EnvironmentSource:
    return EnvironmentSource(f"{path}:{name}", settings)


@pytest.fixture(scope="module")
def runner(games: Path) -> Iterator[EnvironmentRunner]:
    named = {"game": "Game", "scored": "Scored", "again": "Scored"}
    sources = {name: source(games, kind) for name, kind in named.items()}
    sources["game"] = source(games, "Game", top=7)
    with EnvironmentRunner(sources, [f"{games}:meet"], timeout=60.0) as made:
        yield made


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
        assert second.nap(0.1) == "rested"
        assert second.covey.seconds >= 0.1
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


@linux
def test_what_the_code_starts_when_imported_stays_as_long_as_the_runner(tmp_path: Path) -> None:
    path, pid = tmp_path / "code.py", tmp_path / "pid"
    start = f"Path({str(pid)!r}).write_text(str(subprocess.Popen(['sleep', '1000']).pid))"
    path.write_text(f"import subprocess\nfrom pathlib import Path\n{start}\n" + Path(HOSTILE).read_text())
    with EnvironmentRunner({None: EnvironmentSource(f"{path}:Obedient")}) as runner:
        (environment,) = runner.instances([None])
        environment.reset()
        assert "error" in environment.do("exit")
        environment.reset()
        assert Path(f"/proc/{pid.read_text()}").exists()
    assert not Path(f"/proc/{pid.read_text()}").exists()


@linux
def test_neither_the_fork_server_nor_its_processes_load_torch(games: Path) -> None:
    code = (
        "import sys; from covey.environments.workers.worker import EnvironmentWork\n"
        "from covey.environments.registry import EnvironmentSource\n"
        "from covey.environments.runner import FINDERS\n"
        f"EnvironmentWork({{None: EnvironmentSource({f'{games}:Game'!r})}}, (), FINDERS, None).preload()\n"
        "print(sorted({'torch', 'transformers', 'trl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


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


def test_two_runners_do_not_meet(games: Path) -> None:
    with EnvironmentRunner({None: source(games, "Game", top=1)}) as first:
        (one,) = first.instances([None])
        with EnvironmentRunner({None: source(games, "Game", top=2)}) as second:
            (two,) = second.instances([None])
            assert (one.top, two.top) == (1, 2)
            assert not set(first.pids) & set(second.pids)
        with pytest.raises(EnvironmentSetupError, match="were closed"):
            two.rules(page=1)
        assert one.rules(page=1) == "page 1"


@linux
def test_a_fork_of_the_trainer_has_processes_of_its_own(runner: EnvironmentRunner) -> None:
    """As the workers of a data loader are."""
    (environment,) = runner.instances(["game"])
    environment.reset(mine=True)
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            environment.reset(theirs=True)
            os.write(write, json.dumps([environment.row, runner.tools[0].submit().done()]).encode())
            runner.close()
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as told:
        assert json.loads(told.read())[0] == {"theirs": True}
    assert environment.row == {"mine": True}
    assert environment.rules(page=3) == "page 3"


def test_a_row_that_cannot_be_sent_is_an_error_of_the_data(runner: EnvironmentRunner) -> None:
    (environment,) = runner.instances(["game"])
    with pytest.raises(EnvironmentSetupError, match="the row cannot be sent to the process"):
        environment.reset(function=lambda: None)


def test_a_batch_names_only_environments_that_there_are(runner: EnvironmentRunner) -> None:
    with pytest.raises(EnvironmentSetupError, match="environment is 'golf', which is none of game, scored, again"):
        runner.instances(["golf"])


@linux
def test_more_instances_than_open_files_raise_the_soft_limit(games: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 40, hard))
    try:
        with EnvironmentRunner({None: source(games, "Game")}) as runner:
            environments = runner.instances([None] * 24)  # four files each
            for environment in environments:
                environment.covey.begin_reset({"a": 1})
            assert [environment.reset() for environment in environments] == [None] * 24
            assert [environment.covey.outcome for environment in environments] == [None] * 24
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@linux
@pytest.mark.slow
def test_hundreds_of_instances(games: Path) -> None:
    with EnvironmentRunner({None: source(games, "Game")}, timeout=60.0) as runner:
        environments = runner.instances([None] * 256)
        for number, environment in enumerate(environments):
            environment.covey.begin_reset({"number": number}, number // 8)
        assert [environment.reset() for environment in environments] == [None] * 256
        calls = [environment.rules.submit(number) for number, environment in enumerate(environments)]
        assert [call.result(60) for call in calls] == [f"page {number}" for number in range(256)]
        assert [environment.row["number"] for environment in environments] == list(range(256))
        assert len(runner.pids) == 257


@linux
def test_a_system_without_processes_is_an_error_after_a_while(games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from covey.environments.workers import supervisor
    from covey.workers.fork_server import ForkServer, NoProcessError

    def no_fork(self: ForkServer) -> Any:
        raise NoProcessError("Resource temporarily unavailable")

    monkeypatch.setattr(supervisor, "_GIVE_UP_SECONDS", 0.2)
    with EnvironmentRunner({None: source(games, "Game")}) as runner:
        (environment,) = runner.instances([None])
        environment.reset()
        monkeypatch.setattr(ForkServer, "fork", no_fork)
        other = runner.instances([None, None])[1]
        with pytest.raises(EnvironmentSetupError, match=r"Resource temporarily unavailable\. 1 run, one for"):
            other.reset()
        assert environment.rules(page=1) == "page 1"
        with pytest.raises(ToolError):
            environment.rules(1, 2)


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
