"""Environments and tools before a run: what cannot be used is refused in one paragraph, and one episode is played."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.chat_templates import make_tokenizer

from covey import data
from covey.config import Config, load
from covey.environments.runner import EnvironmentRunner
from covey.errors import EnvironmentSetupError
from covey.training.checks.data import columns_wanted
from covey.training.checks.environments import (
    arguments_of,
    check_environments,
    check_resets,
    play_episode,
    prompts_with_tools,
    try_resets,
)
from covey.training.checks.findings import Mark
from fake_environments import Doors, FakeRunner, Shelf, add

CODE = '''
import time

class Room:
    def reset(self, target, **row):
        self.unpaid = target == "unpaid"
        if target == "raise":
            raise ValueError("no such room")
        if target == "hang":
            time.sleep(60)
        return None if target == "nothing" else f"Go to {target}."

    def go(self, where: str, steps: int = 1) -> str:
        """
        Go somewhere.

        Args:
            where: The place.
            steps: How many.
        """
        return f"went to {where}"

    def wait(self) -> str:
        """Wait."""
        raise RuntimeError("no time")

    async def get_reward(self) -> float:
        if self.unpaid:
            raise KeyError("no score")
        return 0.25
'''


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Config, EnvironmentRunner]]:
    path = tmp_path_factory.mktemp("room") / "room.py"
    path.write_text(CODE)
    config = load([f"environment.factory={path}:Room", "environment.timeout=2"])
    runner = EnvironmentRunner.of(config)
    assert runner is not None
    with runner:
        runner.start(path.with_name("output"))
        runner.check()
        yield config, runner


def rows(*targets: str) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"target": list(targets)})


def test_an_environment_that_can_be_used(room: tuple[Config, EnvironmentRunner]) -> None:
    config, runner = room
    assert check_environments(config, runner).endswith("room.py:Room with go, wait")
    encode = prompts_with_tools(config, runner, tokenizer := make_tokenizer("qwen2_5"), None)
    (ids,) = encode([[{"role": "user", "content": "hello"}]])
    text = tokenizer.decode(ids)
    assert '"name": "go"' in text
    assert text.endswith("hello<|im_end|>\n<|im_start|>assistant\n")


def test_one_scripted_episode(room: tuple[Config, EnvironmentRunner]) -> None:
    finding = play_episode(room[1], {"target": "the door"})
    assert finding.mark is Mark.FINE
    told = finding.result.split("; ")
    assert [text.split(" took ")[0] for text in told] == ["reset", "go(where='1')", "wait()", "get_reward"]
    assert told[0].endswith("returned 'Go to the door.'")
    assert told[1].endswith("returned 'went to 1'")
    assert "failed with" in told[2]
    assert "no time" in told[2]
    assert told[3].endswith("returned 0.25")


def test_resets_are_tried_on_the_first_the_middle_and_the_last_row(room: tuple[Config, EnvironmentRunner]) -> None:
    config, runner = room
    tokenizer = make_tokenizer("qwen2_5")
    ids, found = try_resets(config, runner, tokenizer, rows("a", "x", "b", "x", "c"))
    assert [tokenizer.decode(one).count(f"Go to {name}.") for one, name in zip(ids, "abc", strict=True)] == [1, 1, 1]
    assert found == []
    ids, (some,) = try_resets(config, runner, tokenizer, rows("raise", "b"))
    assert (len(ids), some.mark) == (1, Mark.WARNING)
    assert "on 1 of 2 rows that were tried: reset raised ValueError: no such room" in some.result
    ids, (every,) = try_resets(config, runner, tokenizer, rows("raise"))
    assert (ids, every.mark, every.key) == ([], Mark.WRONG, "environment")
    _, (empty,) = try_resets(config, runner, tokenizer, rows("nothing", "b"))
    assert empty.mark is Mark.WRONG
    assert empty.result.startswith("the model is told nothing")


def test_a_get_reward_that_fails_is_found_with_its_reason(room: tuple[Config, EnvironmentRunner]) -> None:
    ids, (finding,) = try_resets(room[0], room[1], make_tokenizer("qwen2_5"), rows("unpaid", "b"))
    assert (len(ids), finding.mark) == (2, Mark.WARNING)
    assert "has no reward: get_reward raised KeyError: 'no score'" in finding.result
    played = play_episode(room[1], {"target": "unpaid"})
    assert played.mark is Mark.WARNING
    assert "the episode crashed: get_reward raised KeyError: 'no score'" in played.result


def test_a_reset_that_hangs(room: tuple[Config, EnvironmentRunner]) -> None:
    ids, (finding,) = try_resets(room[0], room[1], make_tokenizer("qwen2_5"), rows("hang"))
    assert (ids, finding.mark) == ([], Mark.WRONG)
    assert "takes longer than environment.timeout on 1 of 1 rows" in finding.result


def loaded_rows(*columns: str) -> data.LoadedData:
    from datasets import Dataset

    found = Dataset.from_dict({column: [1, 2] for column in columns})
    return data.LoadedData(found, {"test": found}, [])


def test_columns_that_reset_needs(room: tuple[Config, EnvironmentRunner]) -> None:
    config, runner = room
    check_resets(config, runner, loaded_rows("target"))
    with pytest.raises(EnvironmentSetupError, match=r"reset needs the column target, but there is no dataset"):
        check_resets(config, runner, loaded_rows("seed"))
    with_file = load([f"environment.factory={config.environment.factory}", "dataset.path=rows.jsonl"])
    with pytest.raises(EnvironmentSetupError, match=r"needs the column target, but the rows have level"):
        check_resets(with_file, runner, loaded_rows("level"))
    finding = columns_wanted(config, runner, ["target"])
    assert finding.result.endswith("room.py:Room reads target; the rows have target")
    assert columns_wanted(load(), None, ["prompt", "answer"]).result.startswith("exact_match reads answer; the rows")


def faked(words: list[str], *arguments: Any) -> tuple[Config, Any]:
    return load(words), FakeRunner(*arguments)


def test_something_must_reward_every_episode() -> None:
    factories = "environment.factory={doors: a.py:Doors, shelf: a.py:Shelf}"
    config, runner = faked([factories], {"doors": Doors, "shelf": Shelf})
    with pytest.raises(EnvironmentSetupError, match=r"environment\.factory\.shelf: a\.py:Shelf: without get_reward"):
        check_environments(config, runner)
    config, runner = faked([factories, "rewards=default"], {"doors": Doors, "shelf": Shelf})
    assert check_environments(config, runner) == "a.py:Doors with open; a.py:Shelf with take"


def test_two_tools_of_one_name() -> None:
    def take() -> int:
        """Take."""
        return 1

    config = load(["environment.factory=a.py:Shelf", "environment.tools=[a.py:take]", "rewards=default"])
    with pytest.raises(EnvironmentSetupError, match=r"a\.py:take\) and the environment a\.py:Shelf have more than one"):
        check_environments(config, FakeRunner({None: Shelf}, [take]))
    config, runner = faked(["environment.tools=[a.py:add, b.py:add]"], None, [add, add])
    with pytest.raises(EnvironmentSetupError, match=r"more than one tool called add"):
        check_environments(config, runner)


def test_a_template_without_tools() -> None:
    config, runner = faked(["environment.tools=[a.py:add]"], None, [add])
    for template in ("llama3", "gemma"):
        with pytest.raises(EnvironmentSetupError, match="cannot be used with tools or an environment"):
            prompts_with_tools(config, runner, make_tokenizer(template), None)


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        ({"type": "integer"}, 1),
        ({"type": "number"}, 1.0),
        ({"type": "boolean"}, True),
        ({"type": "string", "enum": ["b", "a"]}, "b"),
        ({"type": ["null", "integer"]}, 1),
        ({"type": "array", "items": {"type": "string"}}, ["1"]),
        ({"type": "array"}, []),
        ({"type": "object"}, {}),
    ],
)
def test_arguments_by_schema(kind: dict[str, Any], example: Any) -> None:
    schema = {"function": {"parameters": {"properties": {"a": kind, "b": {"type": "x"}}, "required": ["a"]}}}
    assert arguments_of(schema) == {"a": example}
    schema["function"]["parameters"]["required"] = ["b"]
    assert arguments_of(schema) is None


def test_rows_of_types_reach_the_environment(tmp_path: Path) -> None:
    """From the file to `reset`, through the processes."""
    (tmp_path / "seen.py").write_text(
        "class Seen:\n    def reset(self, prompts=None, **row):\n        return repr((prompts, row))\n"
        "    def get_reward(self):\n        return 1.0\n"
    )
    (tmp_path / "rows.jsonl").write_text(
        '{"prompts": "p", "level": 1, "state": {"a": 1}}\n{"prompts": null, "level": 2.5, "state": {"b": [0.3]}}\n'
    )
    factory = f"{tmp_path / 'seen.py'}:Seen"
    config = load([f"environment.factory={factory}", f"dataset.path={tmp_path / 'rows.jsonl'}", "dataset.test_size=0"])
    loaded = data.load(config.dataset, 0, answer_for=None, environment=config.environment)
    runner = EnvironmentRunner.of(config)
    assert runner is not None
    with runner:
        runner.start(tmp_path / "output")
        (instance,) = runner.instances([None])
        seen = [instance.reset(**row) for row in loaded.train]
    assert seen == ["('p', {'level': 1, 'state': {'a': 1}})", "(None, {'level': 2.5, 'state': {'b': [0.3]}})"]
