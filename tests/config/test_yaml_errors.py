"""Mistakes in a YAML file are told in the words of someone who writes one, with line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.config import load
from covey.errors import ConfigError

JARGON = ("block end", "token", "scanning", "alias", "document start", "node content", "constructor", "tag:yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run_name: a: b", "line 1, column 12: not valid YAML: a `: ` stands where no value can be"),
        ("seed: 1\nname\nresume: auto", "line 3, column 1: not valid YAML: a line that is not `key: value`"),
        ("callbacks: [a, b\nseed: 3", "line 2, column 5: not valid YAML: a list that began with [ is not closed"),
        ("dataset: {path: a\nseed: 3", "line 2, column 5: not valid YAML: a mapping that began with { is not closed"),
        ("dataset:\n\tpath: a", "line 2, column 1: not valid YAML: a tab"),
        ("run_name: @here", "line 1, column 11: not valid YAML: a value cannot begin with @"),
        ("run_name: 'here\nseed: 3", "a text in quotes is not closed"),
        ('run_name: "\\d"', r"line 1, column 13: not valid YAML: \d means nothing in double quotes"),
        ("run_name: *here", "*here refers to an anchor (&here) that is not there"),
        (
            "seed: 1\nseed: 2",
            "line 2, column 1: not valid YAML: found duplicate key seed, with another value than above",
        ),
        ("seed: 1\n---\nseed: 2", "`---` begins a second document"),
        ("seed: !odd 1", "the tag !odd is not known here"),
        ("seed: \x07", "it holds a control character"),
        ("model:\n  name: a\n dtype: b", "line 3, column 2: not valid YAML: it does not fit the lines above"),
        ("run_name: 'it''s' mine", "a text that begins with a quote ends with it"),
        ("callbacks: - a", "`- ` begins an item of a list, on a line of its own"),
        ("[a]: 1", "put a key that begins with [ or { in quotes"),
        ("seed: ]", "a value is missing"),
    ],
)
def test_what_is_wrong_and_where(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(recipe=tmp_path / "recipe.yaml")
    assert f"recipe.yaml{'' if message.startswith('it holds') else ', line'}" in str(caught.value)
    assert message in str(caught.value)
    assert not any(word in str(caught.value) for word in JARGON)


@pytest.mark.parametrize("word", ["run_name=a,,b", "callbacks=[a", "run_name=(", "run_name=a{b"])
def test_an_override_that_cannot_be_read(word: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read\. (Put the text into quotes|A list is put)") as caught:
        load([word])
    assert not any(part in str(caught.value) for part in ("mismatched", "viable", "EOF", "input"))
