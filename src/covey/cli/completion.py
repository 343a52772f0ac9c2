"""What could follow on a command line: commands, options, keys, groups and their options. Needs no PyTorch.

The scripts of `covey completion` send the line up to the cursor, as typed, and offer what `candidates` returns.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from covey.cli.config_arguments import split_options
from covey.config import document, known_keys
from covey.config.compose.group_files import Roots
from covey.config.groups.dataset import DATA_FILES
from covey.config.keys import GROUPS

_RECIPES = (".yaml", ".yml")
_FOLDER_OPTIONS = ("--config-dir=", "-cd=")
_WRITTEN = re.compile(r"(?P<mark>\+\+|\+|~|)(?P<key>[^=]*)(?P<equals>=?)(?P<before>(?:.*[,\[])?)[^,\[]*", re.DOTALL)
"""An override that is being written; of a list, `before` holds all but the last element."""


class Candidate(NamedTuple):
    """One continuation: a whole word, and a few words about it."""

    word: str
    about: str = ""


def candidates(line: str, parser: argparse.ArgumentParser) -> list[Candidate]:
    """The continuations of the last word of a line; empty where only a file can follow, which the shell completes.

    Args:
        line: the command line up to the cursor, with the quotes of a POSIX shell.
        parser: of the command line.
    """
    *before, current = _words(line)
    found = _of_parser(parser, before[1:], current)
    return [one for one in dict.fromkeys(found) if one.word.startswith(current)]


def _words(line: str) -> list[str]:
    """The words of a line, the last one empty after a space. A quote may still be open."""
    for rest in ("", "'", '"', "\\"):
        try:
            words = shlex.split(line + rest)
        except ValueError:
            continue
        return [*words, ""] if not rest and line[-1:].isspace() else words
    return [""]


def _of_parser(parser: argparse.ArgumentParser, words: Sequence[str], current: str) -> Iterator[Candidate]:
    option = parser._option_string_actions.get(words[-1]) if words else None
    if option is not None and option.nargs is None:  # it takes a value
        yield from _of_option(option)
        return
    for action in parser._get_positional_actions():
        if isinstance(action, argparse._SubParsersAction):
            for place, word in enumerate(words):
                if word in action.choices:
                    yield from _of_parser(action.choices[word], words[place + 1 :], current)
                    return
            if all(word.startswith("-") for word in words):
                yield from (Candidate(one.dest, one.help or "") for one in action._choices_actions)
        elif action.choices and not any(word in action.choices for word in words):
            yield from (Candidate(str(choice)) for choice in action.choices)
    if not words:  # what stands in a place of its own choice, as in `covey runs tail`
        yield from (Candidate(action) for action in parser.get_default("actions") or ())
    if current.startswith("-"):
        shown = (item for item in parser._option_string_actions.items() if item[1].help != argparse.SUPPRESS)
        yield from (Candidate(name, one.help or "") for name, one in shown if name.startswith("--"))
    elif parser.get_default("words") is not None:
        yield from _overrides(parser, words, current)


def _of_option(option: argparse.Action) -> Iterator[Candidate]:
    """The values of an option, where they can be listed."""
    yield from (Candidate(str(choice)) for choice in option.choices or ())
    if option.metavar == "KEY":
        yield from (Candidate(key, _first_sentence(document(key).doc)) for key in (*GROUPS, *known_keys()))


def _overrides(parser: argparse.ArgumentParser, words: Sequence[str], current: str) -> Iterator[Candidate]:
    """Overrides; and while nothing but options stands there, recipes."""
    options, others = split_options(parser, words)
    roots = Roots.of(word.partition("=")[2] for word in options if word.startswith(_FOLDER_OPTIONS))
    written = _WRITTEN.fullmatch(current)
    assert written is not None  # every text matches
    if written["equals"]:
        yield from _values(written, roots)
        return
    if not others:
        takes_rows = parser.prog.rpartition(" ")[2] in ("init", "train")
        yield from _recipes(current, (*_RECIPES, *(DATA_FILES if takes_rows else ())))
    yield from _names(written["mark"], written["key"], roots)


def _names(mark: str, start: str, roots: Roots) -> Iterator[Candidate]:
    """Groups, and keys up to their next dot."""
    for group in sorted({path.name for folder in roots.folders for path in folder.iterdir() if path.is_dir()}):
        about = _first_sentence(document(group).doc) if group in GROUPS else "a config group"
        yield Candidate(f"{mark}{group}=", about)
    for key in known_keys():
        dot = key.find(".", len(start))
        about = _first_sentence(document(key if dot < 0 else key[:dot]).doc) if key.startswith(start) else ""
        yield Candidate(f"{mark}{key}=" if dot < 0 else f"{mark}{key[:dot]}.", about)


def _values(written: re.Match[str], roots: Roots) -> Iterator[Candidate]:
    """The values of a key that can be listed, or the options of a group; a sweep has several of them."""
    key = written["key"]
    start = f"{written['mark']}{key}={written['before']}"
    if roots.is_group(key):
        found = {option: _heading(roots.find(f"{key}/{option}")[0]) for option in roots.options(key)}
    else:
        found = dict.fromkeys(document(key).choices, "") if key in known_keys() else {}
    yield from (Candidate(start + value, about) for value, about in found.items())


def _recipes(current: str, suffixes: tuple[str, ...]) -> Iterator[Candidate]:
    """Recipes, rows where a command takes them, and folders, whose names need no quotes."""
    folder, slash, start = current.rpartition("/")
    place = Path(folder + slash).expanduser()
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        wanted = path.is_dir() or path.name.endswith(suffixes)
        shown = path.name.startswith(start) and not (path.name.startswith(".") and not start)
        if wanted and shown and shlex.quote(path.name) == path.name:
            yield Candidate(f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}")


def _heading(file: Path) -> str:
    """The first sentence of the comment that an option's file begins with."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = (line[1:] for line in lines if line.startswith("#") and "@package" not in line)
    return _first_sentence(next(comment, ""))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:;])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".:;")
