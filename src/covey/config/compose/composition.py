"""What a run is made of: its config files in the order in which they are merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from covey.config.compose.recipe import ConfigFile


@dataclass(frozen=True, slots=True)
class Part:
    """One config file of a run."""

    path: str
    """Hydra's config path: `model/starter`."""
    file: ConfigFile
    package: str
    """Where its keys lie: `training`; empty at the top."""
    group: str
    """The group whose option it is; empty for none."""
    chosen: bool
    """Whether the user chose it."""
    builtin: bool
    """Whether it is Covey's own."""
    is_recipe: bool
    """Whether it is a recipe or the user's primary config."""


@dataclass(frozen=True, slots=True)
class Composition:
    """What a run is made of."""

    parts: tuple[Part, ...]
    """In the order in which they are merged."""
    chosen: Mapping[str, str]
    """The groups that the user chooses, with the config path of the file that does; empty for the command line."""
    lines: tuple[str, ...]
    """The tree of defaults lists, as Hydra's `--info defaults-tree` shows it."""

    def option(self, group: str) -> Part | None:
        """The option of a group."""
        return next((part for part in reversed(self.parts) if part.group == group), None)

    def place(self, path: str) -> int:
        """The position of a file; that after all for the command line."""
        return next((number for number, part in enumerate(self.parts) if part.path == path), len(self.parts))
