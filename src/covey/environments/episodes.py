"""Episodes: the model's turns and the tools that they call, until the model answers or a limit is reached.

Calls of tools in worker processes run at once, others one after another, as in TRL.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from covey.environments.chat import Message, ToolChat
from covey.environments.contract import tool_methods
from covey.environments.runner import control_of
from covey.environments.workers.calls import EndedBy, ToolCall

if TYPE_CHECKING:
    from covey.environments.runner import EnvironmentRunner


RunAsync = Callable[[Sequence[Coroutine[Any, Any, Any]]], list[Any]]
"""Runs coroutines at once, and returns what each returned or the exception that it raised."""


@dataclass
class CallResult:
    """What came of one call of a tool."""

    name: str
    """Of the tool, as the model wrote it."""
    content: str = ""
    """What the model is told."""
    failed: bool = False
    """The call was of no tool, did not fit its arguments, or the tool raised."""
    ended: EndedBy | None = None
    """Why the call ended the episode, if it did."""
    seconds: float = 0.0
    under_way: ToolCall | Coroutine[Any, Any, Any] | None = None
    """In a worker process, or a coroutine that is yet to run; None once there is a result."""

    @property
    def message(self) -> dict[str, Any]:
        """The message that tells the model."""
        return {"role": "tool", "name": self.name, "content": self.content}

    def settle(self, value: Any) -> None:
        """Take what a tool returned, or the exception that it raised."""
        self.under_way = None
        try:
            if isinstance(value, BaseException):
                raise value
            self.content = _content(value)
        except Exception as error:  # the tool's own, also of its value's __str__
            self.failed, self.content = True, str({"error": str(error)})


def begin_calls(
    calls: Sequence[Mapping[str, Any]], tools: Mapping[str, Callable[..., Any]], run_async: RunAsync
) -> list[CallResult]:
    """Start the calls of one turn; those of tools in worker processes are still under way on return.

    Args:
        calls: the `tool_calls` of the model's message.
        tools: by name.
        run_async: runs the coroutines of `async` tools.
    """
    results = [_begin(call, tools) for call in calls]
    waiting = [result for result in results if inspect.iscoroutine(result.under_way)]
    if waiting:
        began = time.perf_counter()
        found = run_async([result.under_way for result in waiting])  # type: ignore[misc]
        for result, value in zip(waiting, found, strict=True):
            result.settle(value)
            result.seconds = time.perf_counter() - began
    return results


def finish_calls(results: Sequence[CallResult]) -> None:
    """Wait for the calls in worker processes."""
    for result in results:
        call = result.under_way
        if isinstance(call, ToolCall):
            result.settle(call.exception() or call.result())
            result.seconds, result.ended = call.seconds, call.ended
            result.failed = result.failed or call.ended is not None


def run_coroutines(coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines at once in an event loop of their own."""
    return asyncio.run(together(coroutines))


