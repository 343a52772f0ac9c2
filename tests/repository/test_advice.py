"""What messages advise works, followed to the letter: every command, key and value in the texts of the sources.

A command with arguments is made by `covey.advice.command`, whose template is a literal, or stands in backquotes; here
each is parsed, and its config composed. Whatever looks like `key=value` of a known key or group is composed too.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from commands import COMPOSED, check_command, make_workspace
from covey.advice import command
from covey.cli.main import parsers
from covey.config import compose
from covey.config.aliases.aliases import kind_of
from covey.config.keys import GROUPS
from covey.errors import ConfigError

SRC = Path(__file__).resolve().parents[2] / "src" / "covey"
GIVEN = "\N{REPLACEMENT CHARACTER}"
"""Stands for a value that is computed, in a text from the sources."""
SAMPLES = {
    **dict.fromkeys(("run", "first", "model", "adapters", "folder", "RUN", "MODEL", "NAME"), "out/my run"),
    **{
        "FILE": "my_recipe.yaml",
        "THIS_FILE": "my_recipe.yaml",
        "FOLDER": "made",
        "TASK": "countdown",
        "KEY": "training.beta",
        "N": "2",
        "STEP": "10",
    },
    **{
        "config": "my_recipe.yaml",
        "file": "rows.jsonl",
        "RECIPE": "my_recipe.yaml",
        "VALUE": "8",
        "repo": "me/model",
        "n": 2,
        "revision": "main",
    },
    **{"name": "num_generations", "action": "path", "starter": "starter", "task": "countdown", "seed": 1, "step": 100},
}
"""What stands for the values of a template, and for the words in capitals."""


@dataclass(frozen=True)
class Text:
    """A text of the sources that is no docstring."""

    where: str
    text: str


@dataclass(frozen=True)
class Proposal:
    """A call of `command`."""

    where: str
    template: str
    values: frozenset[str]


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SRC.rglob("*.py")):
        yield path.relative_to(SRC).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


@cache
def sources() -> tuple[list[Text], list[Proposal]]:
    texts, proposals = [], []
    for name, tree in _trees():
        inside: set[int] = set()
        found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "covey.advice"]
        proposes = any(name.name == "command" for node in found for name in node.names)
        for node in ast.walk(tree):
            if proposes and isinstance(node, ast.Call) and getattr(node.func, "id", "") == "command":
                template = node.args[0]
                assert isinstance(template, ast.Constant), f"{name}:{node.lineno}: the template is no literal"
                inside.add(id(template))
                values = frozenset(re.findall(r"{(\w+)}", str(template.value)))
                proposals.append(Proposal(f"{name}:{node.lineno}", str(template.value), values))
            if isinstance(node, ast.Expr):
                inside.add(id(node.value))  # a docstring
            if isinstance(node, ast.JoinedStr):
                inside |= {id(part) for part in node.values} | {
                    id(part.format_spec) for part in node.values if isinstance(part, ast.FormattedValue)
                }
        for node in ast.walk(tree):
            if id(node) in inside or not isinstance(node, ast.Constant | ast.JoinedStr):
                continue
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else GIVEN for p in parts)
            if isinstance(node, ast.JoinedStr) or isinstance(node.value, str):
                texts.append(Text(f"{name}:{node.lineno}", text))
    return texts, proposals


def _id(item: Text | Proposal) -> str:
    return item.where


def check(words: str, where: str) -> None:
    """Parse a command whose placeholders are filled in, and compose its config."""
    same = "" if words.split()[0] in COMPOSED else "RUN"
    sweep = re.sub(r"^(train|launch) --multirun", r"\g<0> seed=1,2", words).replace("…", same)
    filled = [
        re.sub(r"(?<![^=/])[A-Z_]+(?![^=./])", lambda found: str(SAMPLES[found[0]]), word)
        for word in shlex.split(sweep)
    ]
    try:
        check_command(filled, where)
    except SystemExit:
        pytest.fail(f"{where}: covey {words} is not taken")


@pytest.fixture(autouse=True)
def workspace(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_workspace(root, tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("proposal", [one for one in sources()[1] if one.template], ids=_id)
def test_a_proposed_command_is_taken(proposal: Proposal) -> None:
    text = command(proposal.template, **{name: SAMPLES[name] for name in proposal.values})
    assert shlex.split(text)[0] == "covey"
    check(text.removeprefix("covey "), proposal.where)


NAMED = re.compile(
    rf"`covey ([^`]*)`|\bcovey ([a-z{GIVEN}][\w{GIVEN}-]*"
    r"(?: (?:-?-[a-z-]+|(?:[A-Z_]{2,}|N)\b[^\s,;:)`]*|…|[a-z_.]+=[^\s;,)`]+))*)"
)


def named_commands() -> list[tuple[str, str]]:
    texts = [one for one in sources()[0] if not one.where.startswith("cli/commands/completion.py")]
    return [(one.where, found[1] or found[2]) for one in texts for found in NAMED.finditer(one.text)]


def test_commands_that_texts_name_are_taken() -> None:
    """One with an argument as a whole; a bare name, as in `covey eval wrote it`, must be that of a command."""
    assert len(named_commands()) > 40
    for where, words in named_commands():
        if words == GIVEN:  # of the command that was called
            continue
        assert GIVEN not in words, f"{where}: covey {words}: use covey.advice.command for a command with values"
        name, *more = shlex.split(words.rstrip(".,:"))
        assert name in parsers()[1] or words == "--help", f"{where}: there is no command {name}"
        for option in (word for word in more if word.startswith("-")):
            assert option in parsers()[1][name]._option_string_actions, f"{where}: covey {name} has no {option}"
        if more and "--help" not in more:
            check(words, where)


def test_the_examples_of_the_help_are_taken() -> None:
    found = re.findall(r"^  covey (.+?)(?: {2,}.*)?$", parsers()[0].epilog or "", re.MULTILINE)
    assert len(found) == 18
    for words in found:
        check(words, "covey --help")


SETTING = re.compile(rf"(?<![\w.{{\[/|{GIVEN}-])\+?([A-Za-z_]\w*(?:\.\w+)*)=(?![=\s])")
_OPEN = {"[": "]", "{": "}", "'": "'", '"': '"'}


def _value(text: str) -> str:
    """The value that a text begins with: to its closing bracket or quote, or to the end of the word."""
    if close := _OPEN.get(text[:1]):
        depth = 0
        for place, sign in enumerate(text):
            depth += (sign == text[0] and (place == 0 or close != sign)) - (sign == close and place > 0)
            if depth == 0 or (sign == close == text[0] and place > 0):
                return text[: place + 1]
    return re.split(r"[\s,;:)`'\"|]", text, maxsplit=1)[0].rstrip(".")


def settings() -> list[tuple[str, str, str]]:
    """What looks like `key=value` of a key or a group of Covey: where, the key, the value."""
    found = []
    for one in sources()[0]:
        for match in SETTING.finditer(one.text):
            if ("." in match[1] and match[1].split(".")[0] in GROUPS) or kind_of(match[1]) or match[1] in GROUPS:
                found.append((one.where, match[1], _value(one.text[match.end() :])))
    return found


WRONG = re.compile(
    r"is not a key|does not exist|has the wrong type|is not possible|is out of range|There is no option|cannot be read"
    r"|is a sweep|is not a mapping|is not read"
)
"""Errors about one key and its value; any other is about a run that the reader has and this test has not."""


def refusal(word: str) -> str:
    """Why a run with this override alone is refused; empty if it is not."""
    try:
        compose([word])
    except ConfigError as error:
        return str(error)
    return ""


def _is_computed(value: str) -> bool:
    """Whether a value is known only where the message is made, or to the reader."""
    return value == "" or any(sign in value for sign in (GIVEN, "…", "%")) or bool(re.search("[A-Z]{1,}|{}|#", value))


def test_keys_and_values_in_texts_are_taken() -> None:
    assert len(settings()) > 400
    composed = set[str]()
    for where, key, value in settings():
        assert key in GROUPS or kind_of(key) is not None or key.startswith("hydra"), f"{where}: there is no key {key}"
        word = f"{key}={value}"
        if _is_computed(value) or key.startswith("hydra") or word in composed:
            continue
        composed.add(word)
        assert WRONG.search(refusal(word)) is None, f"{where}: {word}: {refusal(word)}"
    assert len(composed) > 100


def test_a_value_with_spaces_or_brackets_is_in_quotes_of_the_shell() -> None:
    """zsh looks for files by a word with brackets, and stops."""
    for one in sources()[0]:
        for match in SETTING.finditer(one.text):
            value = _value(one.text[match.end() :])
            if kind_of(match[1]) and GIVEN not in value and re.search(r"[ \[*?(]", value):
                quoted = value[0] in "'\"" or one.text[match.start() - 1 : match.start()] in ("'", "`")
                assert quoted, f"{one.where}: {match[0]}{value}"


ADVISED = re.compile(r"(?:[Ww]rite|[Ss]et|of the shell:) ((?:'[^']*'|\"'\"|[^\s',;()])+)")


def test_words_that_messages_advise_are_taken_as_the_shell_gives_them(root: Path) -> None:
    """All messages of `tests/golden/config_errors.json`, bash's word splitting, and zsh's search for files."""
    recorded = json.loads((root / "tests" / "golden" / "config_errors.json").read_text(encoding="utf-8"))
    tried = 0
    for case, message in recorded.items():
        for text in ADVISED.findall(message):
            text = text.rstrip(".")
            key = text.lstrip("'").partition("=")[0]
            if kind_of(key) is None or _is_computed(text.partition("=")[2].strip("'[]")):
                continue
            assert not re.search(r"[\[*?(]", re.sub(r"'[^']*'", "", text)), f"{case}: zsh reads {text} as a pattern"
            (word,) = shlex.split(text)
            tried += 1
            assert WRONG.search(refusal(word)) is None, f"{case}: {text}: {refusal(word)}"
    assert tried > 8
