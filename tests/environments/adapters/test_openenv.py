"""Environments behind an OpenEnv server, with the real package and servers on the loopback."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import TINY
from covey.cli.main import main
from covey.environments.contract import (
    EnvironmentLostError,
    EnvironmentSource,
    check_environment,
    check_tool,
    load_environment,
    tool_methods,
)
from covey.environments.runner import EnvironmentRunner
from covey.errors import EnvironmentSetupError

pytestmark = pytest.mark.slow

StartServer = Callable[..., tuple[str, subprocess.Popen[bytes]]]


@pytest.fixture(scope="module")
def start(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts a server and waits until it answers; all of them end with the module."""
    log = tmp_path_factory.mktemp("servers") / "log"
    running = []

    def started(kind: str, port: int | None = None, sessions: int = 3) -> tuple[str, subprocess.Popen[bytes]]:
        port = port or free_port()
        script = root / "tests" / "support" / "openenv_servers.py"
        with log.open("ab") as output:
            command = [sys.executable, str(script), kind, str(port), str(sessions)]
            process = subprocess.Popen(command, stdout=output, stderr=output)
        running.append(process)
        end = time.monotonic() + 120
        while time.monotonic() < end and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return f"http://127.0.0.1:{port}", process
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"the server did not start: {log.read_text()}")

    yield started
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def game(start: StartServer) -> str:
    return start("game")[0]


@pytest.fixture(scope="module")
def tools(start: StartServer) -> str:
    return start("tools")[0]


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    """Makes environments whose sessions end with the test: a server has few."""
    found: list[Any] = []

    def make(url: str, **settings: Any) -> Any:
        environment: Any = load_environment(EnvironmentSource(f"openenv:{url}", settings))()
        check_environment(environment, "here")
        found.append(environment)
        return environment

    yield make
    for environment in found:
        if environment._client is not None:
            environment._client.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


GUESS = {
    "description": "Guess.",
    "parameters": {"value": {"type": "integer", "description": "The guess."}},
    "action": {"number": "{value}", "metadata": {"note": "guessed {value}"}},
}


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("openenv", "openenv.core"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EnvironmentSetupError, match=r"not installed.*\[openenv\]"):
        load_environment(EnvironmentSource("openenv:http://127.0.0.1:1"))


@pytest.mark.adapter("openenv")
def test_the_fields_of_an_action_are_one_tool(game: str, made: Callable[..., Any]) -> None:
    environment = made(game)
    assert tool_methods(type(environment)) == ["step"]
    function = check_tool(environment.step, "here")["function"]
    assert function["description"] == "Guess the hidden number."
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "number": {"type": "integer", "description": "The guess, from 1 to 9."},
            "loud": {"type": "boolean", "description": "Loud"},
        },
        "required": ["number"],
    }
    assert environment.reset(prompt="ignored", seed=4) == '{"text": "Guess a number from 1 to 9.", "guesses": 0}'


@pytest.mark.adapter("openenv")
def test_an_episode(game: str, made: Callable[..., Any]) -> None:
    environment = made(game, observation="text", reset={"most": 8}, columns=["hidden"])
    assert environment.reset(hidden=5, prompt=[]) == "Guess a number from 1 to 8."
    assert environment.get_reward() == 0.0
    assert environment.step(number=3) == "Higher."
    assert environment.step(number=7, loud=True) == "Lower."
    assert environment.get_reward() == 0.5
    assert environment.step(5) == "Right.\nThe episode is over."
    assert environment.get_reward() == 1.5
    assert environment.step(number=3) == "The episode is over."
    assert environment.get_reward() == 1.5
    environment.reset(hidden=1)
    assert environment.get_reward() == 0.0


@pytest.mark.adapter("openenv")
@pytest.mark.parametrize(("reward", "value"), [("sum", 1.25), ("last", 1.0), ("max", 1.0), ("state.best", 1.0)])
def test_the_reward_of_an_episode(game: str, made: Callable[..., Any], reward: str, value: float) -> None:
    environment = made(game, columns=["hidden"], reward=reward)
    environment.reset(hidden=5)
    environment.step(3)
    environment.step(5)
    assert environment.get_reward() == value


@pytest.mark.adapter("openenv")
def test_steps_without_a_reward_and_an_environment_without(game: str, made: Callable[..., Any]) -> None:
    environment = made(game, columns=["hidden"])
    environment.reset(hidden=5)
    environment.step(0)
    assert environment.get_reward() is None
    assert not hasattr(made(game, reward="none"), "get_reward")


