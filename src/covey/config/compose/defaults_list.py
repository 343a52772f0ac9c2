"""Hydra's defaults list of a run: which config files it is made of, in which order, each in its package.

Hydra itself makes the list. It reads the files through `_Repository`, which puts Covey's base before the user's primary
config and recipes after it, and adds the options that a file asks for by another tool's key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra.core.default_element import ConfigDefault, DefaultsTreeNode, GroupDefault, InputDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from covey.config.aliases.aliases import FOREIGN_GROUPS
from covey.config.compose.group_files import CONF, Roots
from covey.config.compose.recipe import Composition, ConfigFile, Part, read_file
from covey.config.keys import Choice
from covey.errors import ConfigError

OTHER_MODEL = "other"
"""The empty model group, for a model named with `model.name`."""
AGENT_MODEL = "starter_agent"
"""The default model of a run with tools."""

_BASE = "Covey's defaults"
"""The config path of Covey's own primary config; no file of the user's has it."""


class Files:
    """The config files that a run may be made of.

    Args:
        primaries: the user's primary config, after the recipes that it builds on.
        recipes: a recipe, after those that it builds on.
    """

    def __init__(self, roots: Roots, primaries: Sequence[ConfigFile] = (), recipes: Sequence[ConfigFile] = ()) -> None:
        self.roots = roots
        self.notes: list[str] = []
        """What is left out of defaults lists."""
        self.asked: Mapping[str, Sequence[Choice]] = {}
        """The options that a file asks for by another tool's key, by config path."""
        files = (*primaries, *recipes)
        self.complete = bool(files) and files[0].complete and not any(file.defaults for file in files[1:])
        """Whether the recipe is a complete config, to which Covey's base is not added."""
        primary = None if self.complete or not primaries else primaries[-1]
        self.root = _BASE if primary is None else _path_of(primary, roots)
        self.recipes = tuple(recipes)
        self.given = {self.root if file is primary else f"recipe {n}/given": file for n, file in enumerate(files)}
        """Recipes and primary config, by config path."""
        self._below = [path for path, file in self.given.items() if file in primaries[:-1]]
        self._files: dict[str, ConfigFile | None] = {}
        self._entries: dict[str, list[InputDefault]] = {}
        self.base_groups = frozenset(str(default.group) for default in _base_groups())
        """The groups of Covey's own base."""
        self._known = set(self.base_groups)
        self._taken: set[str] = set()
        for path in sorted(self.given, key=lambda path: path != self.root):
            entries = self._entries_of(path, self.given[path])
            self._entries[path] = entries if path == self.root else self._as_choices(entries, path)
            lists = [e for e in self._entries[path] if isinstance(e, GroupDefault) and isinstance(e.value, list)]
            groups = {str(entry.group).strip("/") for entry in lists}
            groups |= {"tuning"} if "model" in groups else set()  # it follows the name of one model
            added = groups | set(self._list(path, [], adding=True).overrides.known_choices)
            self._known |= added
            self._taken |= added if path == self.root else set()

    def compose(self, choices: Iterable[Choice]) -> Composition:
        """What the files make with these choices; of two for one group the later one wins. Raises a `ConfigError` for
        an option that does not exist, a file that cannot be read, or what Hydra rejects."""
        last: dict[str, Choice] = {}
        for choice in choices:
            if choice.option is None and choice.group == "model":  # the tuning group follows its name
                choice = replace(choice, option=OTHER_MODEL)
            if choice.option is not None:
                self.roots.check(replace(choice, group=choice.group.partition("@")[0]))
            last.pop(choice.group, None)
            last[choice.group] = choice
        words = [word for c in last.values() if c.group in self._known for word in _as_override(c, known=True)]
        new = [choice for choice in last.values() if choice.group not in self._known]
        adding = {}  # what each adds, which another one may override, wherever it stands
        for choice in new if len(new) > 1 else ():
            added = self._list(self.root, [*words, *_as_override(choice, known=False)]).overrides.known_choices
            adding[choice.group] = {group for group in added if group != choice.group}
        for choice in new:
            words += _as_override(choice, known=choice.group in set().union(*adding.values()))
        return self._composition(self._list(self.root, words), last)

    def read(self, path: str) -> ConfigFile | None:
        """The file of a config path; None without one."""
        if path == _BASE:
            return replace(_base(), content={}) if self.complete else _base()
        if path not in self._files:
            found = [] if path in self.given else self.roots.find(path)
            read = read_own if found and self.roots.is_builtin(found[0]) else read_file
            self._files[path] = self.given.get(path) or (read(found[0]) if found else None)
        return self._files[path]

    def defaults_of(self, path: str, file: ConfigFile) -> list[InputDefault]:
        """The defaults list of a config as Hydra takes it."""
        below = [_given(name) for name in self._below]
        above = [_given(name) for name in self.given if name != self.root and name not in self._below]
        if path == _BASE and self.complete:
            return [*below, *above, *(GroupDefault(group=group.group, value=None) for group in _base_groups())]
        if path == _BASE:
            groups = [group for group in _base_groups() if group.group not in self._taken]
            return [ConfigDefault(path="_self_"), *groups, *(above if self.root == _BASE else [])]
        own = self._with_asked(path, self._entries.get(path) or self._entries_of(path, file))
        return [ConfigDefault(path=f"/{_BASE}", package="_global_"), *below, *own, *above] if path == self.root else own

    def _entries_of(self, path: str, file: ConfigFile) -> list[InputDefault]:
        """What a file's defaults list holds, without Hydra's own settings, nor other tools' groups in a recipe."""
        found = list[InputDefault]()
        for entry in file.defaults or []:
            try:
                found += _parsed(path, [entry])
            except (ValueError, AssertionError):
                raise ConfigError(
                    f"{file.path}: the entry {entry!r} of defaults is not one that Hydra reads: write `- override "
                    "/model: starter` or `- model: starter`."
                ) from None
        kept, ignored = list[InputDefault](), list[str]()
        for entry in found:
            value = entry.value if isinstance(entry, GroupDefault) else None
            name = str(entry.group if isinstance(entry, GroupDefault) else getattr(entry, "path", "")).strip("/")
            theirs = path in self.given and isinstance(entry, GroupDefault) and self._is_foreign(name, value)
            if f"{name}/".startswith("hydra/") or theirs:
                ignored.append(f"{name}={value}" if value else name)
            else:
                kept.append(entry)
            if isinstance(entry, GroupDefault) and name == "model" and value is None:  # `tuning` follows its name
                entry.value = OTHER_MODEL
        if ignored:
            self.notes.append(f"{file.path.name}: without effect here, ignored: the groups {', '.join(ignored)}")
        if any(not entry.is_override() for entry in kept) and not any(entry.is_self() for entry in kept):
            kept.append(ConfigDefault(path="_self_"))  # where Hydra puts it too, with a warning about primary configs
        return kept

    def _is_foreign(self, group: str, option: object) -> bool:
        """Whether a group in a recipe is another tool's, without a file here."""
        if not self.roots.is_group(group):
            return group in FOREIGN_GROUPS
        return option == "default" and not self.roots.find(f"{group}/default")

    def _as_choices(self, entries: list[InputDefault], path: str) -> list[InputDefault]:
        """The entries of a recipe: a group that the run has is overridden, whether the recipe says so or not, and
        another one is added."""
        first, overrides = list[InputDefault](), list[InputDefault]()
        for entry in entries:
            if not isinstance(entry, GroupDefault):
                if isinstance(entry, ConfigDefault) and not entry.is_self():
                    entry.path = f"/{str(entry.path).lstrip('/')}"
                first.append(entry)
                continue
            group = str(entry.group).strip("/")
            entry.group = f"/{group}"
            options = entry.value if isinstance(entry.value, list) else [entry.value]
            named = [option for option in options if option is not None and not re.search(r"\$\{|\?\?\?", option)]
            if entry.optional and not all(self.roots.find(f"{group}/{option}") for option in named):
                continue
            for option in named:
                self.roots.check(Choice(group, option, origin=str(self.given[path].path)))
            entry.override = (group if entry.package is None else f"{group}@{entry.package}") in self._known
            (overrides if entry.override else first).append(entry)
        return [*first, *overrides]

    def _with_asked(self, path: str, entries: list[InputDefault]) -> list[InputDefault]:
        """The entries, and the options that the file asks for by a key of another tool."""
        asked = self.asked.get(path, ())
        if not asked:
            return entries
        found = [e for e in entries if str(getattr(e, "group", "")).strip("/") not in {c.group for c in asked}]
        found += [] if any(entry.is_self() for entry in found) else [ConfigDefault(path="_self_")]
        for choice in asked:
            known, option = choice.group in self._known, f"{choice.group}/{choice.option}"
            self.roots.check(choice)
            file = self.read(option)
            headed = file is not None and file.package is not None and not known
            package = None if headed else f"_global_.{choice.group.replace('/', '.')}"
            if path.rpartition("/")[0] == choice.group:  # the file builds on this option of its own group
                found.insert(0, ConfigDefault(path=f"/{option}", package=package))
            else:
                found.append(
                    GroupDefault(group=f"/{choice.group}", value=choice.option, package=package, override=known)
                )
        return found

    def _list(self, path: str, words: list[str], *, adding: bool = False) -> DefaultsList:
        """Hydra's defaults list of a config.

        Args:
            words: choices as Hydra's overrides.
            adding: only what it adds itself, without what it overrides.
        """
        version.setbase("1.3")
        with self._naming_files():
            parsed = OverridesParser.create().parse_overrides(words)
            return create_defaults_list(_Repository(self, adding=adding), path, parsed, False, adding)

    def _composition(self, found: DefaultsList, last: Mapping[str, Choice]) -> Composition:
        parts: list[Part] = []
        chosen: dict[str, str] = {}

        def visit(tree: DefaultsTreeNode | InputDefault, above: str | None) -> None:
            """Collect parts and choices below a node.

            Args:
                above: the file that has it in its defaults list; None if nothing of the user's does.
            """
            node = tree.node if isinstance(tree, DefaultsTreeNode) else tree
            by, key = above, ""
            if isinstance(node, GroupDefault):
                key = node.get_override_key()
                changed = found.overrides.override_metadata.get(key)
                if key in last:
                    by = None if last[key].implied else ""
                elif changed is not None:
                    by = changed.containing_config_path
                if by is not None:
                    chosen[key] = by
            if node.is_deleted() or node.get_name() is None:
                return
            path = node.get_config_path()
            file = self.read(path)
            if file is None:
                return
            by = None if path == _BASE else by
            builtin = path not in self.given and self.roots.is_builtin(file.path)
            group = "" if path in self.given else key
            part = Part(path, file, node.get_final_package(), group, by is not None, builtin, path in self.given)
            children = tree.children if isinstance(tree, DefaultsTreeNode) else None
            inside = path if part.is_recipe or by is not None else None
            for child in children or [ConfigDefault(path="_self_")]:
                if isinstance(child, InputDefault) and child.is_self():
                    parts.append(part)
                else:
                    visit(child, inside)

        visit(found.defaults_tree, None)
        chosen |= {group: "" for group, choice in last.items() if not choice.implied}
        lines = tuple(self._lines(found.defaults_tree, 0))
        return Composition(tuple(parts), chosen, lines)

    def _lines(self, tree: DefaultsTreeNode | InputDefault, depth: int) -> Iterator[str]:
        node = tree.node if isinstance(tree, DefaultsTreeNode) else tree
        children = (tree.children or []) if isinstance(tree, DefaultsTreeNode) else []
        name = node.get_config_path() if not node.is_self() else "_self_"
        if name in self.given:
            name = str(self.given[name].path)
        elif isinstance(node, GroupDefault):
            name = f"{node.get_override_key()}: {node.get_name() or 'null'}"
        yield f"{'  ' * depth}{name}{':' if children else ''}"
        for child in children:
            yield from self._lines(child, depth + 1)

    @contextmanager
    def _naming_files(self) -> Iterator[None]:
        """Context manager: Hydra's errors are errors about the files."""
        try:
            yield
        except ConfigError:
            raise
        except RecursionError:
            raise ConfigError(
                "The config groups cannot be composed: their defaults lists include each other."
            ) from None
        except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
            text = " ".join(str(error).partition("Config search path:")[0].split())
            for path in re.findall(r"In '([^']*)'", text):
                file = self.read(path)
                text = text.replace(f"'{path}'", str(file.path if file is not None else path))
            group, _, option = str(getattr(error, "missing_cfg_file", None) or "").rpartition("/")
            if isinstance(error, MissingConfigException) and group:
                self.roots.check(Choice(group, option, origin=text.partition(":")[0].removeprefix("In ")))
            raise ConfigError(f"The config groups cannot be composed: {text}") from None


