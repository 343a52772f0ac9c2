"""What is wrong with a text that is not YAML, in the words of someone who writes a config."""

from __future__ import annotations

import re

import yaml

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
