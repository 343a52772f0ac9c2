"""What reward workers do: grade samples, and call functions of whole batches."""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from covey.rewards.reward import Reward, RewardSettings
from covey.rewards.workers import run_reward
from covey.rewards.workers.messages import SLOW_SECONDS, Answer, Begun, Call, CallDone, Grade, SampleDone, listed
from covey.workers.channel import BadMessageError, receive, send_json
from covey.workers.memory_limit import limit_memory

FIRST = (r"<answer>\sqrt{12}</answer>", {"prompt": "", "answer": r"2\sqrt{3}"})
"""What the fork server grades first, so that all workers share mpmath and the constants that this computes."""


class RewardWork:
    """What reward workers do (`workers/fork_server_process.py`): they import the user's code on first use.

    Args:
        settings: parameters of the rewards.
        finder: `module:function` that turns a name and the settings into a `Reward`.
        preload: rewards to have ready before the first worker is made; mpmath takes a third of a second.
        memory: bytes that a worker may take on top of what it has once a reward is loaded.
    """

    def __init__(self, settings: RewardSettings, finder: str, preload: Sequence[str], memory: int | None) -> None:
        module, _, function = finder.partition(":")
        self._find: Callable[[str, RewardSettings], Reward] = getattr(import_module(module), function)
        self._settings = settings
        self._preload = preload
        self._memory = memory
        self._rewards: dict[str, Reward] = {}

    def preload(self) -> None:
        """Grade once by every reward that is known beforehand."""
        for name in self._preload:
            if (sample := self._find(name, self._settings).sample) is not None:
                run_reward.grade(sample, *FIRST)

    def serve(self, channel: socket.socket) -> None:
        """Run tasks until the channel closes."""
        self._channel = channel
        while (work := receive(channel)) is not None:
            if isinstance(work, Grade):
                self._grade(work)
            else:
                self._call(work)

    def _grade(self, work: Grade) -> None:
        sample = self._reward(work.name).sample
        if sample is None:
            raise TypeError(f"{work.name} is not a grader")
        self._send(Begun())
        last = work.samples[-1][0]
        for ticket, pickled in work.samples:
            began = time.monotonic()
            text, row = pickle.loads(pickled)
            result = run_reward.grade(sample, text, row)
            seconds = time.monotonic() - began
            more = ticket != last and seconds < SLOW_SECONDS
            self._send(SampleDone(ticket, result, more, seconds))
            if not more:
                return

    def _call(self, work: Call) -> None:
        try:
            function = self._reward(work.name).batch
            kwargs: dict[str, Any] = pickle.loads(work.kwargs)
        except Exception as error:  # user code may raise anything
            failure = f"it, or its columns, cannot be loaded in a worker process: {run_reward.describe(error)}"
            self._send(CallDone(work.ticket, run_reward.CallResult(failure=failure)))
            return
        self._send(Begun())
        result = run_reward.call(function, kwargs, len(kwargs["completions"]))
        try:
            self._send(CallDone(work.ticket, result))
        except BadMessageError as error:
            result = replace(result, logged=[], unlogged=[f"what it logged takes {error}"])
            self._send(CallDone(work.ticket, result))

    def _reward(self, name: str) -> Reward:
        if name not in self._rewards:
            limit_memory(None)  # it may import large libraries
            self._rewards[name] = self._find(name, self._settings)
            limit_memory(self._memory)
        return self._rewards[name]

    def _send(self, message: Answer) -> None:
        send_json(self._channel, listed(message))
