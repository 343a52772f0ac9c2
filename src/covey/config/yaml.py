"""Limits on the size and depth of a YAML text, and what is wrong with one, in the words of someone who writes a config.

A few lines of aliases can expand to billions of values ("billion laughs"), and deep nesting breaks recursive readers:
a text is checked event by event before anything is built.
"""

from __future__ import annotations

import re
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


_WORDS = (
    (
        r"mapping values are not allowed",
        "a `: ` stands where no value can be: put a text that holds `: ` in quotes, or check the lines above",
    ),
    (r"could not find expected ':'", "a line that is not `key: value`; texts of several lines begin with `key: |`"),
    (
        r"expected <block end>, but found",
        "it does not fit the lines above: keys of one level begin in one column, `- ` begins an item of a list, and a "
        "text that begins with a quote ends with it",
    ),
    (r"sequence entries are not allowed", "`- ` begins an item of a list, on a line of its own"),
    (r"expected '<document start>', but found", "text follows a value that has ended: put the whole value in quotes"),
    (r"unhashable key", "a key is a list or a mapping: put a key that begins with [ or {{ in quotes"),
    (r"character '\\t' that cannot start", "a tab: YAML is indented with spaces"),
    (r"character '(.)' that cannot start", "a value cannot begin with {}: put it in quotes"),
    (r"expected ',' or '\]', but got", "a list that began with [ is not closed, or a comma is missing in it"),
    (r"expected ',' or '\}', but got", "a mapping that began with {{ is not closed, or a comma is missing in it"),
    (r"(?:unexpected end of stream|end of stream while scanning)", "a text in quotes is not closed"),
    (r"unknown escape character '(.)'", r"\{} means nothing in double quotes: use single quotes, or \\"),
    (r"expected the node content, but found", "a value is missing, or a text that begins with a sign needs quotes"),
    (r"undefined alias '?([^\s']+)'?", "*{} refers to an anchor (&{}) that is not there: put a text with * in quotes"),
    (r"duplicate key (.+)", "found duplicate key {}, with another value than above"),
    (r"but found another document", "`---` begins a second document: a config is one"),
    (r"could not determine a constructor for the tag '([^']+)'", "the tag {} is not known here: leave it out"),
    (r"special characters are not allowed", "it holds a control character: remove it"),
    (r"expected alphabetic or numeric character", "& and * begin an anchor or its alias: put such a text in quotes"),
)
"""PyYAML's messages, and what they mean."""


def yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong, as the end of a sentence; a message that is not in the table as PyYAML has it."""
    found = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    for pattern, words in _WORDS:
        if match := re.search(pattern, found):
            given = match[1] if match.lastindex else ""
            return words.format(given, given)
    return " ".join(found.split())
