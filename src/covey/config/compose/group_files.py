"""The folders of config groups, and composing them with Hydra."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from covey.config.compose.recipe import line_of, parse_defaults, read_yaml
from covey.config.keys import did_you_mean
from covey.config.settings import Choice
from covey.config.values import show
from covey.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF = Path(__file__).parents[1] / "conf"
"""Covey's own groups and the primary config."""

OTHER_MODEL = "other"
"""The empty model group, for a model named with `model.name`."""

_GLOBAL = re.compile(r"^\s*#\s*@package\s+_global_\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Roots:
    """Covey's own folder of groups, followed by the user's."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, config_dirs: Iterable[str | Path]) -> Roots:
        """Covey's folder and these.

        Raises:
            ConfigError: one of them is not a folder.
        """
        folders = [CONF]
        for name in config_dirs:
            folder = Path(os.path.expanduser(name)).absolute()  # noqa: PTH111  raises where there is no such user
            if not os.path.isdir(folder):  # noqa: PTH112  as in `file`
                raise ConfigError(f"The config folder {name} does not exist (looked for {folder}).")
            folders.append(folder)
        return cls(tuple(folders))

    def is_group(self, group: str) -> bool:
        """Whether there is a group of this name."""
        return bool(group) and any(os.path.isdir(folder / group) for folder in self.folders)  # noqa: PTH112  as in `file`

    def is_builtin(self, file: Path) -> bool:
        """Whether an option's file is Covey's own rather than the user's."""
        return file.is_relative_to(self.folders[0])

    def is_users(self, choice: Choice) -> bool:
        """Whether a choice is of an option in the user's own folders."""
        file = self._existing(choice)
        return file is not None and not self.is_builtin(file)

    def options(self, group: str) -> list[str]:
        """The options of a group, sorted."""
        found = {file.stem for folder in self.folders for file in (folder / group).glob("*.yaml")}
        return sorted(found)

    def nearest_groups(self, name: str) -> list[str]:
        """Groups that look like this name."""
        groups = {path.name for folder in self.folders for path in folder.iterdir() if path.is_dir()}
        return difflib.get_close_matches(name, sorted(groups), n=2)

    def file(self, choice: Choice) -> Path | None:
        """The file of an option; None for an optional one that does not exist.

        Raises:
            ConfigError: no such group or option (naming the existing ones), one in two folders, or one outside them.
        """
        where = f" (chosen in {choice.origin})" if choice.origin else ""
        name = PurePath(choice.group, f"{choice.option}.yaml")
        if name.is_absolute() or ".." in name.parts:
            raise ConfigError(
                f"{choice.group}={choice.option}{where} leads out of the folders of config groups: name an option, and "
                "give a folder of your own with --config-dir."
            )
        paths = [folder / name for folder in self.folders]
        found = [path for path in paths if os.path.isfile(path)]  # noqa: PTH113  False for a name too long as well
        if len(found) > 1:
            raise ConfigError(
                f"There are two options {choice.group}={show(choice.option)}{where}: {found[0]} and {found[1]}. "
                "Give yours another name."
            )
        if found or choice.optional:
            return found[0] if found else None
        if not self.is_group(choice.group):
            similar = did_you_mean(self.nearest_groups(choice.group))
            raise ConfigError(f"There is no config group {choice.group}{where}.{similar}")
        near = sorted(self.options(choice.group), key=lambda option: -_likeness(option, str(choice.option)))
        also = {
            "model": f" To train another model, set model.name={show(choice.option)}.",
            "dataset": " To use other data, set dataset.task=null with dataset.path=FILE or dataset.id=NAME.",
        }.get(choice.group, "")
        raise ConfigError(
            f"There is no option {choice.group}={show(choice.option)}{where}. The options of {choice.group} are: "
            f"{', '.join(near)}.{also}"
        )

    def compose(self, choices: Iterable[Choice]) -> DictConfig:
        """Covey's primary config with these choices; of two for one group the later one wins."""
        from hydra import compose, initialize_config_dir
        from hydra.errors import HydraException
        from omegaconf import OmegaConf

        overrides = self.as_overrides(choices)
        try:
            with initialize_config_dir(version_base="1.3", config_dir=str(self.folders[0])):
                composed = compose("config", overrides=overrides)
        except HydraException as error:
            raise ConfigError(f"The config groups cannot be composed: {' '.join(str(error).split())}") from None
        OmegaConf.set_struct(composed, False)
        return composed

    def as_overrides(self, choices: Iterable[Choice]) -> list[str]:
        """These choices and the user's folders as Hydra overrides of Covey's primary config.

        Raises:
            ConfigError: an option that does not exist, or is not valid YAML.
        """
        last: dict[str, Choice] = {}
        for choice in choices:
            file = self._existing(choice)
            if file is not None:
                self._check(choice, file)
            if choice.option is None and choice.group == "model":  # the tuning group follows its name
                choice = Choice("model", OTHER_MODEL)
            if choice.option is None or file is not None:
                last.pop(choice.group, None)
                last[choice.group] = choice
        overrides = [_as_override(choice) for choice in last.values()]
        more = ",".join(f"'file://{folder}'" for folder in self.folders[1:])
        if more:
            overrides.append(f"hydra.searchpath=[{more}]")
        return [text for text in overrides if text]

    def _check(self, choice: Choice, file: Path, above: frozenset[Path] = frozenset()) -> None:
        """Read an option and those of its defaults list: for a message with the line in place of Hydra's traceback, and
        so that Hydra reads no file that is too large or too deep."""
        if self.is_builtin(file) or file in above:
            return
        for inner in _defaults_of(file, choice.group):
            if inner.option is not None and (found := self.file(dataclasses.replace(inner, optional=True))):
                self._check(inner, found, above | {file})

    def replaced_by(self, choices: Sequence[Choice]) -> list[str]:
        """The groups whose whole content these choices replace, those an experiment overrides included.

        An option in the package `_global_` replaces its own group if it sets anything there (`objective=dapo`), else it
        leaves that group as it was (`logging=wandb`, which only sets `training.report_to`).
        """
        found: dict[str, None] = {}
        for choice in choices:
            file = self._existing(choice)
            if file is None or not _is_global(file):
                found[choice.group] = None
            else:
                found |= dict.fromkeys(self.replaced_by(_defaults_of(file, choice.group)))
                found |= {choice.group: None} if choice.group in read_yaml(file) else {}
        return [group for group in found if group not in ("tuning", "experiment")]

    def bodies_of(self, choices: Iterable[Choice]) -> list[DictConfig]:
        """The content of the chosen options in the package `_global_` (experiments, tuning), without their defaults."""
        from omegaconf import OmegaConf

        return [OmegaConf.create(_content(file)) for _, file in self._with_defaults(choices) if _is_global(file)]

    def users_options(self, choices: Iterable[Choice]) -> list[tuple[str, dict[str, Any]]]:
        """Group and content of the chosen options in the user's folders that set only their own group."""
        last = {choice.group: choice for choice in choices}
        files = [(group, self._existing(choice)) for group, choice in last.items()]
        own = [(group, file) for group, file in files if file is not None and not self.is_builtin(file)]
        return [(group, _content(file)) for group, file in own if not _is_global(file)]

    def option_of(self, choices: Sequence[Choice], group: str) -> Path | None:
        """The file of the option of a group that these choices make: Hydra puts those of a defaults list below."""
        below = [file for choice, file in self._with_defaults(choices) if choice.group == group]
        direct = [self._existing(choice) for choice in choices if choice.group == group]
        return (direct or below or [None])[-1]

    def value_in(self, file: Path, group: str, key: str) -> Any:
        """What an option of a group sets a key to; None where it does not."""
        from omegaconf import OmegaConf

        inside = key if _is_global(file) else key.removeprefix(f"{group}.")
        return OmegaConf.select(OmegaConf.create(_content(file)), inside)

    def sets(self, choices: Iterable[Choice], key: str) -> bool:
        """Whether one of these options, or an option of its defaults list, sets a key."""
        return any(
            self.value_in(file, choice.group, key) is not None
            for choice, file in self._with_defaults(choices)
            if _is_global(file) or key.startswith(f"{choice.group}.")
        )

    def place_of(self, choices: Sequence[Choice], names: Iterable[str]) -> str:
        """A sentence on where a chosen option in the user's own folders sets one of these keys; empty if none does."""
        for choice in reversed(choices):
            file = self._existing(choice)
            if file is None or self.is_builtin(file):
                continue
            for name in (n for full in names for n in (full, full.removeprefix(f"{choice.group}."))):
                if (line := line_of(file, name)) is not None:
                    return f" (Set in {file}, line {line}.)"
        return ""

    def _existing(self, choice: Choice) -> Path | None:
        return self.file(choice) if choice.option is not None else None

    def _with_defaults(self, choices: Iterable[Choice]) -> Iterator[tuple[Choice, Path]]:
        """The choices with their files, those of an option's defaults list before it."""
        for choice in choices:
            file = self._existing(choice)
            if file is not None and _is_global(file):
                yield from self._with_defaults(_defaults_of(file, choice.group))
            if file is not None:
                yield choice, file


def default_option(group: str) -> str | None:
    """The option of a group that the primary config chooses."""
    return next((choice.option for choice in _primary_choices() if choice.group == group), None)


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _is_global(file: Path) -> bool:
    return _GLOBAL.search(file.read_text(encoding="utf-8")) is not None


def _content(file: Path) -> dict[str, Any]:
    return {key: value for key, value in read_yaml(file).items() if key != "defaults"}


def _defaults_of(file: Path, group: str) -> list[Choice]:
    """The choices in an option's defaults list; one without a group is another option of the same group."""
    entries = read_yaml(file).get("defaults") or []
    entries = [f"{group}/{e}" if isinstance(e, str) and e != "_self_" and "/" not in e else e for e in entries]
    return parse_defaults(entries, str(file))


def _as_override(choice: Choice) -> str:
    """The choice as a Hydra override, with the `+` needed for groups outside the primary defaults list."""
    known = any(choice.group == primary.group for primary in _primary_choices())
    if choice.option is None:
        return f"~{choice.group}" if known else ""
    return f"{'' if known else '+'}{choice.group}='{choice.option}'"


@cache
def _primary_choices() -> tuple[Choice, ...]:
    return tuple(_defaults_of(CONF / "config.yaml", ""))