class _Repository(ConfigRepository):
    """Where Hydra reads config files: `Files`."""

    def __init__(self, files: Files, *, adding: bool = False) -> None:
        self.files, self.adding = files, adding
        self.loaded: dict[str, ConfigResult | None] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.loaded:
            file = self.files.read(config_path)
            self.loaded[config_path] = None if file is None else self._result(config_path, file)
        return self.loaded[config_path]

    def _result(self, path: str, file: ConfigFile) -> ConfigResult:
        entries = self.files.defaults_of(path, file)
        if self.adding:
            entries = [entry for entry in entries if _adds(entry)]
        is_recipe = path in self.files.given and path != self.files.root
        header = {"package": "_global_" if is_recipe else file.package}
        return ConfigResult("covey", str(file.path), OmegaConf.create({}), header, entries)

    def group_exists(self, config_path: str) -> bool:
        return self.files.roots.is_group(config_path)

    def config_exists(self, config_path: str) -> bool:
        return self.files.read(config_path) is not None

    def get_group_options(self, group_name: str, results_filter: ObjectType | None = ObjectType.CONFIG) -> list[str]:
        return self.files.roots.options(group_name)

    def get_sources(self) -> list[ConfigSource]:
        return []


@cache
def read_own(path: Path) -> ConfigFile:
    """One of Covey's own files."""
    return read_file(path)


