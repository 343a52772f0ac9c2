"""Merging the config files of a run and its command line into one tree, and computing what depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from covey.config.aliases.alias_result import AliasValueError, DeferredValue
from covey.config.aliases.presets import GIVES_WAY, GROUP
from covey.config.aliases.resolve import resolve_aliases
from covey.config.compose.build import check_keys, walk
from covey.config.compose.defaults_list import AGENT_MODEL, OTHER_MODEL, Files, read_own
from covey.config.compose.derived_values import drop_stale_weights, fit_to_model, leave_out_other_objectives
from covey.config.compose.group_files import CONF
from covey.config.compose.recipe import Composition, Part
from covey.config.compose.values_tree import apply_setting, placeholder, resolve, resolving, set_defaults, value_of
from covey.config.groups.model import ModelConfig, is_starter
from covey.config.groups.training import training_fields
from covey.config.keys import GROUPS, Choice, Setting, Source, Written, kinds
from covey.config.values import BadKeyError, coerce, show

_SOURCES = {
    "dataset": frozenset({"dataset.task", "dataset.id", "dataset.path", "dataset.mixture.datasets"}),
    "model": frozenset({"model.name"}),
    "rewards": frozenset({"rewards.funcs"}),
}
"""Keys that do what choosing an option of the group does, so that no other key implies an option."""
_OPTION_KEYS = {"objective.name": "objective"}
"""Keys whose value, where it is an option of the group, chooses it below the user's keys: with all that it sets."""

_KEPT = {"model": (), "dataset": ("seed", "max_prompt_length", "overlong_prompts")}
"""Groups all of whose keys describe what an option names, but for these: over a complete config they go with it."""

_WITH_TOOLS = ("factory", "tools")
"""Keys of the group `environment` with which the model has tools to call."""


