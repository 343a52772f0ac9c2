"""Merging defaults, recipe and command line into one tree, and computing the values that depend on it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, GrammarParseError, OmegaConfBaseException

from covey.config.aliases.alias_result import AliasValueError, DeferredValue
from covey.config.aliases.presets import GIVES_WAY
from covey.config.aliases.resolve import is_canonical, leaves, resolve_aliases
from covey.config.compose.build import check_keys, walk
from covey.config.compose.derived_values import drop_stale_weights, leave_out_other_objectives
from covey.config.compose.group_files import OTHER_MODEL, Roots, default_option
from covey.config.compose.recipe import unreadable_reference
from covey.config.groups import snapshot
from covey.config.groups.model import ModelConfig
from covey.config.keys import GROUPS, kinds
from covey.config.settings import Choice, Setting, Source
from covey.config.values import BadKeyError, coerce, show
from covey.errors import ConfigError

_SOURCES = {
    "dataset": frozenset({"dataset.task", "dataset.id", "dataset.path", "dataset.mixture.datasets"}),
    "model": frozenset({"model.name"}),
}
"""Keys that do what choosing an option of the group does, so that no other key implies an option."""
_OPTION_KEYS = {"objective.name": "objective"}
"""Keys whose value, where it is an option of the group, chooses it below the user's keys: with all that it sets."""
_GROUP_OF = {**_OPTION_KEYS, "training.report_to": "logging"}
"""Keys that a group's options set, so that an option that the user chooses overrides a value that a key implies."""


