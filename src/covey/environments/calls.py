"""Calls of tools that the model asked for: those in worker processes at once, others one after another, as in TRL."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.environments.proxies import EndedBy, ToolCall

RunAsync = Callable[[Sequence[Coroutine[Any, Any, Any]]], list[Any]]
"""Runs coroutines at once, and returns what each returned or the exception that it raised."""


@dataclass
class Result:
    """What came of one call."""

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
) -> list[Result]:
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


def finish_calls(results: Sequence[Result]) -> None:
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


def _begin(call: Mapping[str, Any], tools: Mapping[str, Callable[..., Any]]) -> Result:
    if call.get("type", "function") != "function":
        result = Result(call.get("name", "unknown"))
        result.settle(ValueError(f"Unsupported tool call type: {call['type']}"))
        return result
    function = call.get("function", call)
    result = Result(function["name"])
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
