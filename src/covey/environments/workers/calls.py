"""Calls of environments and tools in other processes, and the episodes that they belong to."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from covey.environments.workers.messages import Action

EndedBy = Literal["timed_out", "crashed"]
"""How an episode ends that its environment or a tool cannot go on with."""


class ToolError(Exception):
    """A tool raised an exception; its text is the model's result, as in TRL."""


@dataclass(eq=False)
class EpisodeState:
    """An episode of one instance; only the supervisor's thread changes it."""

    limit: float
    """Seconds in the environment."""
    seconds: float = 0.0
    outcome: EndedBy | None = None
    lost: bool = False
    """Whether it ended by no doing of the model, so that it has no reward."""


@dataclass(frozen=True, eq=False)
class Member:
    """An instance, as the trainer knows it. It has a process from its first call on."""

    key: str | None
    """Of which environment."""
    where: str
    """What names that in messages."""


class ToolCall(Future[Any]):
    """A call under way, of `tool.submit(…)`.

    `result()` is what the model is told: a text, a number, a dictionary or a list of content blocks. It raises
    `ToolError` where the tool raised, which is a failure of the call and no end of the episode.

    Attributes:
        ended: why the call ended its episode: its result is {"error": …} then.
        seconds: that the call took; waiting for a core does not count.
    """

    ended: EndedBy | None = None
    seconds: float = 0.0
    waits_since: float | None = None  # for a process that the system cannot start

    def __init__(
        self,
        action: Action,
        name: str,
        payload: bytes,
        limit: float,
        *,
        member: Member | None = None,
        episode: EpisodeState | None = None,
    ) -> None:
        super().__init__()
        self.action = action
        self.name = name
        self.payload = payload
        self.limit = limit
        self.member = member
        self.episode = episode
        self.set_running_or_notify_cancel()  # it cannot be cancelled

    @property
    def opens(self) -> bool:
        """Whether it may start the process of its member: others need one that has a state."""
        return self.action in ("make", "reset")

    @property
    def title(self) -> str:
        """What was called, for messages."""
        titles = {"reward": "get_reward", "attributes": "reading its attributes"}
        return titles.get(self.action, self.name or self.action)