@pytest.mark.adapter("openenv")
def test_seeds_decide(game: str, made: Callable[..., Any]) -> None:
    environment = made(game, observation="text")

    def hidden(**row: int) -> int:
        environment.reset(**row)
        return next(n for n in range(1, 10) if environment.step(n).startswith("Right"))

    assert len({hidden(seed=3) for _ in range(3)}) == 1
    random.seed(1)
    first = [hidden() for _ in range(6)]
    random.seed(1)
    assert [hidden() for _ in range(6)] == first
    assert len(set(first)) > 1


@pytest.mark.adapter("openenv")
def test_tools_of_the_config(game: str, made: Callable[..., Any]) -> None:
    again = {"description": "Guess five.", "action": {"number": 5}}
    plain = {"description": "As it is.", "parameters": {"number": {"type": "integer", "default": 4}}}
    environment = made(
        game, observation="text", columns=["hidden"], tools={"guess": GUESS, "five": again, "plain": plain}
    )
    assert tool_methods(type(environment)) == ["five", "guess", "plain"]
    assert check_tool(environment.guess, "here")["function"]["parameters"]["required"] == ["value"]
    environment.reset(hidden=6)
    assert environment.guess(value=7) == "Lower."
    assert environment.five() == "Higher."
    assert environment.plain() == "Higher."
    assert environment.plain(number=6).startswith("Right.")


@pytest.mark.adapter("openenv")
def test_tools_that_the_server_lists(tools: str, made: Callable[..., Any]) -> None:
    environment = made(tools, reward="state.notes")
    assert tool_methods(type(environment)) == ["add_note", "read_notes"]
    function = check_tool(environment.add_note, "here")["function"]
    assert function["description"] == "Write a note down."
    assert function["parameters"]["required"] == ["text"]
    assert function["parameters"]["properties"]["times"]["type"] == "integer"
    assert environment.reset() is None
    with pytest.raises(RuntimeError, match="there are no notes"):
        environment.read_notes()
    assert environment.add_note(text="milk", times=2) == "2"
    assert environment.read_notes() == '["milk", "milk"]'
    with pytest.raises(RuntimeError, match="valid integer"):
        environment.add_note(text="x", times="many")
    assert environment.get_reward() == 2.0


@pytest.mark.adapter("openenv")
def test_an_action_that_the_server_refuses_leaves_the_episode(game: str, made: Callable[..., Any]) -> None:
    environment = made(game, columns=["hidden"], observation="text")
    environment.reset(hidden=5)
    for arguments, said in (({"number": "x"}, "VALIDATION_ERROR"), ({"number": 97}, "97 is not allowed")):
        with pytest.raises(RuntimeError, match=said):
            environment.step(**arguments)
    with pytest.raises(TypeError, match="missing a required argument: 'number'"):
        environment.step()
    assert environment.step(number=5).startswith("Right.")


@pytest.mark.adapter("openenv")
def test_sessions_are_apart_and_limited(game: str, made: Callable[..., Any]) -> None:
    several = [made(game, columns=["hidden"], observation="text") for _ in range(4)]
    for hidden, environment in zip((1, 2, 3), several, strict=False):
        environment.reset(hidden=hidden)
    assert [environment.step(2) for environment in several[:3]] == [
        "Lower.",
        "Right.\nThe episode is over.",
        "Higher.",
    ]
    with pytest.raises(EnvironmentLostError, match="max_concurrent_envs"):
        several[3].reset(hidden=1)
    with pytest.raises(EnvironmentSetupError, match="max_concurrent_envs"):
        made(game)


@pytest.mark.adapter("openenv")
def test_a_server_that_dies_and_comes_back(start: StartServer, made: Callable[..., Any]) -> None:
    url, server = start("game")
    environment, other = (made(url, observation="text", columns=["hidden"]) for _ in range(2))
    environment.reset(hidden=1)
    other.reset(hidden=1)
    with pytest.raises(EnvironmentLostError, match="does not answer any more"):
        environment.step(99)
    server.wait()
    with pytest.raises(EnvironmentLostError, match=url):
        other.step(1)
    with pytest.raises(EnvironmentLostError, match=url):
        environment.reset(hidden=1)
    start("game", port=int(url.rpartition(":")[2]))
    assert environment.reset(hidden=1) == "Guess a number from 1 to 9."
    assert environment.step(1).startswith("Right.")
    environment._client._async._ws.transport.abort()  # a session that ended between two episodes is begun again
    assert environment.reset(hidden=2) == "Guess a number from 1 to 9."


