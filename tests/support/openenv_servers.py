"""OpenEnv servers for tests, as a script: `openenv_servers.py KIND PORT SESSIONS`.

`game` has actions of its own (a number is guessed, the server's seed hides it); `tools` speaks MCP.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Guess(Action):
    """Guess the hidden number."""

    number: int = Field(description="The guess, from 1 to 9.")
    loud: bool = False


class Reply(Observation):
    text: str = ""
    guesses: int = 0


class Game(Environment):
    """Rewards: 0.25 for a wrong guess in the range, 1 for the right one, which ends the game."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._hidden, self._state = 0, State(step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Reply:
        self._hidden = random.Random(seed).randint(1, 9) if more.get("hidden") is None else more["hidden"]
        self._state = State(step_count=0, best=0.0)
        return Reply(text=f"Guess a number from 1 to {more.get('most', 9)}.")

    def step(self, action: Guess, timeout_s: float | None = None, **more: Any) -> Reply:
        self._state.step_count += 1
        if action.number == 99:
            os._exit(0)  # the server dies
        if action.number == 98:
            time.sleep(600)
        if action.number == 97:
            raise ValueError("97 is not allowed")
        right = action.number == self._hidden
        self._state.best = max(self._state.best, float(right))
        text = "Right." if right else "Higher." if action.number < self._hidden else "Lower."
        reward = None if action.number == 0 else 1.0 if right else 0.25
        return Reply(text=text, guesses=self._state.step_count, reward=reward, done=right)

    @property
    def state(self) -> State:
        return self._state


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("notes")
        self._notes: list[str] = []
        self._state = State()

        @server.tool()
        def add_note(text: str, times: int = 1) -> int:
            """Write a note down.

            Args:
                text: The note.
                times: How often.
            """
            self._notes.extend([text] * times)
            return len(self._notes)

        @server.tool()
        def read_notes() -> list[str]:
            """Read all notes."""
            if not self._notes:
                raise ValueError("there are no notes")
            return self._notes

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Observation:
        self._notes.clear()
        return Observation()

    def _step_impl(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        raise ValueError("only tools")

    @property
    def state(self) -> State:
        self._state.notes = len(self._notes)
        return self._state


if __name__ == "__main__":
    classes = {"game": (Game, Guess, Reply), "tools": (Tools, CallToolAction, CallToolObservation)}
    app = create_fastapi_app(*classes[sys.argv[1]], max_concurrent_envs=int(sys.argv[3]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
