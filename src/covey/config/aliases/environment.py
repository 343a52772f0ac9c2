"""Names of environments, tools and turns, as TRL has them."""

from __future__ import annotations

from typing import Any

from covey.config.aliases.alias_result import AliasResult
from covey.config.aliases.conversions import importable, integer
from covey.config.groups.environment import TOOLS
from covey.config.keys import Choice


def factory(value: Any) -> AliasResult:
    """An environment, which by default makes its own prompts and rewards itself; one that is only a tool does not."""
    own = (Choice("dataset", "none", implied=True), Choice("rewards", "none", implied=True))
    value = importable(value) if isinstance(value, str) else value
    return AliasResult({"environment.factory": value}, choices=() if value in (None, *TOOLS) else own)


def tools(value: Any) -> AliasResult:
    """One tool or several."""
    found = [value] if isinstance(value, str) else value
    named = isinstance(found, list) and all(isinstance(name, str) for name in found)
    return AliasResult({"environment.tools": [importable(name) for name in found] if named else found})


def rollout_func(value: Any) -> AliasResult:
    """A function, also by its dotted path."""
    return AliasResult({"environment.rollout_func": importable(value) if isinstance(value, str) else value})


def max_turns(value: Any) -> AliasResult:
    """TRL counts the rounds of tool calls; the turn that answers comes after them."""
    return AliasResult({"environment.max_turns": None if value is None else integer(value, 0) + 1})
