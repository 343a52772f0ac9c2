"""The folders of config groups, and what Hydra composes out of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config.keys import did_you_mean
from covey.config.recipe import Choice, parse_defaults, read_yaml
from covey.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF = Path(__file__).with_name("conf")
"""Covey's own groups and the primary config."""

OTHER_MODEL = "other"
"""The model group that says nothing, for a model that is named with `model.name`."""

_GLOBAL = re.compile(r"^\s*#\s*@package\s+_global_\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Roots:
    """Covey's own folder of groups, and the user's behind it."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, config_dirs: Iterable[str | Path]) -> Roots:
        """Covey's folder and these.

        Raises:
            ConfigError: one of them is no folder.
        """
        folders = [CONF]
        for name in config_dirs:
            folder = Path(name).expanduser().absolute()
            if not folder.is_dir():
                raise ConfigError(f"The config folder {name} does not exist (looked for {folder}).")
            folders.append(folder)
        return cls(tuple(folders))

    def is_group(self, group: str) -> bool:
        """Whether there is a group of this name."""
        return bool(group) and any((folder / group).is_dir() for folder in self.folders)

    def is_own(self, file: Path) -> bool:
        """Whether a file of an option is Covey's own rather than the user's."""
        return file.is_relative_to(self.folders[0])

    def options(self, group: str) -> list[str]:
        """The options of a group, sorted."""
        found = {file.stem for folder in self.folders for file in (folder / group).glob("*.yaml")}
        return sorted(found)

    def nearest_groups(self, name: str) -> list[str]:
        """Groups that look like this name."""
        groups = {path.name for folder in self.folders for path in folder.iterdir() if path.is_dir()}
        return difflib.get_close_matches(name, sorted(groups), n=2)

    def file(self, choice: Choice) -> Path | None:
        """The file of an option; None for an optional one that is not there.

        Raises:
            ConfigError: no such group or option, naming those there are, or one option in two folders.
        """
        found = [path for folder in self.folders if (path := folder / choice.group / f"{choice.option}.yaml").is_file()]
        where = f" (chosen in {choice.origin})" if choice.origin else ""
        if len(found) > 1:
            raise ConfigError(
                f"There are two options {choice.group}={choice.option}{where}: {found[0]} and {found[1]}. Give yours "
                "another name."
            )
        if found or choice.optional:
            return found[0] if found else None
        if not self.is_group(choice.group):
            similar = did_you_mean(self.nearest_groups(choice.group))
            raise ConfigError(f"There is no config group {choice.group}{where}.{similar}")
        near = sorted(self.options(choice.group), key=lambda option: -_likeness(option, str(choice.option)))
        also = {
            "model": f" To train another model, set model.name={choice.option}.",
            "dataset": " To use other data, set dataset.task=null with dataset.path=FILE or dataset.id=NAME.",
        }.get(choice.group, "")
        raise ConfigError(
            f"There is no option {choice.group}={choice.option}{where}. The options of {choice.group} are: "
            f"{', '.join(near)}.{also}"
        )

    def compose(self, choices: Iterable[Choice]) -> DictConfig:
        """Covey's primary config with these choices; of two for one group the later one holds."""
        from hydra import compose, initialize_config_dir
        from hydra.errors import HydraException
        from omegaconf import OmegaConf

        overrides = self.spell(choices)
        try:
            with initialize_config_dir(version_base="1.3", config_dir=str(self.folders[0])):
                composed = compose("config", overrides=overrides)
        except HydraException as error:
            raise ConfigError(f"The config groups cannot be composed: {' '.join(str(error).split())}") from None
        OmegaConf.set_struct(composed, False)
        return composed

    def spell(self, choices: Iterable[Choice]) -> list[str]:
        """These choices, and the user's folders, as overrides for Hydra on Covey's primary config.

        Raises:
            ConfigError: an option that is not there, or that is no valid YAML.
        """
        last: dict[str, Choice] = {}
        for choice in choices:
            file = self.file(choice) if choice.option is not None else None
            if file is not None:
                read_yaml(file)  # for a message with the line, where Hydra would give a traceback
            if choice.option is None and choice.group == "model":  # the tuning group goes by its name
                choice = Choice("model", OTHER_MODEL)
            if choice.option is None or file is not None:
                last.pop(choice.group, None)
                last[choice.group] = choice
        overrides = [_spell(choice) for choice in last.values()]
        more = ",".join(f"'file://{folder}'" for folder in self.folders[1:])
        if more:
            overrides.append(f"hydra.searchpath=[{more}]")
        return [text for text in overrides if text]

    def replaced_by(self, choices: Sequence[Choice]) -> list[str]:
        """The groups whose whole content these choices decide, those an experiment overrides among them.

        An option that reaches over several groups decides its own group if it says anything of it (`objective=dapo`),
        and else leaves that group as it was (`logging=wandb`, which only sets `training.report_to`).
        """
        found: dict[str, None] = {}
        for choice in choices:
            file = self.file(choice) if choice.option is not None else None
            if file is None or not _is_global(file):
                found[choice.group] = None
            else:
                found |= dict.fromkeys(self.replaced_by(_defaults_of(file, choice.group)))
                found |= {choice.group: None} if choice.group in read_yaml(file) else {}
        return [group for group in found if group not in ("tuning", "experiment")]

    def bodies_of(self, choices: Sequence[Choice]) -> list[DictConfig]:
        """What the chosen options that reach over several groups (experiments, tuning) say themselves."""
        from omegaconf import OmegaConf

        found = []
        for choice in choices:
            file = self.file(choice) if choice.option is not None else None
            if file is not None and _is_global(file):
                found += self.bodies_of(_defaults_of(file, choice.group))
                found.append(OmegaConf.create({k: v for k, v in read_yaml(file).items() if k != "defaults"}))
        return found

    def users_options(self, choices: Sequence[Choice]) -> list[tuple[str, dict[str, Any]]]:
        """Group and content of the chosen options that lie in the user's folders and fill only their own group."""
        found = []
        for choice in choices:
            file = self.file(choice) if choice.option is not None else None
            if file is not None and not self.is_own(file) and not _is_global(file):
                found.append((choice.group, {k: v for k, v in read_yaml(file).items() if k != "defaults"}))
        return found

    def says(self, choices: Sequence[Choice], key: str) -> bool:
        """Whether one of the chosen options that reach over several groups sets this key itself."""
        from omegaconf import OmegaConf

        return any(OmegaConf.select(body, key) is not None for body in self.bodies_of(choices))


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _is_global(file: Path) -> bool:
    return _GLOBAL.search(file.read_text(encoding="utf-8")) is not None


def _defaults_of(file: Path, group: str) -> list[Choice]:
    """The choices in an option's own defaults list; one without a group is another option of the same group."""
    entries = read_yaml(file).get("defaults") or []
    entries = [f"{group}/{e}" if isinstance(e, str) and e != "_self_" and "/" not in e else e for e in entries]
    return parse_defaults(entries, str(file))


def _spell(choice: Choice) -> str:
    """The choice as an override for Hydra, which wants `+` before groups that its defaults list does not hold."""
    known = choice.group in _primary_groups()
    if choice.option is None:
        return f"~{choice.group}" if known else ""
    return f"{'' if known else '+'}{choice.group}='{choice.option}'"


@cache
def _primary_groups() -> frozenset[str]:
    entries = read_yaml(CONF / "config.yaml")["defaults"]
    return frozenset(choice.group for choice in parse_defaults(entries, str(CONF / "config.yaml")))
