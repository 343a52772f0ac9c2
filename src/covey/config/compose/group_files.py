"""The folders of config groups: the user's, and Covey's own."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from covey.config.keys import Choice, did_you_mean
from covey.config.values import show
from covey.errors import ConfigError

CONF = Path(__file__).parents[1] / "conf"
"""Covey's own groups and the primary config."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The user's folders of groups, followed by Covey's own; of two options of one name the first counts."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, config_dirs: Iterable[str | Path]) -> Roots:
        """These and Covey's folder. Raises a `ConfigError` if one of them is not a folder."""
        folders = []
        for name in config_dirs:
            folder = Path(os.path.expanduser(name)).absolute()  # noqa: PTH111  raises where there is no such user
            if not os.path.isdir(folder):  # noqa: PTH112  as in `file`
                raise ConfigError(f"The config folder {name} does not exist (looked for {folder}).")
            folders.append(folder)
        return cls((*folders, CONF))

    def is_group(self, group: str) -> bool:
        """Whether there is a group of this name."""
        return bool(group) and any(os.path.isdir(folder / group) for folder in self.folders)  # noqa: PTH112  as in `file`

    def is_builtin(self, file: Path) -> bool:
        """Whether a file is Covey's own rather than the user's."""
        return file.is_relative_to(CONF)

    def options(self, group: str) -> list[str]:
        """The options of a group, sorted."""
        found = {file.stem for folder in self.folders for file in (folder / group).glob("*.yaml")}
        return sorted(found)

    def nearest_groups(self, name: str) -> list[str]:
        """Groups that look like this name."""
        groups = {path.name for folder in self.folders for path in folder.iterdir() if path.is_dir()}
        return difflib.get_close_matches(name, sorted(groups), n=2)

    def find(self, path: str) -> list[Path]:
        """The files of a config path (`model/starter`), the one that counts first. Raises a `ConfigError` if it leads
        out of the folders."""
        name = PurePath(path if path.endswith(".yaml") else f"{path}.yaml")
        if name.is_absolute() or ".." in name.parts or "//" in path:
            raise ConfigError(
                f"{path} leads out of the folders of config groups: name an option, and give a folder of your own with "
                "--config-dir."
            )
        paths = [folder / name for folder in self.folders]
        return [path for path in paths if os.path.isfile(path)]  # noqa: PTH113  False for a name too long as well

    def primary(self, name: str) -> Path:
        """The file of a primary config, named as for Hydra, or with its ending. Raises a `ConfigError` if there is
        none; the message lists the candidates."""
        if len(self.folders) == 1:
            raise ConfigError(
                f"--config-name {name} is searched for in the folders of --config-dir, and none was given."
            )
        candidates = [folder / file for folder in self.folders[:-1] for file in (name, f"{name}.yaml")]
        for path in candidates:
            if os.path.isfile(path):  # noqa: PTH113  False for a name too long as well
                return path
        raise ConfigError(f"There is no recipe {name}. Looked for: {', '.join(map(str, candidates))}.")

    def check(self, choice: Choice) -> None:
        """Raise a `ConfigError`, naming the existing ones, unless this group and this option of it exist."""
        where = f" (chosen in {choice.origin})" if choice.origin else ""
        if self.find(f"{choice.group}/{choice.option}"):
            return
        if not self.is_group(choice.group):
            similar = did_you_mean(self.nearest_groups(choice.group))
            raise ConfigError(f"There is no config group {choice.group}{where}.{similar}")
        also = {
            "model": f" To train another model, set model.name={show(choice.option)}.",
            "dataset": " To use other data, set dataset.task=null with dataset.path=FILE or dataset.id=NAME.",
        }.get(choice.group, "")
        raise ConfigError(
            f"There is no option {choice.group}={show(choice.option)}{where}. The options of {choice.group} are: "
            f"{', '.join(self.options(choice.group))}.{also}"
        )