def _base() -> ConfigFile:
    return read_own(CONF / "config.yaml")


def _base_groups() -> list[GroupDefault]:
    """The groups of Covey's base, in its order."""
    return [entry for entry in _parsed(_BASE, _base().defaults or []) if isinstance(entry, GroupDefault)]


def _parsed(path: str, entries: list[Any]) -> list[InputDefault]:
    """The entries of a defaults list as Hydra reads them, where YAML may read an option as a number."""
    texts = [
        {key: str(value) if isinstance(value, int | float) else value for key, value in entry.items()}
        if isinstance(entry, dict)
        else entry
        for entry in entries
    ]
    return ConfigRepository(ConfigSearchPathImpl())._create_defaults_list(path, ListConfig(texts))


def _given(path: str) -> GroupDefault:
    """A recipe in the defaults list of the root, where it is added last."""
    group, _, name = path.partition("/")
    return GroupDefault(group=f"/{group}", value=name, package="_global_", external_append=True)


def _adds(entry: InputDefault) -> bool:
    """Whether an entry of a recipe or primary config adds something by itself."""
    if isinstance(entry, GroupDefault):
        return not (entry.override or entry.external_append or entry.is_interpolation())
    return isinstance(entry, ConfigDefault) and entry.path != f"/{_BASE}" and "${" not in str(entry.path)


def _path_of(primary: ConfigFile, roots: Roots) -> str:
    """The config path of a primary config. Without a package of its own, it lies at the top wherever its file is."""
    inside = [folder for folder in roots.folders if primary.path.absolute().is_relative_to(folder)]
    if primary.package is None or not inside:
        return primary.path.stem
    return primary.path.absolute().relative_to(inside[0]).with_suffix("").as_posix()


def _as_override(choice: Choice, *, known: bool) -> list[str]:
    """The choice as a Hydra override, with the `+` needed for groups outside the defaults list."""
    if choice.option is None:
        return [f"~{choice.group}"] if known else []
    option = choice.option.replace("\\", "\\\\").replace("'", "\\'")
    return [f"{'' if known else '+'}{choice.group}='{option}'"]
