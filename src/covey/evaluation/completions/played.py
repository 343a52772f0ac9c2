"""What an episode leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.evaluation.completions.transcript import Message, plain_message


@dataclass(frozen=True, slots=True)
class Played:
    """An episode of an evaluation, after its end."""

    prompt: Sequence[Message] = ()
    """The messages of the prompt, with the environment's observation."""
    messages: Sequence[Message] = ()
    """Those of the model, and the results."""
    sampled: int = 0
    """Tokens that the model sampled."""
    turns: int = 0
    calls: int = 0
    failures: int = 0
    malformed: int = 0
    seconds: float = 0.0
    """In the environment and tools."""
    ended: str = ""
    """See `covey.environments.episodes.Episode`."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Of the environments that reward, by the name of their class: this episode's own; None of the others."""
    owned: bool = False
    """Whether this episode's environment rewards it."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """See `row_columns`."""
    environment: Any = field(default=None, repr=False, compare=False)
    """The environment, for rewards that read it; until the next batch resets it."""

    @property
    def reward(self) -> float | None:
        """What its environment gave it; None if it failed, or does not reward."""
        return next((value for value in self.rewards.values() if value is not None), None)

    def fields(self) -> dict[str, Any]:
        """The fields of a graded completion that only an episode has."""
        return {
            "messages": [plain_message(message) for message in (*self.prompt, *self.messages)],
            "turns": self.turns,
            "tool_calls": self.calls,
            "tool_failures": self.failures,
            "malformed_calls": self.malformed,
            "environment_seconds": round(self.seconds, 3),
            "episode": self.ended,
            "row": dict(self.row),
        }


def row_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a data row that only its environment and rewards read, as JSON can hold them."""
    return plain_message({name: value for name, value in row.items() if name not in ("prompt", "answer")})


def played_of(completion: object) -> Played | None:
    """The episode that a completion is; None for a plain one."""
    found = getattr(completion, "played", None)
    return found if isinstance(found, Played) else None