class Merging:
    """What a run's config is made of, in Covey's own keys, and how it is merged.

    Args:
        roots: the folders of config groups.
        recipes: the recipe, after those that it builds on.
        line: the command line.
        complete: whether the recipe is a complete config.
        preset: what a preset implies, below all that the user sets.
    """

    def __init__(
        self, roots: Roots, recipes: Sequence[Source], line: Source, *, complete: bool, preset: Source | None = None
    ) -> None:
        self.roots, self.recipes, self.line, self.complete = roots, recipes, line, complete
        self.preset = preset or Source()
        self.notes = leave_out_other_objectives((*recipes, line))
        """What was computed or dropped while merging."""
        self.groups = Source()
        """What the options in the user's own folders set by aliases."""
        self.choices: tuple[Choice, ...] = ()
        """The composed group choices in order, those implied by keys included."""
        self._settings = [setting for source in (*recipes, line) for setting in source.settings]
        self._named = {setting.key for setting in self._settings if not setting.implied}
        self._chosen = [choice for choice in line.choices if not choice.implied]
        self._explicit = [choice for source in recipes for choice in source.choices if not choice.implied]
        self._explicit += self._chosen
        self._replaced = roots.replaced_by(self._chosen)
        self._groups = {choice.group for choice in self._explicit} | set(roots.replaced_by(self._explicit))
        """The groups that the user chooses, those of a chosen experiment included."""

    def values(self) -> dict[str, Any]:
        """Everything merged and resolved, as nested plain values."""
        left_out = self.notes
        first = self._implied_choices()
        found = self._merged(first)
        check_keys(found)
        again = (*self._left_defaults(found), *self._implied_choices())
        if again != first:
            found = self._merged(again)
        for choice in self._implied_choices():
            what = f"{choice.group}={choice.option}"
            if choice not in self.preset.choices:  # which has a note of its own
                self.notes.append(f"{choice.origin}: {what} is used, as nothing else of {choice.group} is chosen")
        self.notes += left_out
        if not self.complete:
            drop_stale_weights(found, self._named, self.roots.bodies_of(self._explicit))
        return found

    def place_of(self, key: str) -> str:
        """A sentence on where the user set a key; empty when it has its default."""
        about = [found for found in reversed(self._settings) if not found.implied and _concerns(found, key)]
        about.sort(key=lambda found: found.value == {})  # mappings are merged, so an empty one sets nothing
        if about:
            return about[0].written.sentence(key)
        names = [key, *(found.written.name for found in self.groups.settings if found.key == key)]
        return self.roots.place_of(self.choices, names)

    def _implied_choices(self) -> tuple[Choice, ...]:
        sources = (self.preset, self.groups, *self.recipes, self.line)
        asked = {c.group: c for source in sources for c in source.choices if c.implied}
        taken = self._groups | {group for group, keys in _SOURCES.items() if keys & self._named}
        return tuple(choice for group, choice in asked.items() if group not in taken)

    def _merged(self, first: Sequence[Choice]) -> dict[str, Any]:
        self.notes = []
        with _resolving():
            tree = self._tree(first)
            for setting in self.line.settings:
                self._apply(tree, setting)
            for implied in self._applying():
                self._apply(tree, replace(implied, implied=False))
                self.notes += [implied.note] if implied.note else []
            self._compute_deferred(tree)
            values = OmegaConf.to_container(tree, resolve=True)
        assert isinstance(values, dict)
        return {str(key): value for key, value in values.items()}

    def _tree(self, first: Sequence[Choice]) -> DictConfig:
        """Defaults (except dropped ones), recipe and group choices, merged; interpolations not yet resolved."""
        composed = self._composed((*first, *self._explicit))
        if named := self._options_named(composed):
            before, replaced = composed, [(choice, self._option_file(choice.group)) for choice in named]
            composed = self._composed((*self.choices, *named))
            for choice, file in replaced:
                self._note_what_goes(choice, file, before, composed)
        for choice in named:
            for key, value in (pair for body in self.roots.bodies_of([choice]) for pair in walk(body)):
                ours = key not in GROUPS and not key.startswith(f"{choice.group}.") and key not in self._named
                if ours and OmegaConf.select(composed, key) == value:
                    self.notes.append(f"{key}={value}, as the group {choice.group}={choice.option} has it")
        if not self.recipes:
            return composed
        tree = OmegaConf.create({}) if self.complete else OmegaConf.create(composed)
        for source in self.recipes:
            for setting in source.settings:
                self._apply(tree, setting)
        for group in self._replaced:
            path = group.replace("/", ".")
            part = OmegaConf.select(composed, path)
            OmegaConf.update(tree, path, {} if part is None else part, merge=False, force_add=True)
        for body in self.roots.bodies_of(self._chosen):
            merged = OmegaConf.merge(tree, self._without_aliases(body))
            assert isinstance(merged, DictConfig)
            tree = merged
        return tree

    def _composed(self, choices: tuple[Choice, ...]) -> DictConfig:
        """The groups composed, aliases in the user's own resolved."""
        self.choices, self.groups = choices, Source()
        if len(self.roots.folders) == 1:
            return copy.deepcopy(_of_own_folder(self.roots, choices))
        return self._without_aliases(self._over_tuning(self.roots.compose(choices)))

    def _note_what_goes(self, choice: Choice, replaced: Path | None, before: DictConfig, after: DictConfig) -> None:
        """A note on what the option that a key replaces set, and neither the user nor the new option does."""
        assert replaced is not None
        old = self.roots.bodies_of([Choice(choice.group, replaced.stem)])
        kept = self._named | {key for body in self.roots.bodies_of([choice]) for key, _ in walk(body)}
        gone = [
            f"{key}={show(value)}"
            for key, value in (pair for body in old for pair in walk(body))
            if key not in GROUPS and key not in kept and OmegaConf.select(before, key) == value
            if OmegaConf.select(after, key) != value
        ]
        if gone:
            self.notes.append(
                f"{choice.group}={replaced.stem} is replaced, so these of its settings go: {', '.join(gone)}"
            )

    def _option_file(self, group: str) -> Path | None:
        """The file of the option that the composed config has of a group."""
        return self.roots.option_of(self.choices, group) or self.roots.file(Choice(group, default_option(group)))

    def _options_named(self, composed: DictConfig) -> list[Choice]:
        """The options that keys choose by their name, where these groups have another one of Covey's."""
        found = []
        for key, group in _OPTION_KEYS.items() if not self.complete else ():
            settings = self.line.settings if group in self._replaced else self._settings
            setting = next((s for s in reversed(settings) if s.key == key and not s.implied), None)
            setting = setting or next((implied for implied in self._applying() if implied.key == key), None)
            name = OmegaConf.select(composed, key) if setting is None else setting.value
            now = self._option_file(group)
            if not isinstance(name, str) or name not in self.roots.options(group) or now is None:
                continue
            if self.roots.is_builtin(now) and self.roots.value_in(now, group, key) != name:
                found.append(Choice(group, name, origin=setting.written.where if setting else "", implied=True))
        return found

    def _over_tuning(self, tree: DictConfig) -> DictConfig:
        """Let the user's options override the tuning of a default model, which Hydra merges after them."""
        later = self.roots.bodies_of(self.choices)
        for group, values in self.roots.users_options(self.choices):
            for name, value in values.items():
                key = f"{group.replace('/', '.')}.{name}"
                if all(OmegaConf.select(body, key) is None for body in later):
                    OmegaConf.update(tree, key, value, merge=True, force_add=True)
        return tree

    def _without_aliases(self, tree: DictConfig) -> DictConfig:
        """The groups with their aliases resolved; only the user's own folders can hold any."""
        if len(self.roots.folders) == 1:
            return tree
        values = OmegaConf.to_container(tree, resolve=False)
        assert isinstance(values, dict)
        found = {str(name): inner for name, inner in values.items()}
        foreign = [item for item in leaves(found, by="group") if not is_canonical(item.name)]
        if not foreign:
            return tree
        part = resolve_aliases(foreign, {}, "config groups", strict=False)
        for choice in part.choices:
            if not choice.implied:
                raise ConfigError(
                    f"A config group of yours asks for {choice.group}={choice.option} by a key. Choose it in the "
                    f"group's `defaults:`, as `- override /{choice.group}: {choice.option}`, or on the command line."
                )
        kept = OmegaConf.create(_without(found, {item.name for item in foreign}))
        assert isinstance(kept, DictConfig)
        for setting in part.settings:
            self._apply(kept, setting)
        self.groups.settings += part.settings
        self.groups.choices += part.choices
        self.groups.foreign_names += part.foreign_names
        self.notes += part.notes
        return kept

    def _apply(self, tree: DictConfig, setting: Setting) -> None:
        """Set or remove one key; implied values come last."""
        if setting.implied:
            return
        if setting.written.delete:
            _remove(tree, setting)
            return
        value = _placeholder(setting) if isinstance(setting.value, DeferredValue) else setting.value
        try:
            OmegaConf.update(tree, setting.key, value, merge=True, force_add=True)
        except ConfigTypeError:  # a mapping in place of a list or the reverse, rejected by the check of the values
            OmegaConf.update(tree, setting.key, value, merge=False, force_add=True)
        except GrammarParseError as error:
            raise BadKeyError(setting.key, unreadable_reference(error)) from None

    def _applying(self) -> Iterable[Setting]:
        """The implied values that hold: nobody sets their keys, nor chooses an option that does."""
        named = self._named | self.groups.keys
        replaced = [(recipe, self._replaced) for recipe in self.recipes]
        applying = {setting.key: setting for setting in self.of_preset()}
        for source, gone in ((self.groups, []), *replaced, (self.line, [])):
            for setting in source.settings:
                free = setting.key not in named and setting.key.partition(".")[0] not in gone
                if setting.implied and free and not self._is_chosen(setting.key):
                    applying[setting.key] = setting
        return applying.values()

    def preset_choices(self) -> list[Choice]:
        """The options that the preset chooses, where the user does not."""
        return [choice for choice in self._implied_choices() if choice in self.preset.choices]

    def of_preset(self) -> list[Setting]:
        """The values of the preset that hold: nothing that the user sets or chooses sets them or excludes them."""
        named = self._named | self.groups.keys
        excluded = named.union(*(GIVES_WAY[key] for key in named & GIVES_WAY.keys()))
        standard = Choice("training", default_option("training"))  # Covey's default, chosen once more
        chosen = [choice for choice in self._explicit if replace(choice, origin="") != standard]
        for setting in (*self.groups.settings, *self._settings):
            if setting.key in _OPTION_KEYS and setting.value in self.roots.options(_OPTION_KEYS[setting.key]):
                chosen.append(Choice(_OPTION_KEYS[setting.key], setting.value))
        return [s for s in self.preset.settings if s.key not in excluded and not self.roots.sets(chosen, s.key)]

    def _is_chosen(self, key: str) -> bool:
        """Whether an option that the user chooses sets a key."""
        group = _GROUP_OF.get(key, "")
        file = self.roots.option_of(self._explicit, group)
        if file is not None and self.roots.value_in(file, group, key) is not None:
            return True
        own = [choice for choice in self._explicit if self.roots.is_users(choice)]
        return self.roots.sets(own, key)

    def _compute_deferred(self, tree: DictConfig) -> None:
        """Replace the placeholders by the values computed from other keys."""
        waiting = {
            (found.key, _placeholder(found)): found
            for found in (*self.preset.settings, *self.groups.settings, *self._settings)
            if isinstance(found.value, DeferredValue)
        }

        def get(key: str) -> Any:
            value = OmegaConf.select(tree, key)
            if isinstance(value, str) and (key, value) in waiting:
                return settle(waiting[key, value])
            return _default(key) if value is None else coerce(key, value, kinds()[key])

        def settle(found: Setting) -> Any:
            assert isinstance(found.value, DeferredValue)
            try:
                value, words = found.value.compute(get)
            except AliasValueError as problem:
                raise BadKeyError(
                    found.written.name, f"={show(found.written.value)} {problem}", found.written.sentence()
                ) from None
            OmegaConf.update(tree, found.key, value)
            if found not in self.preset.settings:
                self.notes.append(f"{found.key}={value}, from {found.written.name}: {words}")
            return value

        for (key, placeholder), found in waiting.items():
            if OmegaConf.select(tree, key) == placeholder:
                settle(found)

    def _left_defaults(self, values: dict[str, Any]) -> list[Choice]:
        """The default groups that do not fit what the user asked for.

        `model.name=X` alone means another model than the default group's, so that group and its tuning are dropped;
        `dataset.path=FILE` alone drops the default task.
        """
        if self.complete:
            return []
        groups = self._groups
        left = []
        model = values.get("model") or {}
        if "model" not in groups and model.get("name") not in (None, ModelConfig().name):
            left.append(Choice("model", OTHER_MODEL))  # the tuning group follows the model group's name
        data = values.get("dataset") or {}
        other = data.get("path") or data.get("id") or (data.get("mixture") or {}).get("datasets")
        if "dataset" not in groups and data.get("task") and other and "dataset.task" not in self._named:
            left.append(Choice("dataset", None))
        return left


