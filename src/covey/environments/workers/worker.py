"""What the processes of environments and tools do: each holds one instance, or standalone tools."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
import random
import socket
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from covey.environments.contract import EnvironmentLostError, EnvironmentSource, reset_arguments
from covey.environments.workers import results
from covey.environments.workers.description import describe_class, describe_function
from covey.environments.workers.messages import MAX_ANSWER, Answer, Done, Raised, Request
from covey.errors import CoveyError
from covey.importing import receive as receive_objects
from covey.workers.channel import BadMessageError, receive, send_json
from covey.workers.failures import describe, text_of
from covey.workers.memory_limit import limit_memory

MEMORY_KEY = "environment.memory_mb"


class EnvironmentWork:
    """What these processes do (`workers/fork_server_process.py`).

    The fork server imports the user's code, so that hundreds of instances share its memory.

    Args:
        sources: the environments, by name.
        tools: names of standalone tools.
        finders: `module:function` that loads an environment's factory from its source, and one for a tool's name.
        memory: bytes that a process may take on top of what it has once the code is loaded.
        given: environments and tools that are not imported by their names, see `covey.importing.given_by_value`.
    """

    def __init__(
        self,
        sources: Mapping[str | None, EnvironmentSource],
        tools: tuple[str, ...],
        finders: tuple[str, str],
        memory: int | None,
        given: Mapping[str, bytes | str] = MappingProxyType({}),
    ) -> None:
        receive_objects(given)
        self._sources = sources
        self._tools = tools
        self._finders = finders
        self._memory = memory
        self._loaded: dict[Any, Callable[..., Any] | BaseException] = {}
        self._instance: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def preload(self) -> None:
        """Import the user's code; what it raises is raised again by those who need it."""
        with contextlib.suppress(ImportError):
            import_module("numpy.random")  # which `reset` seeds
        for key in [*self._sources, *(("tool", name) for name in self._tools)]:
            with contextlib.suppress(BaseException):
                self._load(key)

    def serve(self, channel: socket.socket) -> None:
        """Do what is asked until the channel closes."""
        _seed_process(None)
        while (request := receive(channel)) is not None:
            answer = self._answer(request)
            try:
                send_json(channel, _listed(answer), MAX_ANSWER)
            except (BadMessageError, ValueError, RecursionError) as error:
                send_json(channel, _listed(Raised(request.ticket, "its result is too large", text_of(error))))

    def _answer(self, request: Request) -> Answer:
        try:
            return Done(request.ticket, self._do(request, pickle.loads(request.payload)))
        except BaseException as error:  # the user's code may raise anything, SystemExit included
            if isinstance(error, CoveyError | results.BadResultError):
                return Raised(request.ticket, str(error), str(error))
            lost = isinstance(error, EnvironmentLostError)
            return Raised(request.ticket, results.failure_text(error), describe(error, MEMORY_KEY), lost)

    def _do(self, request: Request, payload: Any) -> Any:
        match request.action:
            case "make":
                return self._make(payload)
            case "reset":
                row, seed = payload
                if seed is not None:
                    _seed_instance(self._instance, seed)
                return results.observation(
                    self._run(self._instance.reset, (), reset_arguments(self._instance.reset, row))
                )
            case "tool":
                standalone = self._instance is None
                tool = self._load(("tool", request.name)) if standalone else getattr(self._instance, request.name)
                return results.tool_result(self._run(tool, *payload))
            case "reward":
                return results.reward(self._run(self._instance.get_reward, (), {}))
            case "attribute":
                return results.attribute(self._instance, request.name)
            case "attributes":
                return results.attributes(self._instance)

    def _make(self, key: Any) -> dict[str, Any]:
        """Make the instance, or load a tool; returns its description."""
        limit_memory(None)  # it may import large libraries
        made = self._load(key)
        limit_memory(self._memory)
        if isinstance(key, tuple):
            return describe_function(made)
        self._instance = self._run(made, (), {})
        _seed_shared(self._instance)
        return describe_class(type(self._instance))

    def _load(self, key: Any) -> Callable[..., Any]:
        """The factory of an environment, by its name, or a tool, by `("tool", name)`."""
        found = self._loaded.get(key)
        if found is None:
            is_tool = isinstance(key, tuple)
            module, _, function = self._finders[is_tool].partition(":")
            try:
                found = getattr(import_module(module), function)(key[1] if is_tool else self._sources[key])
            except BaseException as error:
                found = error
            self._loaded[key] = found
        if isinstance(found, BaseException):
            raise found
        return found

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function, and wait for what it awaits, always in the same event loop."""
        returned = function(*args, **kwargs)
        if not (inspect.isawaitable(returned) or inspect.isasyncgen(returned)):
            return returned
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(_result(returned))


async def _result(returned: Any) -> Any:
    if not inspect.isasyncgen(returned):
        return await returned
    found = [item async for item in returned]
    return (item for item in found)


def _listed(answer: Answer) -> list[Any]:
    return ["done" if isinstance(answer, Done) else "raised", *answer]


def _seed_process(seed: int | None) -> None:
    """Seed the generators of `random`, NumPy and PyTorch, where they are loaded.

    Args:
        seed: None for new entropy: a fork would continue the stream of its parent.
    """
    random.seed(seed)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed(None if seed is None else seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed() if seed is None else torch.manual_seed(seed % 2**63)


def _seed_shared(instance: object) -> None:
    """Give the generators of an instance's class and module new entropy: its process was forked from one that had
    loaded them, and so were those of the other instances."""
    _seed_held(instance, None, own=False)


def _seed_instance(instance: object, seed: int) -> None:
    """Seed the process, and the generators that an instance, its class and its module hold."""
    _seed_process(seed)
    _seed_held(instance, seed, own=True)


def _seed_held(instance: object, seed: int | None, *, own: bool) -> None:
    kind = type(instance)
    holders = [*([instance] if own else []), *kind.__mro__[:-1], sys.modules.get(kind.__module__)]
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    held = [value for holder in holders for value in list(getattr(holder, "__dict__", {}).values())]
    number = 0  # of generators, as the other attributes of an instance may differ
    for generator in held:
        one = None if seed is None else seed + number + 1
        if isinstance(generator, random.Random):
            generator.seed(one)
        elif numpy is not None and isinstance(generator, numpy.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(one).state
        elif numpy is not None and isinstance(generator, numpy.RandomState):
            generator.seed(None if one is None else one % 2**32)
        elif torch is not None and isinstance(generator, torch.Generator):
            generator.seed() if one is None else generator.manual_seed(one % 2**63)
        else:
            continue
        number += 1
