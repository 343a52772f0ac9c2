"""Environments, tools and a model for tests of episodes, all in this process and known by hand."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from covey.environments.contract import tool_methods
from covey.rollout import Capabilities, Completion, SamplingSettings


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: One number.
        b: The other number.
    """
    return a + b


class Doors:
    """A game: open doors until the prize is found; rewards 1 for the first door, 0.5 for a later one, else 0."""

    def reset(self, doors: int = 3, **row: Any) -> str:
        self.prize, self.opened, self.found = random.randrange(doors), 0, False
        return f" There are {doors} doors."

    def open(self, door: int) -> str:
        """
        Open a door.

        Args:
            door: Its number.
        """
        if door < 0:
            raise ValueError("there is no such door")
        self.opened += 1
        self.found = self.found or door == self.prize
        return "the prize" if door == self.prize else "nothing"

    def get_reward(self) -> float | None:
        return None if self.prize is None else (1.0 if self.opened == 1 else 0.5) if self.found else 0.0


class Shelf:
    """A set of tools, without a reward of its own."""

    def reset(self, prompt: Any = None, answer: Any = None) -> None:
        self.taken = 0

    def take(self) -> int:
        """Take a book."""
        self.taken += 1
        return self.taken


class FakeRunner:
    """As `EnvironmentRunner`, in this process; `seeds` are not known to environments that are no proxies."""

    def __init__(self, environments: Mapping[str | None, type] | None = None, tools: Sequence[Callable[..., Any]] = ()):
        self._kinds = dict(environments or {})
        self._pools: dict[str | None, list[Any]] = {name: [] for name in self._kinds}
        self.tools = [*tools]

    @property
    def factory(self) -> Any:
        return self._kinds.get(None, self._kinds or None)

    def instances(self, names: Sequence[str | None]) -> list[Any]:
        used: dict[str | None, int] = {}
        found = []
        for name in names:
            place = used[name] = used.get(name, -1) + 1
            if place == len(self._pools[name]):
                self._pools[name].append(self._kinds[name]())
            found.append(self._pools[name][place])
        return found

    def tools_of(self, name: str | None) -> list[Callable[..., Any]]:
        if name not in self._kinds:
            return [*self.tools]
        (instance,) = self.instances([name])
        return [*self.tools, *(getattr(instance, tool) for tool in tool_methods(type(instance)))]

    def start(self, output: Any = None) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> FakeRunner:
        return self

    def __exit__(self, *exception: object) -> None: ...


def call(name: str, **arguments: Any) -> str:
    """The text of a turn that calls a tool, as Qwen's templates have it."""
    import json

    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


class Model:
    """An engine whose turns are a function of the conversation's text; it counts and records its calls."""

    def __init__(self, tokenizer: Any, speak: Callable[[str], str], *, collective: bool = False) -> None:
        self.tokenizer, self.speak = tokenizer, speak
        self.capabilities = Capabilities(seeded=True, collective=collective)
        self.version: int | None = None
        self.seeds: list[int | None] = []
        self.rows: list[int] = []
        self.conversations = 0

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingSettings, *, seed: int | None = None
    ) -> list[Completion]:
        self.seeds.append(seed)
        self.rows.append(len(prompts))
        found = []
        for ids in prompts:
            text = self.speak(self.tokenizer.decode(ids))
            made = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
            most = sampling.max_completion_length
            found.append(Completion(made[:most], truncated=len(made) > most))
        return found

    @contextmanager
    def conversation(self) -> Iterator[None]:
        self.conversations += 1
        yield

    def sync(self, weights: Any, version: int) -> None: ...
    def close(self) -> None: ...


def last_result(text: str) -> str | None:
    """The newest result of a tool in a conversation's text."""
    found = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", text, re.DOTALL)
    return found[-1] if found else None


class Guesser(Model):
    """Plays the built-in number_guess by halving; named as `tests/support/fake_environments.py:Guesser`."""

    def __init__(self, model_name: str, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, halve)


def halve(text: str) -> str:
    """The next guess from 1 to 100, or an answer once the number was found."""
    if "is right. The game" in text:
        return "Found it."
    low, high = 1, 100
    for way, guess in re.findall(r"The number is (higher|lower) than (\d+)", text):
        low, high = (int(guess) + 1, high) if way == "higher" else (low, int(guess) - 1)
    return call("guess", number=(low + high) // 2)