@lru_cache(maxsize=64)
def _of_own_folder(roots: Roots, choices: tuple[Choice, ...]) -> DictConfig:
    return roots.compose(choices)


def _concerns(setting: Setting, key: str) -> bool:
    """Whether a setting sets a key, or something of the group or mapping that the key is."""
    if key in (setting.key, setting.written.name):
        return True
    if setting.key.startswith(f"{key}."):
        return setting.written.typed or key not in GROUPS
    entry = key.removeprefix(f"{setting.key}.").partition(".")[0]
    return key.startswith(f"{setting.key}.") and isinstance(setting.value, Mapping) and entry in setting.value


def _placeholder(setting: Setting) -> str:
    """What the tree holds for a value that is not computed yet."""
    return f"<{setting.written.name}={setting.written.value}>"


def _default(key: str) -> Any:
    group, _, name = key.partition(".")
    return snapshot.fields()[name].default if group == "training" else 1.0


def _without(values: dict[str, Any], names: set[str], prefix: str = "") -> dict[str, Any]:
    """The nested values without the keys of these dotted names, and without groups left empty."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        inside = _without(value, names, f"{key}.") if isinstance(value, dict) else value
        if key not in names and (inside or not value):
            found[name] = inside
    return found


def _remove(tree: DictConfig, setting: Setting) -> None:
    parent, _, name = setting.key.rpartition(".")
    node = OmegaConf.select(tree, parent) if parent else tree
    word = f"{setting.written.where[0].upper()}{setting.written.where[1:]}"
    if not OmegaConf.is_dict(node) or name not in node:
        raise ConfigError(f"{word} removes {setting.key}, which is not set.")
    if setting.value is not None and node[name] != setting.value:
        raise ConfigError(
            f"{word} removes {setting.key} only if it is {show(setting.value)}, but it is {show(node[name])}."
        )
    del node[name]


@contextmanager
def _resolving() -> Iterator[None]:
    """Context manager: an unresolvable reference, or a mapping merged with a plain value, is an error about its key."""
    try:
        yield
    except OmegaConfBaseException as error:
        key, reason = str(error.full_key or "A value"), str(error).splitlines()[0]
        if isinstance(error, ConfigTypeError):
            raise BadKeyError(key, f" is given as a mapping and as something else: {reason}.") from None
        raise BadKeyError(
            key,
            f" holds ${{...}}, which stands for another key, and cannot be resolved: {reason}. Write \\${{ for the "
            "characters themselves.",
        ) from None