@pytest.mark.adapter("openenv")
def test_in_worker_processes_a_dead_server_ends_one_episode(start: StartServer) -> None:
    url, server = start("game")
    source = EnvironmentSource(f"openenv:{url}", {"observation": "text", "columns": ["hidden"]})
    with EnvironmentRunner({None: source}, timeout=5.0) as runner:
        first, second = runner.instances([None, None])
        assert type(first).__name__ == "OpenEnv"
        assert check_tool(first.step, "here")["function"]["parameters"]["required"] == ["number"]
        for environment in (first, second):
            environment.covey.begin_reset({"hidden": 5, "prompt": []}, 1)
        assert [first.reset(), second.reset()] == ["Guess a number from 1 to 9."] * 2
        assert second.step(number=5).startswith("Right.")
        assert second.get_reward() == 1.0
        call = first.step.submit(number=99)
        assert "does not answer any more" in call.result()["error"]
        assert call.ended == first.covey.outcome == "crashed"
        assert first.get_reward() is None
        server.wait()
        first.covey.begin_reset({"hidden": 5}, 1)
        assert first.reset() is None
        assert first.get_reward() is None
        start("game", port=int(url.rpartition(":")[2]))
        first.covey.begin_reset({"hidden": 5}, 1)
        assert first.reset() == "Guess a number from 1 to 9."
        assert first.covey.outcome is None
        call = first.step.submit(number=98)  # the server hangs
        assert call.result().keys() == {"error"}
        assert first.covey.outcome == "timed_out"


@pytest.mark.adapter("openenv")
def test_trained_with_and_evaluated_by_the_commands(
    start: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url, _ = start("game", sessions=32)
    tool = (
        "{description: Guess., parameters: {expression: {type: string}}, action: {number: 5}}"  # the starter calls it
    )
    settings = f"environment.settings={{observation: text, tools: {{calculator: {tool}}}}}"
    assert main(["train", f"environment.factory=openenv:{url}", settings, "run_name=game", *TINY]) == 0
    assert main(["eval", "out/game"]) == 0
    metrics = [json.loads(line) for line in Path("out/game/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in metrics if "environment/crashes" in line]
    assert steps
    assert all(line["environment/crashes"] == line["environment/timeouts"] == 0 for line in steps)
    assert any("eval/reward/OpenEnv" in line for line in metrics)


@pytest.mark.adapter("openenv")
@pytest.mark.parametrize(
    ("argument", "settings", "said"),
    [
        ("http://127.0.0.1:1", {}, "no OpenEnv server answers at this address"),
        ("127.0.0.1:1", {}, "no OpenEnv server answers at this address"),
        ("ftp://127.0.0.1:1", {}, "write openenv:http://HOST:PORT"),
        ("GAME", {"tool": {}}, "there is no setting tool; there are tools, reset"),
        ("GAME", {"reward": "mean"}, r"must be one of sum, last, max, none or state\.FIELD"),
        ("GAME", {"tools": {"go": {}}}, "settings.tools.go must be a mapping with description"),
        ("GAME", {"tools": {"go": "fast"}}, "must be a mapping with description"),
        ("GAME", {"tools": {"go": {"description": "x", "acton": {}}}}, "must be a mapping with description"),
        ("GAME", {"tools": {"go": {"description": "x", "parameters": {"n": "integer"}}}}, "a JSON schema for each"),
        ("GAME", {"tools": {"go": {"description": "x", "action": {"n": ["{m}"]}}}}, "uses {m}, which is none of"),
        ("GAME", {"tools": {"reset": {"description": "x"}}}, "cannot be called 'reset'"),
    ],
)
def test_what_does_not_fit(game: str, argument: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=said):
        load_environment(EnvironmentSource(f"openenv:{argument.replace('GAME', game)}", settings))


@pytest.mark.adapter("openenv")
def test_an_address_where_something_else_listens() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with pytest.raises(EnvironmentSetupError, match="no OpenEnv server answers"):
            load_environment(EnvironmentSource(f"openenv:http://127.0.0.1:{port}", {"connect_timeout": 0.5}))
