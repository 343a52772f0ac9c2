"""What comes with Covey, in worker processes as a run has it: the same schemas, results and outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.environments.contract import EnvironmentSource, check_tool
from covey.environments.library import calculator, python
from covey.environments.runner import EnvironmentRunner

LOST = """
from covey.environments.contract import EnvironmentLostError

class Lost:
    def reset(self, **row):
        self.calls = 0

    def look(self) -> str:
        \"\"\"Look.\"\"\"
        self.calls += 1
        if self.calls == 2:
            raise EnvironmentLostError("the server is gone")
        return "fog"

    def get_reward(self) -> float:
        return 1.0
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentRunner]:
    file = Path(tmp_path_factory.mktemp("own")) / "lost.py"
    file.write_text(LOST, encoding="utf-8")
    names = {"calculator": "calculator", "python": "python", "game": "number_guess", "lost": f"{file}:Lost"}
    sources = {name: EnvironmentSource(source) for name, source in names.items()}
    with EnvironmentRunner(sources, ["calculator", "python"]) as found:
        yield found


def test_tools(runner: EnvironmentRunner) -> None:
    tools = {tool.__name__: tool for tool in runner.tools}
    for original in (calculator, python):
        assert check_tool(tools[original.__name__], "here") == check_tool(original, "here")
    calls = [tools["calculator"].submit(expression=f"{i}*{i}") for i in range(5)]
    assert [call.result() for call in calls] == ["0", "1", "4", "9", "16"]
    assert tools["python"](code="print(6 * 7)") == "42"


def test_environments_of_tools(runner: EnvironmentRunner) -> None:
    calculating, running = runner.instances(["calculator", "python"])
    for environment in (calculating, running):
        assert environment.reset(prompt="2 + 2?") is None
        assert not hasattr(environment, "get_reward")
    assert calculating.calculator(expression="2+2") == "4"
    assert running.python("2+2") == "4"


def test_seeds_decide_the_game(runner: EnvironmentRunner) -> None:
    def played(seed: int) -> list[str]:
        [game] = runner.instances(["game"])
        game.covey.begin_reset({}, seed)
        game.reset()
        return [game.guess(number=n) for n in (50, 25, 75)]

    assert played(1) == played(1)
    assert len({tuple(played(seed)) for seed in range(4)}) > 1


def test_an_environment_that_is_lost_ends_its_episode_without_a_reward(runner: EnvironmentRunner) -> None:
    [environment] = runner.instances(["lost"])
    environment.reset()
    assert environment.look() == "fog"
    assert environment.get_reward() == 1.0
    call = environment.look.submit()
    assert "the server is gone" in call.result()["error"]
    assert call.ended == environment.covey.outcome == "crashed"
    assert environment.get_reward() is None
    environment.reset()
    assert environment.covey.outcome is None
    assert environment.look() == "fog"
    assert environment.get_reward() == 1.0
