"""Environments and tools that misbehave: each fault costs its own call or episode, and the others go on.

The processes are real, the faults are those of `hostile_environments.py`. No test measures time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hostile_environments
from covey.environments.contract import EnvironmentSource
from covey.environments.runner import EnvironmentRunner, control_of
from covey.environments.workers.calls import ToolError
from covey.environments.workers.messages import MAX_TEXT
from living_processes import all_end, lives

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory limits and subreapers need Linux")
HOSTILE = hostile_environments.__file__
OBEDIENT = {None: EnvironmentSource(f"{HOSTILE}:Obedient")}
NOT_RETURNED = "do had not returned after"
EXIT = "its process ended with exit code 3"
SENT = "its process sent the trainer something that is not a message"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentRunner]:
    with EnvironmentRunner(OBEDIENT, [f"{HOSTILE}:do"], timeout=1.0, memory_mb=512) as made:
        made.start(tmp_path_factory.mktemp("hostile") / "log.txt")
        yield made


@pytest.fixture
def pair(runner: EnvironmentRunner) -> list[Any]:
    """Two instances in the middle of an episode."""
    found = runner.instances([None, None])
    for environment in found:
        assert environment.reset() == "ready"
        assert environment.do("say one") == "one"
    return found


def check_other(other: Any) -> None:
    """Its episode has gone on."""
    assert other.do("say two") == "two"
    assert other.steps == ["say one", "say two"]
    assert other.covey.outcome is None
    assert other.get_reward() == 2.0


@linux
@pytest.mark.parametrize(
    ("what", "outcome", "cause"),
    [
        ("exit", "crashed", EXIT),
        ("segfault", "crashed", "SIGSEGV"),
        ("abort", "crashed", "SIGABRT"),
        ("kill", "crashed", "SIGKILL"),
        ("close", "crashed", "its process "),
        ("garbage", "crashed", SENT),
        ("pickle MARK", "crashed", SENT),
        ("forge", "crashed", "an unexpected message"),
        ("no-json", "crashed", SENT),
        ("other-json", "crashed", SENT),
        ("long", "crashed", SENT),
        ("leave-and-exit MARK", "crashed", EXIT),
        ("few-files", None, "few files"),
        ("stop", "timed_out", NOT_RETURNED),
        ("sleep", "timed_out", NOT_RETURNED),
        ("spin", "timed_out", NOT_RETURNED),
        ("stubborn", "timed_out", NOT_RETURNED),
        ("leave-and-sleep MARK", "timed_out", NOT_RETURNED),
        ("close-and-sleep", "crashed", "SIGKILL"),
    ],
    ids=lambda value: str(value).split()[0] if value else "",
)
def test_a_fault_in_a_tool_ends_its_own_episode(
    pair: list[Any], tmp_path: Path, what: str, outcome: str | None, cause: str
) -> None:
    bad, other = pair
    mark = tmp_path / "mark"
    call, same_time = bad.do.submit(what.replace("MARK", str(mark))), other.do.submit(what="say between")
    found = call.result(60)
    assert call.ended == outcome
    assert bad.covey.outcome == outcome
    assert same_time.result(60) == "between"
    if outcome is None:
        assert found == cause
        return
    assert list(found) == ["error"]
    assert cause in found["error"]
    assert bad.do("say again") == {"error": "do was not called: its episode has ended"}
    assert bad.get_reward() == 0.0
    assert bad.steps is None
    assert "leave" in what or not mark.exists()
    if "leave" in what:
        assert all_end([int(pid) for pid in mark.read_text(encoding="ascii").split()])
    assert other.do("say two") == "two"
    assert other.get_reward() == 3.0
    assert bad.reset() == "ready"
    assert bad.covey.outcome is None
    assert bad.do("say again") == "again"
    assert bad.get_reward() == 1.0


@linux
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("raise no such thing", "no such thing"),
        ("raise-empty", "LookupError"),
        ("raise-unprintable", "(its text cannot be made: RuntimeError)"),
        ("raise-long", "x" * MAX_TEXT + "\n[cut: the first 65,536 of 1,048,576 characters]"),
        ("system-exit", "SystemExit: 4"),
        ("interrupt", "KeyboardInterrupt"),
        ("base", "base"),
        ("recurse", "maximum recursion depth exceeded"),
        ("memory", "MemoryError"),
        ("unprintable", "no text"),
        ("unknown", "'unknown'"),
        ("megabytes-of-blocks", None),
    ],
    ids=lambda value: str(value).split()[0] if value else "",
)
def test_an_exception_is_the_result_and_the_episode_goes_on(pair: list[Any], what: str, text: str | None) -> None:
    bad, other = pair
    if text is None:
        assert bad.do(what).endswith("characters]")
    else:
        with pytest.raises(ToolError) as error:
            bad.do(what)
        assert str(error.value) == text
    assert bad.do("say on") == "on"
    assert bad.covey.outcome is None
    assert bad.get_reward() == 3.0
    check_other(other)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), (("a", "b"), {}), ((), {"what": "say a", "more": 1}), ((), {"self": 1}), ((), {"wha t": "say a"})],
)
def test_arguments_that_do_not_fit_are_a_failure_of_the_call(pair: list[Any], args: Any, kwargs: Any) -> None:
    with pytest.raises(ToolError, match="argument"):
        pair[0].do.submit(*args, **kwargs).result(60)
    check_other(pair[0])


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("none", None),
        ("number", 7),
        ("tuple", "(1, 'a')"),
        ("list", "[1, 'a']"),
        ("set", "{1}"),
        ("bytes", "b'bytes'"),
        ("dict", {"a": [1, 2], "3": None}),
        ("blocks", [{"type": "text", "text": "a"}]),
        ("array", "[0, 1, 2]"),
        ("scalar", 0.5),
        ("decimal", 1.5),
        ("big", str(10**40)),
        ("generator", "ab"),
        ("await", "later"),
        ("one-by-one", "ab"),
        ("surrogate", "? and more"),
        ("function", "<built-in function print>"),
        ("nested", str(hostile_environments.nested())),
        ("interrupt-me", None),
        ("no-stdout", "closed"),
        ("thread", "started"),
        ("group", "group"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_what_a_tool_returns_becomes_plain_data(
    runner: EnvironmentRunner, pair: list[Any], what: str, told: Any
) -> None:
    assert pair[0].do(what) == told
    assert what in ("await", "one-by-one") or pair[0].do_later(what) == told
    assert runner.tools[0](what) == told
    assert pair[0].do("say on") == "on"


@pytest.mark.parametrize(
    "what", ["megabyte", "megabytes-of-list", "megabytes-of-dict", "megabytes-of-blocks", "endless"]
)
def test_a_large_result_is_cut_and_says_so(pair: list[Any], what: str) -> None:
    told = pair[0].do(what)
    assert MAX_TEXT < len(told) <= MAX_TEXT + 200
    assert "\n[cut: the first 65,536 of " in told
    check_other(pair[1])


@linux
@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        *(("exit", "crashed"), ("raise no", "crashed"), ("interrupt", "crashed"), ("unprintable", "crashed")),
        *(("sleep", "timed_out"), ("garbage", "crashed")),
    ],
)
def test_a_reset_that_fails_gives_no_observation_and_no_reward(pair: list[Any], what: str, outcome: str) -> None:
    bad, other = pair
    assert bad.reset(at_reset=what) is None
    assert bad.covey.outcome == outcome
    assert bad.do("say a") == {"error": "do was not called: its episode has ended"}
    assert bad.get_reward() is None
    check_other(other)
    assert bad.reset() == "ready"
    assert bad.get_reward() == 0.0


@pytest.mark.parametrize(
    ("what", "told"), [("none", None), ("number", "7"), ("dict", "{'a': [1, 2], '3': None}"), ("await", "later")]
)
def test_an_observation_is_text_blocks_or_nothing(pair: list[Any], what: str, told: Any) -> None:
    assert pair[0].reset(at_reset=what) == told
    assert pair[0].covey.outcome is None


@linux
@pytest.mark.parametrize(
    ("what", "outcome", "value"),
    [
        *[("number", None, 7.0), ("scalar", None, 0.5), ("none", None, None)],
        *[("exit", "crashed", None), ("raise no", "crashed", None), ("system-exit", "crashed", None)],
        *[("nan", "crashed", None), ("say a", "crashed", None), ("list", "crashed", None), ("big", "crashed", None)],
        *[("sleep", "timed_out", None), ("garbage", "crashed", None)],
    ],
)
def test_a_reward_that_fails_is_no_reward(
    pair: list[Any],
    caplog: pytest.LogCaptureFixture,
    what: str,
    outcome: str | None,
    value: float | None,
) -> None:
    bad, other = pair
    for _ in range(2):
        assert bad.reset(at_reward=what) == "ready"
        bad.covey.begin_reward()
        assert bad.get_reward() == value
        assert bad.covey.outcome == outcome
    check_other(other)
    assert sum("get_reward" in text for text in caplog.messages) == (outcome is not None)


def test_blocks_with_an_image_are_a_failure_that_the_log_tells(
    pair: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with pytest.raises(ToolError, match="content blocks with a value of the type object"):
            pair[0].do("image")
    assert sum("content blocks" in text for text in caplog.messages) == 1


@linux
@pytest.mark.parametrize("value", ['"high"', "NaN", "1e999", "true", "[1.0]", '{"a": 1}', "1"])
def test_a_forged_reward_is_no_reward(pair: list[Any], value: str) -> None:
    pair[0].reset(at_reward=f"value {value}")
    assert pair[0].get_reward() is None
    assert pair[0].covey.outcome == "crashed"
    check_other(pair[1])


@linux
@pytest.mark.parametrize("value", ["5", '{"a": 1}', "[1]", '"' + "x" * 70_000 + '"', "[" * 60 + "]" * 60])
def test_a_forged_observation_is_none(pair: list[Any], value: str) -> None:
    assert pair[0].reset(at_reset=f"value {value}") is None
    assert pair[0].covey.outcome == "crashed"
    check_other(pair[1])


@linux
@pytest.mark.parametrize(
    ("value", "told"),
    [('"a\\ud800"', "a?"), ('{"\\ud800": 1}', {"?": 1}), ("[1]", None), ('[{"text": "a"}]', None), ("9" * 5000, None)],
    ids=["text", "key", "list", "blocks", "number"],
)
def test_a_forged_result_is_plain_data_or_a_crash(pair: list[Any], value: str, told: Any) -> None:
    found = pair[0].do(f"value {value}")
    assert found == told if told is not None else SENT in found["error"]
    check_other(pair[1])
    if told is not None:  # its process still sleeps
        assert pair[0].reset() is None
        assert pair[0].covey.outcome == "timed_out"


def test_an_environment_that_is_lost_is_made_again_and_the_episode_has_no_reward(pair: list[Any]) -> None:
    pid = pair[0].do("pid")
    assert pair[0].do("lost no server") == {"error": "do failed: no server"}
    assert pair[0].covey.outcome == "crashed"
    assert pair[0].get_reward() is None
    check_other(pair[1])
    assert pair[0].reset() == "ready"
    assert pair[0].do("pid") != pid


@linux
def test_a_killed_fork_server_costs_the_running_episodes_and_no_more(pair: list[Any]) -> None:
    bad, other = pair
    assert "error" in bad.do("kill-parent")
    assert bad.covey.outcome == "crashed"
    assert "error" in other.do("say two")
    assert other.covey.outcome == "crashed"
    for environment in pair:
        assert environment.reset() == "ready"
        assert environment.do("say a") == "a"


@linux
@pytest.mark.parametrize("what", ["exit", "sleep", "garbage", "raise no", "memory"])
def test_a_fault_in_a_standalone_tool_costs_its_call(runner: EnvironmentRunner, what: str) -> None:
    (tool,) = runner.tools
    calls = [tool.submit("say a"), tool.submit(what=what), tool.submit("say b")]
    assert [calls[0].result(60), calls[2].result(60)] == ["a", "b"]
    if what in ("raise no", "memory"):
        with pytest.raises(ToolError):
            calls[1].result(60)
        assert calls[1].ended is None
    else:
        assert list(calls[1].result(60)) == ["error"]
        assert calls[1].ended == ("timed_out" if what == "sleep" else "crashed")
    assert tool("say again") == "again"


def test_an_instance_that_nobody_uses_ends(runner: EnvironmentRunner) -> None:
    factory = runner.factory
    assert callable(factory)
    _, environment = factory(), factory()  # the runner keeps its first, for the descriptions of the tools
    environment.reset()
    pid = environment.do("pid")
    assert lives(pid)
    del environment
    assert all_end([pid])


def test_an_object_of_this_process_has_no_control() -> None:
    assert control_of(hostile_environments.Obedient()) is None