class Merging:
    """What a run's config is made of, in Covey's own keys, and how it is merged.

    Args:
        words: the keys on the command line.
        choices: the options chosen there.
        preset: what a preset implies, below all that the user sets.
    """

    def __init__(
        self, files: Files, words: Sequence[Written], choices: Sequence[Choice], preset: Source | None = None
    ) -> None:
        self.files, self._words, self._choices, self._preset = files, words, choices, preset or Source()
        self.notes: list[str] = []
        """What was computed or dropped while merging."""
        self._computed: list[str] = []
        self.sources: list[Source] = []
        """What each part sets, Covey's own included, and at last the command line."""
        self.composition: Composition
        self._compose(())

    @property
    def users(self) -> list[Source]:
        """What the user sets: in recipes, groups, and on the command line."""
        own = [source for part, source in self._pairs() if not part.builtin]
        return [*own, self.sources[-1]]

    @property
    def settings(self) -> list[Setting]:
        """The keys that the user sets, implied ones included, the one that holds last."""
        return [setting for source in self.users for setting in source.settings]

    def values(self) -> dict[str, Any]:
        """Everything merged and resolved, as nested plain values."""
        implied = self._implied_choices()
        if implied:
            self._compose(implied)
        found = self._merged()
        check_keys(found)
        named = self._options_named(found)
        if again := (*self._left_defaults(found), *named):
            before, replaced = found, [self.composition.option(choice.group) for choice in named]
            self._compose((*implied, *again))
            found = self._merged()
            for choice, old in zip(named, replaced, strict=True):
                self._note_what_changes(choice, old, before, found)
        for choice in implied:
            what = f"{choice.group}={choice.option}"
            if choice not in self._preset.choices:  # which has a note of its own
                self.notes.append(f"{choice.origin}: {what} is used, as nothing else of {choice.group} is chosen")
        self.notes += [*self._computed, *self._kept_by_recipes(found), *self._own_options()]
        if not self.files.complete:
            typed = [source for part, source in self._pairs() if part.is_recipe] + [self.sources[-1]]
            named_there = set().union(*(source.keys for source in typed))
            own = any("training.reward_weights" in s.keys for p, s in self._pairs() if p.chosen and not p.is_recipe)
            drop_stale_weights(found, named_there, own=own)
        return found

    def place_of(self, key: str) -> str:
        """A sentence on where the user set a key; empty when it has its default."""
        found = self.written(key)
        return found.sentence(key) if found else ""

    def written(self, key: str) -> Written | None:
        """The key as the user wrote it; None when it has its default."""
        about = [found for found in reversed(self.settings) if not found.implied and _concerns(found, key)]
        about.sort(key=lambda found: found.value == {})  # mappings are merged, so an empty one sets nothing
        return about[0].written if about else None

    def set_above(self, key: str) -> str:
        """A sentence on what recipes set over an option that the user chooses of this key's group; may be empty."""
        group, names, typed = key.partition(".")[0], dict[str, str](), self.sources[-1].keys
        option, by = self.composition.option(group), None if self.files.complete else self.composition.chosen.get(group)
        for part, source in list(self._pairs())[: self.composition.place(by)] if by is not None else ():
            own = [key for key in source.keys if key.startswith(f"{group}.") and key not in typed and part.is_recipe]
            names |= dict.fromkeys(own, part.file.path.name)
        if not names or option is None or key in typed:
            return ""
        keys = ", ".join(f"{key} of {file}" for key, file in sorted(names.items()))
        return f" {group}={option.path.rpartition('/')[2]} is chosen, and over it come {keys}: set what should differ."

    def _pairs(self) -> Iterator[tuple[Part, Source]]:
        return zip(self.composition.parts, self.sources, strict=False)

    def _compose(self, more: Sequence[Choice]) -> None:
        """Compose the user's choices and these, which keys imply, and read the files that this takes."""
        asked: dict[str, list[Choice]] = {}
        typed = [*self._choices]
        for _ in range(5):  # what is asked for by another tool's key may bring in a file that asks for more
            self.files.asked = asked
            self.composition = self.files.compose((*typed, *more))
            self._read()
            before = asked, typed
            line = [choice for choice in self.sources[-1].choices if not choice.implied]
            typed = [*self._choices, *line]
            asked = {
                part.path: [choice for choice in source.choices if not choice.implied]
                for part, source in self._pairs()
                if any(not choice.implied for choice in source.choices)
            }
            if (asked, typed) == before:
                break
        # The settings of other objectives than the one that is chosen last, by its group or by a key, are left out.
        option, by = self.composition.option("objective"), self.composition.chosen.get("objective")
        chosen = None
        if option is not None and by is not None:
            name = next((s.value for s in self._source_of(option).settings if s.key == "objective.name"), None)
            chosen = (self.composition.place(by), name) if name is not None else None
        others = [Source() if part.builtin or part is option else source for part, source in self._pairs()]
        self._computed = leave_out_other_objectives((*others, self.sources[-1]), chosen)

    def _read(self) -> None:
        """Resolve the keys of every part and of the command line to Covey's own."""
        parts, names = self.composition.parts, self.files.roots.nearest_groups
        written = [
            [] if part.builtin else part.file.written(part.package, "recipe" if part.is_recipe else "group")
            for part in parts
        ]
        everything = {item.name: item.value for items in (*written, self._words) for item in items if not item.delete}
        self.sources, earlier = [], dict[str, Any]()
        for part, items in zip(parts, written, strict=True):
            if part.builtin:
                read = part.file.content and part.group != GROUP  # a preset is below what the user sets
                self.sources.append(_own_source(part.file.path, part.package) if read else Source())
                continue
            label = part.file.path.name if part.is_recipe else f"{part.path}.yaml"
            source = resolve_aliases(items, earlier, label, strict=True, more_names=names, references=everything)
            earlier = source.canonical_values
            if part.group in self.files.base_groups:  # Hydra lets no such option override another group
                later = [c if c.group == part.group else replace(c, implied=True) for c in source.choices]
                source.choices = later
            self.sources.append(source)
        line = resolve_aliases(
            self._words, earlier, "command line", strict=False, more_names=names, references=everything
        )
        self.sources.append(line)
        self._give_way()

    def _give_way(self) -> None:
        """Let an option that is chosen after a recipe of another tool take the place of what that recipe sets there.

        Such a recipe is no file of Hydra's, whose rule is that the keys of a file come after all groups.
        """
        for place, (part, source) in enumerate(self._pairs()):
            if part.file not in self.files.recipes or not source.foreign:
                continue
            later = [group for group, by in self.composition.chosen.items() if self.composition.place(by) > place]
            keys = set[str]()
            for option in filter(None, map(self.composition.option, later)):
                keys |= self._source_of(option).keys
                keys |= {f"{option.group}."} if any(key.startswith(f"{option.group}.") for key in keys) else set()
            source.settings = [s for s in source.settings if not {s.key, f"{s.key.partition('.')[0]}."} & keys]

    def _source_of(self, wanted: Part) -> Source:
        return next(source for part, source in self._pairs() if part is wanted)

    @property
    def _named(self) -> set[str]:
        """The keys that the user sets."""
        return set().union(*(source.keys for source in self.users))

    def _implied_choices(self) -> tuple[Choice, ...]:
        """The options that keys imply, of groups of which the user chooses and sets nothing."""
        sources = (self._preset, *self.users)
        asked = {choice.group: choice for source in sources for choice in source.choices if choice.implied}
        named = self._named
        taken = {*self.composition.chosen, *(group for group, keys in _SOURCES.items() if keys & named)}
        return tuple(choice for group, choice in asked.items() if group not in taken)

    def _merged(self) -> dict[str, Any]:
        """Every part in order, then the command line, then what is only implied, resolved."""
        self.notes = []
        replaced, by_covey = set(), set[str]()
        tree = OmegaConf.create({})
        with resolving():
            for part, source in self._pairs():
                if self.files.complete and part.chosen and part.group not in replaced:
                    replaced.add(part.group)  # what its options state, or name, gives way; the rest stays
                    before, kept = tree.get(part.group, {}), _KEPT.get(part.group)
                    own = any(setting.key.startswith(f"{part.group}.") for setting in source.settings)
                    for name in _stated(part.group) if kept is None else {*before} - {*kept} if own else ():
                        before.pop(name, None)
                for setting in source.settings:
                    apply_setting(tree, setting)
                by_covey = by_covey | source.keys if part.builtin else by_covey - source.keys
            for setting in self.sources[-1].settings:
                apply_setting(tree, setting)
            applying = self._applying()
            for implied in applying:
                apply_setting(tree, replace(implied, implied=False))
                self.notes += [implied.note] if implied.note else []
            tuning = self.composition.option("tuning")
            taken = self._taken(tuning).union(implied.key for implied in applying)
            knows = tuning is not None and tuning.builtin
            named = self._named - (by_covey - self.sources[-1].keys)
            fit_to_model(tree, taken, named, starter=knows, defaults=not self.files.complete)
            defaults = set_defaults(tree)
            self._compute_deferred(tree)
            return resolve(tree, defaults)

    def with_preset(self, preset: Source) -> Merging:
        return Merging(self.files, self._words, self._choices, preset)

    def of_preset(self) -> tuple[list[Choice], list[Setting]]:
        """The options and values of the preset that hold: nothing that the user sets or chooses takes their place."""
        named = self._taken(self.composition.option("objective"))  # of a name that a key sets
        excluded = named.union(*(GIVES_WAY[key] for key in named & GIVES_WAY.keys()))
        choices = [choice for choice in self._implied_choices() if choice in self._preset.choices]
        return choices, [setting for setting in self._preset.settings if setting.key not in excluded]

    def _taken(self, *more: Part | None) -> set[str]:
        """The keys that the user sets, those of the options that the user chooses, and of more parts."""
        return self._named.union(*(source.keys for part, source in self._pairs() if part.chosen or part in more))

    def _applying(self) -> list[Setting]:
        """The implied values that hold: the user sets their keys nowhere, nor chooses an option that does."""
        taken = self._taken()
        implied = [found for found in self.settings if found.implied and found.key not in taken]
        return list({found.key: found for found in (*self.of_preset()[1], *implied)}.values())

    def _options_named(self, values: dict[str, Any]) -> list[Choice]:
        """The options that keys choose by their name, where these groups have another one of Covey's."""
        found = []
        for key, group in _OPTION_KEYS.items() if not self.files.complete else ():
            line_only = self.composition.chosen.get(group) == ""
            settings = self.sources[-1].settings if line_only else self.settings
            setting = next((s for s in reversed(settings) if s.key == key and not s.implied), None)
            setting = setting or next((implied for implied in self._applying() if implied.key == key), None)
            name = value_of(values, key) if setting is None else setting.value
            now = self.composition.option(group)
            if now is None or not now.builtin or name not in self.files.roots.options(group):
                continue
            if all(s.value != name for s in self._source_of(now).settings if s.key == key):
                found.append(Choice(group, str(name), origin=setting.written.where if setting else "", implied=True))
        return found

    def _left_defaults(self, values: dict[str, Any]) -> list[Choice]:
        """The default groups that do not fit what the user asked for.

        `model.name=X` alone means another model than the default group's, so that group and its tuning are dropped,
        unless `covey starter` made that model; `dataset.path=FILE` alone drops the default task. With an environment or
        tools, the default model is the starter that can call tools.
        """
        options = {group: self.composition.option(group) for group in ("model", "dataset")}
        free = {g for g, part in options.items() if part is not None and part.builtin and not part.chosen}
        free -= {choice.group for choice in self._implied_choices()}
        left = []
        environment = values.get("environment") or {}
        name = (values.get("model") or {}).get("name")
        if "model" in free and name not in (None, ModelConfig().name) and not is_starter(str(name)):
            left.append(Choice("model", OTHER_MODEL, implied=True))
        elif "model" in free and "model.name" not in self._named and any(environment.get(k) for k in _WITH_TOOLS):
            left.append(Choice("model", AGENT_MODEL, implied=True))
        data = values.get("dataset") or {}
        other = data.get("path") or data.get("id") or (data.get("mixture") or {}).get("datasets")
        if "dataset" in free and data.get("task") and other and "dataset.task" not in self._named:
            left.append(Choice("dataset", None, implied=True))
        return left

    def _note_what_changes(
        self, choice: Choice, old: Part | None, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        """Notes on an option that a key chooses by its name: what goes with the one before, and what comes with it."""
        new = self.composition.option(choice.group)
        assert old is not None
        assert new is not None
        named, comes = self._named, self._source_of(new).settings
        kept = named | {setting.key for setting in comes}
        gone = [
            f"{key}={show(value)}"
            for key, value in ((s.key, s.value) for s in _own_source(old.file.path, old.package).settings)
            if key not in kept and value_of(before, key) == value != value_of(after, key)
        ]
        if gone:
            name = old.path.rpartition("/")[2]
            self.notes.append(f"{choice.group}={name} is replaced, so these of its settings go: {', '.join(gone)}")
        for key, value in ((s.key, s.value) for s in comes):
            if key not in named and not key.startswith(f"{choice.group}.") and value_of(after, key) == value:
                self.notes.append(f"{key}={value}, as the group {choice.group}={choice.option} has it")

    def _kept_by_recipes(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Notes on what an option that the command line chooses sets, and a recipe, which comes after it, too."""
        typed = self.sources[-1].keys
        for part, source in self._pairs():
            by = self.composition.chosen.get(part.group)
            ours = {setting.key: setting.value for setting in source.settings if not setting.implied}
            for above, later in list(self._pairs())[: self.composition.place(by)] if by is not None else ():
                theirs = {s.key: s.value for s in later.settings if not s.implied and s.key not in typed}
                differ = [key for key in ours if key in theirs and theirs[key] != ours[key]]
                kept = [f"{key}={show(theirs[key])}" for key in differ if value_of(values, key) != ours[key]]
                if above.is_recipe and above.path != by and kept:
                    yield (
                        f"{part.group}={part.path.rpartition('/')[2]}: {above.file.path.name} keeps its own "
                        f"{', '.join(kept)}, as the keys of a recipe come after all groups. Set a key to change it."
                    )

    def _own_options(self) -> Iterator[str]:
        """A note on the user's options that take the place of Covey's."""
        own = [part for part in self.composition.parts if part.group and not part.builtin and not part.is_recipe]
        both = {part.path: self.files.roots.find(part.path) for part in own}
        texts = [f"{path} ({found[0]}, not {found[-1]})" for path, found in both.items() if len(found) > 1]
        if texts:
            yield f"Options of your own are used in place of others of the same name: {', '.join(texts)}"

    def _compute_deferred(self, tree: DictConfig) -> None:
        """Replace the placeholders by the values computed from other keys."""
        waiting = {
            (found.key, placeholder(found)): found
            for found in (*self._preset.settings, *self.settings)
            if isinstance(found.value, DeferredValue)
        }

        def get(key: str) -> Any:
            value = OmegaConf.select(tree, key)
            if isinstance(value, str) and (key, value) in waiting:
                return settle(waiting[key, value])
            if value is None:
                return training_fields()[key.partition(".")[2]].default if key.startswith("training.") else 1.0
            return coerce(key, value, kinds()[key])

        def settle(found: Setting) -> Any:
            assert isinstance(found.value, DeferredValue)
            try:
                value, words = found.value.compute(get)
            except AliasValueError as problem:
                raise BadKeyError(
                    found.written.name, f"={show(found.written.value)} {problem}", found.written.sentence()
                ) from None
            OmegaConf.update(tree, found.key, value)
            if found not in self._preset.settings:
                self.notes.append(f"{found.key}={value}, from {found.written.name}: {words}")
            return value

        for (key, held), found in waiting.items():
            if OmegaConf.select(tree, key) == held:
                settle(found)


@lru_cache
def _stated(group: str) -> frozenset[str]:
    """The keys of a group that its options state, or that describe what they name."""
    files = map(read_own, (CONF / group).glob("*.yaml"))
    keys = [s.key for file in files for s in _own_source(file.path, "" if file.package else group).settings]
    names = (key.removeprefix(f"{group}.") for key in keys if key.startswith(f"{group}."))
    return frozenset((*names, "settings", "rollout_func"))


@lru_cache(maxsize=256)
def _own_source(file: Path, package: str) -> Source:
    """What a file of Covey's own sets."""
    values: Mapping[str, Any] = read_own(file).content
    for name in reversed(package.split(".") if package else []):
        values = {name: values}
    keys = ((key, value) for key, value in walk(values) if key not in GROUPS)
    return Source([Setting(key, value, Written(key, value, "group")) for key, value in keys])


def _concerns(setting: Setting, key: str) -> bool:
    """Whether a setting sets a key, or something of the group or mapping that the key is."""
    if key in (setting.key, setting.written.name):
        return True
    if setting.key.startswith(f"{key}."):
        return setting.written.typed or key not in GROUPS
    entry = key.removeprefix(f"{setting.key}.").partition(".")[0]
    return key.startswith(f"{setting.key}.") and isinstance(setting.value, Mapping) and entry in setting.value
