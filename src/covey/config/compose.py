"""Composing a run: Covey's defaults, then the recipe, then the command line from left to right.

Hydra composes the groups and its own parser reads the overrides, so both behave as people know them; spellings of other
tools are translated before anything is merged. The one rule that is Covey's: a group chosen in an override beats what
the recipe says of that group, since overrides come after the recipe. Among the overrides, groups are chosen first and
keys are set afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from covey.config.build import build
from covey.config.flags import Flag
from covey.config.groups import Roots
from covey.config.keys import GROUPS
from covey.config.merging import Merging
from covey.config.overrides import read_overrides
from covey.config.recipe import Choice, Recipe, line_of, read_recipe
from covey.config.schema import Config
from covey.config.spelling import FOREIGN_GROUPS
from covey.config.translate import Said, Translation, translate
from covey.config.values import BadKeyError
from covey.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Composed:
    """A composed config, and what to tell the user about it."""

    config: Config
    notes: tuple[str, ...]
    """What was ignored, left out or worked out: one line each."""
    recipe: Path | None
    """The recipe's file."""
    origins: Mapping[str, str]
    """Where the user set a key: `FILE, line N`, or the words on the command line. Defaults are not in it."""
    choices: tuple[Choice, ...]
    """The group choices that came together, the later one holding where two are of one group."""


def compose(
    overrides: Sequence[str | Flag] = (),
    recipe: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
    *,
    world_size: int | Callable[[Config], int] | None = None,
) -> Composed:
    """Compose and check a config without importing torch, in Covey's spelling or another tool's.

    Args:
        overrides: `group=option`, `key=value`, `+experiment=name`, `~key`, as Hydra spells them, and flags.
        recipe: a YAML file of group choices (`defaults:`) and keys, or a run directory.
        config_dirs: folders with more options for the groups.
        world_size: number of training processes, or what finds it from the config; None takes the WORLD_SIZE of the
            launcher, else 1.

    Raises:
        ConfigError: one paragraph that says what is wrong, where, and what would be right.
    """
    roots = Roots.of(config_dirs)
    choices, said = read_overrides(overrides, roots)
    source = read_recipe(recipe) if recipe is not None else None
    places = _Places(source, said)
    try:
        label = source.path.name if source else ""
        from_recipe, notes = _usable(source.choices if source else (), roots, label)
        first = translate(source.said if source else (), {}, label, strict=True)
        second = translate(said, first.facts, _LINE, strict=False)
        places.translated = (first, second)
        merging = Merging(
            roots,
            source,
            (*from_recipe, *_as_choices(first, label)),
            (*choices, *_as_choices(second, _LINE)),
            first,
            second,
        )
        places.merging = merging
        config = build(merging.values(), world_size)
    except BadKeyError as problem:
        raise ConfigError(f"{problem}{places.sentence(problem.key)}") from None
    said_once = dict.fromkeys((*notes, *first.notes, *second.notes, *merging.notes))
    return Composed(config, tuple(said_once), source.path if source else None, places.origins(), merging.choices)


def load(
    overrides: Sequence[str | Flag] = (),
    recipe: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
    *,
    world_size: int | None = None,
) -> Config:
    """The config that `compose` makes of the same arguments.

    Raises:
        ConfigError: as `compose` does.
    """
    return compose(overrides, recipe, config_dirs, world_size=world_size).config


class _Places:
    """Where the user wrote what."""

    def __init__(self, source: Recipe | None, line: Sequence[Said]) -> None:
        self.source, self.line = source, line
        self.translated: tuple[Translation, Translation] | None = None
        self.merging: Merging | None = None

    def sentence(self, key: str) -> str:
        """Where a key was set, the last place first; nothing when a default is at fault."""
        for item in reversed(self.line):
            if item.spelling == key:
                return f" (Set by {item.text}.)"
        recipe, line = self.translated or (Translation(), Translation())
        for found in reversed(line.settings):
            if found.key == key or (key in GROUPS and found.key.startswith(f"{key}.")):
                return f" (Set by {found.said.text}.)"
        if self.source is None:
            return self._in_groups(key)
        for found in reversed(recipe.settings):
            if found.key == key:
                name = found.said.spelling
                return f" (Set in {self.source.place(name)}{f', as {name}' if name != key else ''}.)"
        written = {item.spelling for item in self.source.said}
        return f" (Set in {self.source.place(key)}.)" if key in written else self._in_groups(key)

    def _in_groups(self, key: str) -> str:
        """Where an option in the user's own folders sets a key; nothing when none does."""
        if self.merging is None:
            return ""
        spellings = [key, *(found.said.spelling for found in self.merging.groups.settings if found.key == key)]
        for choice in reversed(self.merging.choices):
            file = self.merging.roots.file(choice) if choice.option is not None else None
            if file is None or self.merging.roots.is_own(file):
                continue
            for name in (
                part for spelling in spellings for part in (spelling, spelling.removeprefix(f"{choice.group}."))
            ):
                if (line := line_of(file, name)) is not None:
                    return f" (Set in {file}, line {line}.)"
        return ""

    def origins(self) -> Mapping[str, str]:
        """The place of every key that was set."""
        recipe, line = self.translated or (Translation(), Translation())
        found = {}
        if self.source is not None:
            found = {item.key: self.source.place(item.said.spelling) for item in recipe.settings}
        found |= {item.key: item.said.text for item in line.settings}
        return MappingProxyType(found)


def _usable(choices: Sequence[Choice], roots: Roots, label: str) -> tuple[tuple[Choice, ...], list[str]]:
    """A recipe's group choices less those that only another tool has, and the note on these."""
    kept, idle = [], []
    for choice in choices:
        foreign = choice.group in FOREIGN_GROUPS and not roots.is_group(choice.group)
        empty = (
            choice.option == "default" and roots.is_group(choice.group) and "default" not in roots.options(choice.group)
        )
        if foreign or empty:
            idle.append(f"{choice.group}={choice.option}")
        else:
            kept.append(choice)
    return tuple(kept), [f"{label}: without effect here, ignored: the groups {', '.join(idle)}"] if idle else []


def _as_choices(part: Translation, label: str) -> list[Choice]:
    return [Choice(group, option, origin=label) for group, option in part.choices]
