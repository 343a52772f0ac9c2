"""Composing a run: Covey's defaults, then the recipe, then the command line from left to right.

Hydra composes the groups and parses the overrides; aliases are resolved before anything is merged. One rule differs
from Hydra's: a group chosen in an override replaces what the recipe sets in that group, since overrides come after the
recipe. Among the overrides, groups are chosen before keys are set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from covey.config.aliases.aliases import FOREIGN_GROUPS
from covey.config.aliases.resolve import ResolvedSettings, UserSetting, resolve_aliases
from covey.config.compose.build import build
from covey.config.compose.flags import Flag
from covey.config.compose.group_files import Roots
from covey.config.compose.overrides import read_overrides
from covey.config.compose.recipe import Choice, Recipe, line_of, read_recipe
from covey.config.compose.variables import guarded_variables
from covey.config.keys import GROUPS
from covey.config.schema import Config
from covey.config.secrets import redact
from covey.config.values import BadKeyError
from covey.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from covey.config.compose.merging import Merging

_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Composed:
    """A composed config, with notes for the user."""

    config: Config
    notes: tuple[str, ...]
    """What was ignored, dropped or computed: one line each."""
    recipe: Path | None
    """The recipe's file."""
    origins: Mapping[str, str]
    """Where the user set a key: `FILE, line N`, or the words on the command line. Defaults are not in it."""
    choices: tuple[Choice, ...]
    """The group choices in order; the last of each group holds."""


def compose(
    overrides: Sequence[str | Flag] = (),
    recipe: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
    *,
    world_size: int | Callable[[Config], int] | None = None,
) -> Composed:
    """Compose and check a config without importing torch.

    Args:
        overrides: `group=option`, `key=value`, `+experiment=name`, `~key`, as in Hydra, and flags.
        recipe: a YAML file of group choices (`defaults:`) and keys, or a run directory.
        config_dirs: folders with more options for the groups.
        world_size: number of training processes, or a function of the config; None takes the WORLD_SIZE of the
            launcher, else 1.

    Raises:
        ConfigError: one paragraph that says what is wrong, where, and what would be right.
    """
    with guarded_variables(str(word) for word in overrides):
        return _compose(overrides, recipe, config_dirs, world_size)


def _compose(
    overrides: Sequence[str | Flag],
    recipe: str | Path | None,
    config_dirs: Sequence[str | Path],
    world_size: int | Callable[[Config], int] | None,
) -> Composed:
    from covey.config.compose.merging import Merging  # imports OmegaConf, which is slow

    roots = Roots.of(config_dirs)
    choices, settings = read_overrides(overrides, roots)
    source = read_recipe(recipe) if recipe is not None else None
    origins = _Origins(source, settings)
    try:
        label = source.path.name if source else ""
        from_recipe, notes = _usable(source.choices if source else (), roots, label)
        first = resolve_aliases(source.settings if source else (), {}, label, strict=True)
        second = resolve_aliases(settings, first.canonical_values, _LINE, strict=False)
        origins.resolved = (first, second)
        merging = Merging(
            roots,
            source,
            (*from_recipe, *_as_choices(first, label)),
            (*choices, *_as_choices(second, _LINE)),
            first,
            second,
        )
        origins.merging = merging
        config = build(merging.values(), world_size)
        _refuse_secret_names(config)
    except BadKeyError as problem:
        raise ConfigError(f"{problem}{origins.sentence(problem.key)}") from None
    all_notes = dict.fromkeys((*_remote_code_warnings(config), *notes, *first.notes, *second.notes, *merging.notes))
    return Composed(
        config, tuple(map(redact, all_notes)), source.path if source else None, origins.origins(), merging.choices
    )


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


class _Origins:
    """Where the user set which key."""

    def __init__(self, source: Recipe | None, line: Sequence[UserSetting]) -> None:
        self.source, self.line = source, line
        self.resolved: tuple[ResolvedSettings, ResolvedSettings] | None = None
        self.merging: Merging | None = None

    def sentence(self, key: str) -> str:
        """Where a key was last set, for a message; empty when it has its default."""
        for item in reversed(self.line):
            if item.name == key:
                return f" (Set by {item.text}.)"
        recipe, line = self.resolved or (ResolvedSettings(), ResolvedSettings())
        for found in reversed(line.settings):
            if found.key == key or (key in GROUPS and found.key.startswith(f"{key}.")):
                return f" (Set by {found.written.text}.)"
        if self.source is None:
            return self._in_groups(key)
        for found in reversed(recipe.settings):
            if found.key == key:
                name = found.written.name
                return f" (Set in {self.source.place(name)}{f', as {name}' if name != key else ''}.)"
        written = {item.name for item in self.source.settings}
        return f" (Set in {self.source.place(key)}.)" if key in written else self._in_groups(key)

    def _in_groups(self, key: str) -> str:
        """Where an option in the user's own folders sets a key; empty when none does."""
        if self.merging is None:
            return ""
        names = [key, *(found.written.name for found in self.merging.groups.settings if found.key == key)]
        for choice in reversed(self.merging.choices):
            file = self.merging.roots.file(choice) if choice.option is not None else None
            if file is None or self.merging.roots.is_builtin(file):
                continue
            for name in (n for full in names for n in (full, full.removeprefix(f"{choice.group}."))):
                if (line := line_of(file, name)) is not None:
                    return f" (Set in {file}, line {line}.)"
        return ""

    def origins(self) -> Mapping[str, str]:
        """The place of every key that was set."""
        recipe, line = self.resolved or (ResolvedSettings(), ResolvedSettings())
        found = {}
        if self.source is not None:
            found = {item.key: self.source.place(item.written.name) for item in recipe.settings}
        found |= {item.key: redact(item.written.text) for item in line.settings}
        return MappingProxyType(found)


def _refuse_secret_names(config: Config) -> None:
    for key in ("run_name", "output_dir"):
        value = getattr(config, key) or ""
        if redact(value) != value:
            raise BadKeyError(key, " holds a secret, which would become a folder's name.")


def _remote_code_warnings(config: Config) -> list[str]:
    """Warnings about code that comes with a model or a kernel."""
    kwargs = config.training.model_init_kwargs or {}
    attention = str(config.model.attn_implementation or kwargs.get("attn_implementation") or "")
    found = []
    if config.model.trust_remote_code or kwargs.get("trust_remote_code"):
        found.append(f"model.trust_remote_code=true: Python code that comes with {config.model.name}")
    if "/" in attention or kwargs.get("allow_all_kernels"):
        found.append(f"attn_implementation={attention}: compiled code from the hub")
    return [
        f"WARNING: {what} will run on this machine, with all your rights (files, keys, network). Read it first, or "
        "leave the key out."
        for what in found
    ]


def _usable(choices: Sequence[Choice], roots: Roots, label: str) -> tuple[tuple[Choice, ...], list[str]]:
    """A recipe's group choices without those of other tools' groups, and a note on these."""
    kept, ignored = [], []
    for choice in choices:
        foreign = choice.group in FOREIGN_GROUPS and not roots.is_group(choice.group)
        empty = (
            choice.option == "default" and roots.is_group(choice.group) and "default" not in roots.options(choice.group)
        )
        if foreign or empty:
            ignored.append(f"{choice.group}={choice.option}")
        else:
            kept.append(choice)
    return tuple(kept), [f"{label}: without effect here, ignored: the groups {', '.join(ignored)}"] if ignored else []


def _as_choices(resolved: ResolvedSettings, label: str) -> list[Choice]:
    return [Choice(group, option, origin=label) for group, option in resolved.choices]
