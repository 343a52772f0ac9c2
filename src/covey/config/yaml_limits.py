"""Limits on the size and depth of a YAML text, checked event by event before anything is built.

A few lines of aliases can expand to billions of values ("billion laughs"), and deep nesting breaks recursive readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from covey.errors import ConfigError

MAX_DEPTH = 50
"""Levels of nesting, aliases expanded."""
MAX_NODES = 20_000
"""Keys, values and collections, aliases expanded."""
MAX_LENGTH = 5_000_000  # characters

FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where it is there: ten times as fast, but it refuses lone surrogates, and deep nesting ends the process."""


@dataclass(slots=True)
class _Node:
    anchor: str | None = None
    nodes: int = 1
    depth: int = 1
    """Levels from here to the deepest leaf."""

    def take(self, inside: _Node) -> None:
        self.nodes += inside.nodes
        self.depth = max(self.depth, inside.depth + 1)


def check_yaml(text: str, origin: object) -> None:
    """Check the size of a YAML text; whether it is valid is left to the parser.

    Args:
        origin: what it is, for the message.

    Raises:
        ConfigError: it is too long, too deep, holds too many values, or an alias that contains itself.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(
            f"{origin} is too long for a config: {len(text):,} characters, at most {MAX_LENGTH:,} are read."
        )
    for loader in dict.fromkeys((FAST_LOADER, yaml.SafeLoader)):  # libyaml refuses texts that PyYAML reads
        try:
            _check_events(yaml.parse(text, Loader=loader), origin)
        except yaml.YAMLError:
            continue
        return


def _check_events(events: Iterable[yaml.Event], origin: object) -> None:
    above = [_Node()]  # the document, and the collections that are open
    named: dict[str, _Node | None] = {}
    for event in events:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.CollectionStartEvent):
            above.append(_Node(event.anchor))
            if event.anchor is not None:
                named[event.anchor] = None  # until it is closed
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = above.pop()
            if closed.anchor is not None:
                named[closed.anchor] = closed
            above[-1].take(closed)
        elif isinstance(event, yaml.ScalarEvent):
            leaf = _Node(event.anchor)
            if event.anchor is not None:
                named[event.anchor] = leaf
            above[-1].take(leaf)
        elif isinstance(event, yaml.AliasEvent):
            meant = named.get(str(event.anchor), _Node())
            if meant is None:
                raise ConfigError(
                    f"{origin}, line {line}: the alias *{event.anchor} contains itself: write the values out."
                )
            above[-1].take(meant)
        if len(above) - 1 + above[-1].depth - 1 > MAX_DEPTH:
            raise ConfigError(
                f"{origin}, line {line}: the values are nested more than {MAX_DEPTH} levels deep: use fewer levels."
            )
        if sum(node.nodes for node in above) > MAX_NODES:
            raise ConfigError(
                f"{origin}, line {line}: up to here the file holds more than {MAX_NODES:,} values (aliases "
                "expanded), too many for a config: remove aliases (*name), or move data into a file of its own."
            )
