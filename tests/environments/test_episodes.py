"""Episodes: how they end, what they count, and their tokens, by hand; without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chat_templates import add, make_tokenizer
from covey.environments.chat import ToolChat
from covey.environments.contract import EnvironmentSource
from covey.environments.episodes import Episode, Limits, begin_episodes, run_episodes
from covey.environments.runner import EnvironmentRunner

END = "<|im_end|>"


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ADD = call("add", '{"a": 1, "b": 2}') + END


@pytest.fixture(scope="module")
def chat() -> ToolChat:
    return ToolChat.of(make_tokenizer("qwen3"))


class Written:
    """Gives each episode its turns, one after another, and counts the rows of each batch."""

    def __init__(self, chat: ToolChat, *turns: Sequence[str], logps: bool = False) -> None:
        self._chat, self._turns, self._logps = chat, [list(texts) for texts in turns], logps
        self.batches: list[list[int]] = []
        self.rows: list[list[list[int]]] = []

    def __call__(self, rows: list[list[int]], left: list[int]) -> Any:
        self.batches.append(left)
        self.rows.append(rows)
        going = [texts for texts in self._turns if texts]
        ids = [self._chat.tokenizer(going[index].pop(0))["input_ids"] for index in range(len(rows))]
        for texts in going[len(rows) :]:
            texts.clear()
        return ids, [[-0.5] * len(one) for one in ids] if self._logps else None


def episode(chat: ToolChat, **tools: Any) -> Episode:
    messages = [{"role": "user", "content": "1 + 2?"}]
    return Episode(messages, chat.render(messages, list(tools.values())), tools)


def run(chat: ToolChat, turns: Sequence[str], tools: dict[str, Any], **limits: Any) -> tuple[Episode, Written]:
    one, written = episode(chat, **tools), Written(chat, turns, logps=True)
    run_episodes([one], chat, written, Limits(**{"max_turns": 4, "max_completion_length": 1000, **limits}))
    return one, written


def test_tokens_mask_and_logps_of_an_episode(chat: ToolChat) -> None:
    one, written = run(chat, [ADD, f"Three.{END}"], {"add": add})
    assert (one.ended, one.turns, one.calls, one.failures) == ("answered", 2, 1, 0)
    encode = chat.tokenizer
    result = f"\n<|im_start|>user\n<tool_response>\n3\n</tool_response>{END}\n<|im_start|>assistant\n"
    parts = [(ADD, 1), (result, 0), (f"Three.{END}", 1)]
    tokens = [(token, sampled) for text, sampled in parts for token in encode(text)["input_ids"]]
    assert one.ids == [token for token, _ in tokens]
    assert one.mask == [sampled for _, sampled in tokens]
    assert one.logps == [-0.5 if sampled else 0.0 for _, sampled in tokens]
    assert [message["role"] for message in one.completion] == ["assistant", "tool", "assistant"]
    assert one.completion[1] == {"role": "tool", "name": "add", "content": "3"}
    first, last = len(encode(ADD)["input_ids"]), len(encode(f"Three.{END}")["input_ids"])
    assert written.batches == [[1000], [1000 - len(one.ids) + last]]
    assert written.rows[1] == [one.prompt_ids + one.ids[: len(one.ids) - last]]
    assert one.ids[:first] == encode(ADD)["input_ids"]


def test_how_episodes_end(chat: ToolChat) -> None:
    length = len(chat.tokenizer(ADD)["input_ids"])
    suffix = len(run(chat, [ADD, END], {"add": add})[0].ids) - length - 1
    ends = {
        "answered": run(chat, [f"Three.{END}"], {"add": add}),
        "truncated": run(chat, ["Three"], {"add": add}),
        "max_turns": run(chat, [ADD] * 9, {"add": add}),
    }
    assert {found.ended for found, _ in ends.values()} == set(ends)
    assert all(found.ended == ended for ended, (found, _) in ends.items())
    longest = ends["max_turns"][0]
    assert (longest.turns, longest.calls) == (4, 3)
    assert longest.completion[-1]["role"] == "assistant"
    # a result that does not fit is dropped, as TRL does; one that just fits leaves no room for a turn
    small, _ = run(chat, [ADD, END], {"add": add}, max_completion_length=length + suffix - 1)
    assert (small.ended, small.turns, small.ids) == ("truncated", 1, chat.tokenizer(ADD)["input_ids"])
    assert (len(small.completion), small.calls) == (1, 1)
    full, written = run(chat, [ADD, END], {"add": add}, max_completion_length=length + suffix)
    assert (full.ended, full.turns, len(written.batches), sum(full.mask)) == ("truncated", 1, 1, length)
    context, _ = run(chat, [ADD, END], {"add": add}, max_length=len(small.prompt_ids) + length + suffix)
    assert context.ended == "truncated"
    assert sum(context.mask) == len(context.ids) == length


def test_calls_that_fail_are_told_to_the_model(chat: ToolChat) -> None:
    def broken() -> None:
        raise OSError("no disk")

    def picture() -> list[dict[str, Any]]:
        return [{"type": "text", "text": "see"}, {"type": "image", "image": None}]

    def blocks() -> list[dict[str, Any]]:
        return [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    def numbers() -> list[int]:
        return [1, 2]

    tools = {"add": add, "broken": broken, "picture": picture, "blocks": blocks, "numbers": numbers}
    names = ["divide", "broken", "picture", "blocks", "numbers"]
    turn = "\n".join([call("add", '{"a": 1}'), call("add", '"1"'), *(call(name, "{}") for name in names)])
    one, _ = run(chat, [turn + END, f"?{END}"], {name: tool for name, tool in tools.items() if name == "add"})
    assert (one.calls, one.failures) == (7, 7)
    plain = ToolChat(chat.tokenizer)
    started = Episode([{"role": "user", "content": "?"}], plain.render([{"role": "user", "content": "?"}], []), tools)
    plain.parse = lambda ids, **_: chat.parse(ids, prefix=started.prompt_ids, tools=None)  # type: ignore[method-assign]
    written = Written(chat, [turn + END, f"?{END}"])
    plain.suffix_ids = lambda *given: chat.suffix_ids(*given[:2])  # type: ignore[method-assign]
    run_episodes([started], plain, written, Limits(2000))
    told = [message["content"] for message in started.completion if message["role"] == "tool"]
    assert "missing 1 required positional argument: 'b'" in told[0]
    assert "must be a mapping" in told[1]
    assert told[2:] == [
        "{'error': 'Tool divide not found.'}",
        "{'error': 'no disk'}",
        "{'error': 'The tool returned content of type image, and this model reads text only.'}",
        "ab",
        "[1, 2]",
    ]
    assert started.failures == 5


def test_turns_of_several_episodes_are_one_batch_and_async_results_keep_their_place(chat: ToolChat) -> None:
    order: list[str] = []

    async def slow(text: str) -> str:
        """
        Wait.

        Args:
            text: What to return.
        """
        await asyncio.sleep(0)
        order.append(text)
        return text

    tools = {"add": add, "slow": slow}
    both = call("slow", '{"text": "late"}') + call("add", '{"a": 1, "b": 1}') + END
    episodes = [episode(chat, **tools) for _ in range(3)]
    written = Written(chat, [both, f"2{END}"], [f"1{END}"], [ADD, ADD, f"3{END}"])
    run_episodes(episodes, chat, written, Limits(1000))
    assert [len(batch) for batch in written.batches] == [3, 2, 1]
    assert [one.turns for one in episodes] == [2, 1, 3]
    assert [message["content"] for message in episodes[0].completion if message["role"] == "tool"] == ["late", "2"]
    assert order == ["late"]


def test_a_process_without_episodes_takes_part_as_long_as_another_has_some(chat: ToolChat) -> None:
    left = [1, 1, 1, 0]  # the first turns; calls, and the turns after them; no more calls
    calls: list[int] = []

    def generate(rows: list[list[int]], limits: list[int]) -> Any:
        calls.append(len(rows))
        return [], None

    run_episodes([], chat, generate, Limits(9), largest=lambda count: max(count, left.pop(0)))
    assert calls == [0, 0]
    assert left == []


def _block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


GAME = '''
import random

class Game:
    def reset(self, **row):
        if row["prompt"] == "broken":
            raise ValueError("no game")
        self.secret = random.random()
        return f" Hint {self.secret}."

    def guess(self, number: int) -> str:
        """
        Guess.

        Args:
            number: The guess.
        """
        return "no"
'''


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentRunner]:
    file: Path = tmp_path_factory.mktemp("game") / "game.py"
    file.write_text(GAME, encoding="utf-8")
    with EnvironmentRunner({"one": EnvironmentSource(f"{file}:Game")}, timeout=20.0) as made:
        made.start()
        yield made


def test_episodes_begin_with_what_the_environment_says(chat: ToolChat, runner: EnvironmentRunner) -> None:
    rows = [{"prompt": text, "environment": "one"} for text in ("Play.", "Play.", "Play.", "broken")]
    episodes = begin_episodes(rows, runner, chat, seeds=[1, 1, 2, 1])
    said = [one.messages[-1]["content"] for one in episodes]
    assert said[0].startswith("Play. Hint 0.")
    assert said[0] == said[1] != said[2]
    assert said[3] == "broken"
    assert [one.ended for one in episodes] == [None, None, None, "crashed"]
    assert episodes[0].prompt_ids == chat.render(episodes[0].messages, runner.tools_of("one"))
    assert list(episodes[0].tools) == ["guess"]
    episodes[0].environment.covey._episode.seconds = 1.5
    episodes[0].settle()
    assert episodes[0].seconds == 1.5
    written = Written(chat, [call("guess", '{"number": 1}') + END, END], [END], [END])
    run_episodes(episodes, chat, written, Limits(500, 3))
    assert [one.turns for one in episodes] == [2, 1, 1, 0]
    assert episodes[0].completion[1]["content"] == "no"


class _Says:
    """An environment of this process."""

    def __init__(self, observation: Any) -> None:
        self._observation = observation

    def reset(self, **row: Any) -> Any:
        return self._observation


@pytest.mark.parametrize(
    ("prompt", "observation", "content"),
    [
        ("Play. ", "Now.", "Play. Now."),
        ("Play.", [_block("Now.")], [_block("Play."), _block("Now.")]),
        ([_block("Play.")], "Now.", [_block("Play."), _block("Now.")]),
        ([_block("Play.")], [_block("Now.")], [_block("Play."), _block("Now.")]),
    ],
)
def test_text_and_content_blocks_are_added_to_each_other(prompt: Any, observation: Any, content: Any) -> None:
    """As in TRL, of whose method these are the four cases."""
    runner: Any = SimpleNamespace(factory=_Says, tools=[], instances=lambda _: [_Says(observation)])
    chat: Any = SimpleNamespace(render=lambda messages, tools: [])
    (episode,) = begin_episodes([{"prompt": [{"role": "user", "content": prompt}]}], runner, chat, seeds=[None])
    assert episode.messages == [{"role": "user", "content": content}]


BROKEN = {
    "qwen3": ('<tool_call>\n{"name": "add", "arguments": {"a": 1,\n</tool_call>', "<|im_end|>"),
    "qwen2_5": ("<tool_call>\nadd(1, 2)\n</tool_call>", "<|im_end|>"),
    "llama3_1": ('{"name": "add", "parameters": {"a": 1', "<|eot_id|>"),
}


@pytest.mark.parametrize("template", BROKEN)
@pytest.mark.parametrize("reports", [False, True])
def test_a_call_that_cannot_be_parsed(template: str, reports: bool) -> None:
    chat = ToolChat.of(make_tokenizer(template))
    text, end = BROKEN[template]
    one, turns = episode(chat, add=add), [text + end, "Three." + end]
    run_episodes([one], chat, Written(chat, turns), Limits(1000, 4, reports_malformed=reports))
    assert (one.ended, one.malformed, one.calls, one.turns) == ("answered", 1, 0, 2 if reports else 1)
    roles = [message["role"] for message in one.completion]
    assert roles == (["assistant", "tool", "assistant"] if reports else ["assistant"])
    if reports:
        assert "could not be parsed" in one.completion[1]["content"]
        assert "could not be parsed" in chat.tokenizer.decode(one.ids)


def test_answers_whole_calls_and_cut_turns_are_not_malformed() -> None:
    chat = ToolChat.of(make_tokenizer("qwen3"))
    for turns in ([f"1 < 2, <b>three</b>.{END}"], [ADD, f"Three.{END}"], ['<tool_call>\n{"name": '], [END]):
        one = episode(chat, add=add)
        run_episodes([one], chat, Written(chat, turns), Limits(1000, 4, reports_malformed=True))
        assert one.malformed == 0
    without = episode(chat)
    run_episodes([without], chat, Written(chat, [f"<tool_call>{END}"]), Limits(1000, 4))
    assert without.malformed == 0


def test_a_model_that_only_writes_malformed_calls_is_stopped_by_the_limit_of_turns() -> None:
    chat = ToolChat.of(make_tokenizer("qwen3"))
    one, turns = episode(chat, add=add), ["".join(BROKEN["qwen3"])] * 9
    run_episodes([one], chat, Written(chat, turns), Limits(5000, 3, reports_malformed=True))
    assert (one.ended, one.turns, one.malformed) == ("max_turns", 3, 3)
