"""Episodes: the model's turns and the tools that they call, until the model answers or a limit is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from covey.environments.chat import Message, ToolChat

Ended = Literal["answered", "truncated", "max_turns", "timed_out", "crashed"]
Generate = Callable[[list[list[int]], list[int]], tuple[list[list[int]], list[list[float]] | None]]
"""Takes the token ids so far of each row, and how many tokens it may add at most; returns those that the model adds and
their log-probabilities, if the engine gives them."""


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
    seconds: float = 0.0
    """In the environment and tools."""
    ended: Ended | None = None
    """How the episode ended; None before."""


def begin_episodes(
    rows: Sequence[Mapping[str, Any]], runner: Any, chat: ToolChat, *, seeds: Sequence[int | None]
) -> list[Episode]:
    """Episodes of these data rows: environments are reset, all at once, and the prompts rendered.

    Args:
        rows: one per episode, with `prompt` (text or messages) unless the environment makes it, and `environment` where
            there are several.
        runner: the environments and tools, an `EnvironmentRunner` that has been started.
        chat: renders the prompts.
        seeds: of each episode's environment; equal ones make equal starts.

    Returns:
        In the order of the rows. One whose `reset` failed has ended already, as `timed_out` or `crashed`.
    """
    raise NotImplementedError


def run_episodes(
    episodes: Sequence[Episode],
    chat: ToolChat,
    generate: Generate,
    *,
    max_turns: int | None,
    max_completion_length: int,
    max_length: int | None = None,
) -> None:
    """Run episodes to their end; each is updated in place. Their tools run at once, their turns in one batch.

    Args:
        episodes: new ones, or with their first turn (`ids`, `mask` and `completion`).
        chat: of the model that `generate` samples from.
        generate: samples one turn of each row.
        max_turns: most turns of the model in an episode; None for no limit.
        max_completion_length: most tokens after the prompt, those of results included.
        max_length: most tokens with the prompt, of the model's context; None for no limit.
    """
    raise NotImplementedError