async def together(coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """What each of these coroutines returns, or the exception that it raises."""
    return await asyncio.gather(*coroutines, return_exceptions=True)


def _begin(call: Mapping[str, Any], tools: Mapping[str, Callable[..., Any]]) -> CallResult:
    if call.get("type", "function") != "function":
        result = CallResult(call.get("name", "unknown"))
        result.settle(ValueError(f"Unsupported tool call type: {call['type']}"))
        return result
    function = call.get("function", call)
    result = CallResult(function["name"])
    tool = tools.get(result.name)
    began = time.perf_counter()
    try:
        if tool is None:
            raise ValueError(f"Tool {result.name} not found.")
        value = getattr(tool, "submit", tool)(**function["arguments"])
        if isinstance(value, ToolCall) or inspect.iscoroutine(value):
            result.under_way = value
        else:
            result.settle(value)
    except Exception as error:  # the tool's own, or arguments that do not fit
        result.settle(error)
    if result.under_way is None:
        result.seconds = time.perf_counter() - began
    return result


def _content(value: Any) -> str:
    """What the model is told of a tool's value: the text of content blocks, and all else as text."""
    if not (isinstance(value, list) and value and all(isinstance(part, Mapping) and "type" in part for part in value)):
        return str(value)
    if others := [part["type"] for part in value if part["type"] != "text"]:
        raise ValueError(f"The tool returned content of type {others[0]}, and this model reads text only.")
    return "".join(str(part.get("text", "")) for part in value)


Ended = Literal["answered", "truncated", "max_turns", "timed_out", "crashed"]
Generate = Callable[[list[list[int]], list[int]], tuple[list[list[int]], list[list[float]] | None]]
"""Takes the token ids so far of each row, and how many tokens it may add at most; returns those that the model adds and
their log-probabilities, if the engine gives them."""

_MALFORMED = str({"error": "The tool call could not be parsed: write it in the format of tool calls."})


@dataclass
class Episode:
    """One conversation of the model with its tools."""

    messages: list[Message]
    """The prompt, with the environment's observation."""
    prompt_ids: list[int]
    """The prompt's tokens; empty if the episode has ended before its first turn (its `reset` failed)."""
    tools: Mapping[str, Callable[..., Any]]
    """What the model may call, by name."""
    environment: Any = None
    """The environment or its proxy; None with standalone tools only."""

    ids: list[int] = field(default_factory=list)
    """All tokens after the prompt: those sampled, and the results of tools between them."""
    mask: list[int] = field(default_factory=list)
    """1 for each sampled token, 0 for the others."""
    logps: list[float] | None = None
    """Log-probabilities of the tokens, 0 where not sampled; None if the engine gives none."""
    completion: list[Message] = field(default_factory=list)
    """The assistant's messages and the results, in order."""
    turns: int = 0
    """Turns of the model."""
    calls: int = 0
    """Tool calls."""
    failures: int = 0
    """Calls that failed: of an unknown tool, with wrong arguments, or the tool raised."""
    malformed: int = 0
    """Turns with a tool call that could not be parsed."""
    seconds: float = 0.0
    """In the environment and tools; see `settle`."""
    ended: Ended | None = None
    """How the episode ended; None before."""

    turn_length: int = 0
    """Tokens of the last turn."""
    tool_seconds: float = 0.0
    """In calls that the environment's own clock does not count."""

    @classmethod
    def of(
        cls, messages: list[Message], prompt_ids: list[int], tools: Mapping[str, Callable[..., Any]], environment: Any
    ) -> Episode:
        """An episode whose environment has been reset; it has ended already where that failed."""
        episode = cls(messages, prompt_ids, tools, environment)
        episode.settle()
        return episode

    def settle(self) -> None:
        """Take the time in the environment so far, and whether it ended the episode."""
        control = control_of(self.environment)
        self.seconds = self.tool_seconds + (0.0 if control is None else control.seconds)
        if control is not None and control.outcome is not None:
            self.ended = control.outcome

    @property
    def conversation_ids(self) -> list[int]:
        """All tokens so far."""
        return self.prompt_ids + self.ids

    def add_turn(self, ids: Sequence[int], logps: Sequence[float] | None, message: Message | None) -> None:
        """Add a turn of the model.

        Args:
            ids: its tokens.
            logps: their log-probabilities, if the engine gives them.
            message: what they are; None for no tokens.
        """
        self.add(ids, 1, logps)
        self.turns += 1
        self.turn_length = len(ids)
        if message is not None:
            self.completion.append(message)

    def add(self, ids: Sequence[int], sampled: int, logps: Sequence[float] | None) -> None:
        """Add tokens of a turn, or, not sampled, of results and of the next turn's beginning."""
        if logps is not None:
            self.logps = [*(self.logps or []), *logps]
        self.ids += ids
        self.mask += [sampled] * len(ids)


@dataclass(frozen=True)
class Limits:
    """How far an episode may go."""

    max_completion_length: int
    """Most tokens after the prompt, those of results included."""
    max_turns: int | None = None
    """Most turns of the model; None for no limit."""
    max_length: int | None = None
    """Most tokens with the prompt, of the model's context; None for no limit."""
    reports_malformed: bool = False
    """Whether the model is told of a call that cannot be parsed, and goes on; else that turn is its answer."""

    def left(self, episode: Episode) -> int:
        """Tokens that an episode may still take."""
        left = self.max_completion_length - len(episode.ids)
        if self.max_length is not None:
            left = min(left, self.max_length - len(episode.prompt_ids) - len(episode.ids))
        return left


def begin_episodes(
    rows: Sequence[Mapping[str, Any]], runner: EnvironmentRunner, chat: ToolChat, *, seeds: Sequence[int | None]
) -> list[Episode]:
    """Episodes of these data rows: environments are reset, all at once, and the prompts rendered.

    Args:
        rows: one per episode, with `prompt` (text or messages) unless the environment makes it, and `environment` where
            there are several.
        runner: the environments and tools, which has been started.
        chat: renders the prompts.
        seeds: of each episode's environment; equal ones make equal starts.

    Returns:
        In the order of the rows. One whose `reset` failed has ended already, as `timed_out` or `crashed`.
    """
    names: list[str | None] = [None] * len(rows)
    if isinstance(runner.factory, Mapping):
        names = [row.get("environment") for row in rows]
    environments: list[Any] = [None] * len(rows) if runner.factory is None else runner.instances(names)
    arguments = [
        row if name is None else {key: value for key, value in row.items() if key != "environment"}
        for name, row in zip(names, rows, strict=True)
    ]
    begin_resets(environments, arguments, seeds)
    episodes = []
    for environment, given, row in zip(environments, arguments, rows, strict=True):
        messages = as_conversation(row.get("prompt", ""))
        observation = None if environment is None else environment.reset(**given)
        if observation is not None:
            messages = [*messages[:-1], _told(messages[-1], observation)]
        methods = () if environment is None else tool_methods(type(environment))
        own = [*runner.tools, *(getattr(environment, name) for name in methods)]
        tools = {tool.__name__: tool for tool in own}
        episodes.append(Episode.of(messages, chat.render(messages, list(tools.values())), tools, environment))
    return episodes


def _told(message: Message, observation: Any) -> Message:
    """A message with an observation at its end; each may be text or content blocks, as in TRL."""
    parts = [message["content"], observation]
    if not all(isinstance(part, str) for part in parts):
        parts = [[{"type": "text", "text": part}] if isinstance(part, str) else part for part in parts]
    return {**message, "content": parts[0] + parts[1]}


def begin_resets(environments: Sequence[Any], rows: Sequence[Mapping[str, Any]], seeds: Sequence[int | None]) -> None:
    """Start the resets of environments in worker processes, all at once; each one's next `reset` returns its result."""
    for environment, row, seed in zip(environments, rows, seeds, strict=True):
        if (control := control_of(environment)) is not None:
            control.begin_reset(row, seed)


def as_conversation(prompt: Any) -> list[Message]:
    """A prompt as messages; text becomes the user's."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def run_episodes(
    episodes: Sequence[Episode],
    chat: ToolChat,
    generate: Generate,
    limits: Limits,
    *,
    run_async: RunAsync = run_coroutines,
    largest: Callable[[int], int] = int,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run episodes to their end; each is updated in place. Their tools run at once, their turns in one batch.

    Args:
        episodes: new ones, or with their first turn.
        chat: of the model that `generate` samples from.
        generate: samples one turn of each row.
        limits: of each episode.
        run_async: runs `async` tools that are no proxies.
        largest: the largest of this number over all processes that must call `generate` equally often.
        watch: called after each turn and after its calls, to show them.
    """
    new = [one for one in episodes if one.ended is None and not one.turns]
    _generate_turns(new, chat, generate, limits, largest)
    watch()
    calling = [one for one in episodes if _calls(one, chat, limits)]
    while largest(len(calling)):
        _call_tools(calling, run_async)
        watch()
        going_on = [one for one in calling if _add_results(one, chat, limits)]
        _generate_turns(going_on, chat, generate, limits, largest)
        watch()
        calling = [one for one in going_on if _calls(one, chat, limits)]


def _generate_turns(
    episodes: Sequence[Episode], chat: ToolChat, generate: Generate, limits: Limits, largest: Callable[[int], int]
) -> None:
    if not largest(len(episodes)):
        return
    rows, left = [one.conversation_ids for one in episodes], [limits.left(one) for one in episodes]
    turns, logps = generate(rows, left)
    for index, (episode, row, ids) in enumerate(zip(episodes, rows, turns, strict=True)):
        ids = list(ids[: left[index]])  # an engine without a limit of each row's own samples more
        message = chat.parse(ids, prefix=row, tools=list(episode.tools.values())) if ids else None
        episode.add_turn(ids, None if logps is None else logps[index][: len(ids)], message)


def _calls(episode: Episode, chat: ToolChat, limits: Limits) -> bool:
    """Whether an episode goes on, with the calls of its last turn; else it has ended."""
    if episode.ended is not None:
        return False
    ended = bool(episode.turn_length) and episode.ids[-1] in chat.stop_token_ids
    turn = episode.ids[len(episode.ids) - episode.turn_length :]
    malformed = ended and bool(episode.tools) and chat.is_malformed(turn, episode.completion[-1])
    episode.malformed += malformed
    called = bool(episode.turn_length and episode.completion[-1].get("tool_calls"))
    if not called and not (malformed and limits.reports_malformed):
        episode.ended = "answered" if ended else "truncated"
    elif limits.max_turns is not None and episode.turns >= limits.max_turns:
        episode.ended = "max_turns"
    return episode.ended is None


def _call_tools(episodes: Sequence[Episode], run_async: RunAsync) -> None:
    """Call what the last turns ask for, and add the results to the conversations."""
    for one in [one for one in episodes if not one.completion[-1].get("tool_calls")]:
        one.completion.append({"role": "tool", "name": next(iter(one.tools)), "content": _MALFORMED})
    calling = [one.completion[-1].get("tool_calls") or [] for one in episodes]
    begun = [begin_calls(calls, one.tools, run_async) for calls, one in zip(calling, episodes, strict=True)]
    for episode, results in zip(episodes, begun, strict=True):
        finish_calls(results)
        episode.calls += len(results)
        episode.failures += sum(result.failed for result in results)
        timed = () if control_of(episode.environment) is None else tool_methods(type(episode.environment))
        episode.tool_seconds += sum(result.seconds for result in results if result.name not in timed)
        episode.completion += [result.message for result in results]
        episode.ended = next((result.ended for result in results if result.ended is not None), None)
        episode.settle()


def _add_results(episode: Episode, chat: ToolChat, limits: Limits) -> bool:
    """Add the tokens of the results, if there is room for them; whether the episode goes on."""
    if episode.ended is not None:
        return False
    results = list(takewhile(lambda message: message["role"] == "tool", reversed(episode.completion)))[::-1]
    turn = episode.ids[len(episode.ids) - episode.turn_length :]
    suffix = chat.suffix_ids(turn, results, list(episode.tools.values()))
    left = limits.left(episode) - len(suffix)
    full = limits.max_length is not None and len(episode.conversation_ids) + len(suffix) >= limits.max_length
    if left < 0 or full:
        # As TRL: without the tokens of the results, the conversation has none either.
        del episode.completion[len(episode.completion) - len(results) :]
        episode.ended = "truncated"
        return False
    episode.add(suffix, 0, None if episode.logps is None else [0.0] * len(suffix))
    if left == 0:
        episode.ended = "truncated"
    return left > 0
