"""Composing a run: Covey's defaults, then the recipe, then the command line from left to right.

Hydra composes the groups and parses the overrides; aliases are resolved before anything is merged. One rule differs
from Hydra's: a group chosen in an override replaces what the recipe sets in that group, since overrides come after the
recipe. Among the overrides, groups are chosen before keys are set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from covey.config.aliases.aliases import FOREIGN_GROUPS
from covey.config.aliases.resolve import resolve_aliases
from covey.config.compose.build import build
from covey.config.compose.derived_values import name_by_folder
from covey.config.compose.flags import Flag
from covey.config.compose.group_files import Roots
from covey.config.compose.overrides import read_overrides
from covey.config.compose.recipe import Recipe, read_recipe
from covey.config.compose.variables import guarded_variables
from covey.config.schema import Config
from covey.config.secrets import redact
from covey.config.settings import Choice, Source
from covey.config.values import BadKeyError
from covey.config.vllm import notes_without_effect, server_where_addressed
from covey.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    place_of: Callable[[str], str] = field(repr=False, compare=False)
    """Gives the sentence on where the user set a key; empty when it has its default."""

    @contextmanager
    def naming_places(self) -> Iterator[None]:
        """Context manager: an error about a key that is found after composing says where the user set it, as one of
        composing does."""
        try:
            yield
        except BadKeyError as problem:
            raise ConfigError(f"{problem}{'' if problem.where else redact(self.place_of(problem.key))}") from None


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
    name: str | Path | None,
    config_dirs: Sequence[str | Path],
    world_size: int | Callable[[Config], int] | None,
) -> Composed:
    from covey.config.compose.merging import Merging  # imports OmegaConf, which is slow

    roots = Roots.of(config_dirs)
    merging: Merging | None = None
    try:
        recipe = read_recipe(name) if name is not None else None
        recipes, line = _read_sources(recipe, overrides, roots)
        settings = [setting for source in (*recipes, line) for setting in source.settings if not setting.implied]
        complete = recipe is not None and recipe.complete
        merging = Merging(roots, recipes, line, complete=complete)
        values = merging.values()
        if not complete:
            foreign = any(source.foreign for source in recipes)
            merging.notes += name_by_folder(values, settings, recipe.path.stem if recipe else "", foreign=foreign)
            merging.notes += server_where_addressed(values)
        config = build(values, world_size)
        _refuse_secret_names(config)
    except BadKeyError as problem:
        place = "" if problem.where or merging is None else merging.place_of(problem.key)
        raise ConfigError(f"{problem}{place}") from None
    read = [note for source in (*recipes, line) for note in source.notes]
    if not complete:
        read += notes_without_effect(config, {setting.key: setting.written.name for setting in settings})
    notes = dict.fromkeys((*_warnings(config), *read, *merging.notes))
    origins = {s.key: redact(s.written.where) if s.written.typed else s.written.place for s in settings}
    path = recipe.path if recipe else None
    origins_of = MappingProxyType(origins)
    return Composed(config, tuple(map(redact, notes)), path, origins_of, merging.choices, merging.place_of)


def _read_sources(recipe: Recipe | None, overrides: Sequence[str | Flag], roots: Roots) -> tuple[list[Source], Source]:
    """Recipes (those that one builds on first) and command line; from here on there are only Covey's own keys."""
    chosen, words = read_overrides(overrides, roots)
    earlier: Mapping[str, Any] = {}
    recipes = []
    for part in recipe.chain if recipe is not None else ():
        label = part.path.name
        choices, notes = _usable(part.choices, roots, label)
        source = resolve_aliases(part.written, earlier, label, strict=True, more_names=roots.nearest_groups)
        source.choices[:0], source.notes[:0] = choices, notes
        earlier = source.canonical_values
        recipes.append(source)
    line = resolve_aliases(words, earlier, "command line", strict=False, more_names=roots.nearest_groups)
    line.choices[:0] = chosen
    return recipes, line


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


def _refuse_secret_names(config: Config) -> None:
    for key in ("run_name", "output_dir"):
        value = getattr(config, key) or ""
        if redact(value) != value:
            raise BadKeyError(key, " holds a secret, which would become a folder's name.")


def _warnings(config: Config) -> list[str]:
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


def _usable(choices: Sequence[Choice], roots: Roots, label: str) -> tuple[list[Choice], list[str]]:
    """A recipe's group choices without those of other tools' groups, and a note on these."""

    def is_ours(choice: Choice) -> bool:
        if not roots.is_group(choice.group):
            return choice.group not in FOREIGN_GROUPS
        return choice.option != "default" or "default" in roots.options(choice.group)

    ignored = ", ".join(f"{choice.group}={choice.option}" for choice in choices if not is_ours(choice))
    notes = [f"{label}: without effect here, ignored: the groups {ignored}"] if ignored else []
    return [choice for choice in choices if is_ours(choice)], notes
