"""Merging defaults, recipe and command line into one tree, and computing the values that depend on it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, GrammarParseError, OmegaConfBaseException

from covey.config.aliases.alias_result import AliasValueError, DeferredValue, ImpliedValue
from covey.config.aliases.aliases import look_up
from covey.config.aliases.conversions import flag
from covey.config.aliases.resolve import ResolvedSettings, Setting, leaves, resolve_aliases
from covey.config.compose.build import check_keys
from covey.config.compose.group_files import OTHER_MODEL, Roots
from covey.config.compose.recipe import Choice, Recipe, unreadable_reference
from covey.config.groups import snapshot
from covey.config.groups.model import ModelConfig
from covey.config.groups.rewards import RewardsConfig
from covey.config.keys import kinds
from covey.config.values import BadKeyError, coerce, show
from covey.errors import ConfigError

_DATA = frozenset({"dataset.task", "dataset.id", "dataset.path", "dataset.mixture.datasets"})


@dataclass(slots=True)
class Merging:
    """The parts of a run's config, and how they are merged."""

    roots: Roots
    source: Recipe | None
    from_recipe: tuple[Choice, ...]
    """Group choices of the recipe."""
    chosen: tuple[Choice, ...]
    """Group choices of the command line."""
    recipe: ResolvedSettings
    line: ResolvedSettings
    notes: list[str] = field(default_factory=list)
    """What was computed or dropped while merging."""
    groups: ResolvedSettings = field(default_factory=ResolvedSettings)
    """What the options in the user's own folders set by aliases."""
    choices: tuple[Choice, ...] = ()
    """The composed group choices in order, those implied by keys included."""

    @property
    def complete(self) -> bool:
        """Whether the recipe is a complete config."""
        return self.source is not None and self.source.complete

    def values(self) -> dict[str, Any]:
        """Everything merged and resolved, as nested plain values."""
        implied = self._implied_choices()
        found = self._merged(implied)
        check_keys(found)
        left = self._left_defaults(found)
        if left:
            found = self._merged((*left, *implied))
        self.notes += [f"only the source of the data is given, so {c.group}={c.option} is used" for c in implied]
        self._drop_stale_weights(found)
        self._name_by_folder(found)
        return found

    def _name_by_folder(self, values: dict[str, Any]) -> None:
        """Name a run of another tool's recipe by its folder, so that the same command resumes it.

        Their `output_dir` is the run's own folder. `output_dir=DIR` over such a recipe is Covey's folder of runs, in
        which the run takes the name of the recipe's own folder.
        """
        folders = [found for part in (self.recipe, self.line) for found in part.settings if found.key == "output_dir"]
        folder = values.get("output_dir")
        if self.complete or not folders or values.get("run_name") is not None:
            return
        if not isinstance(folder, str) or not folder:
            return
        word = folders[-1].written
        native = word.name == "output_dir" and not word.text.startswith("the flag")
        if native and not self.recipe.foreign:
            return
        path = Path(folder) if Path(folder).name not in ("", "..") else Path(folder).absolute().resolve()
        if native and word.text and self.source is not None:
            names = [Path(str(found.value)).name for found in folders[:1] if not found.written.text]
            path = Path(folder) / next((name for name in names if name and "$" not in name), self.source.path.stem)
        if path.name:
            values["output_dir"], values["run_name"] = str(path.parent), path.name
            self.notes.append(f"{word.name}={folder}: the run lies in {path}, where the same command resumes it")

    @property
    def _named(self) -> set[str]:
        """The keys that the user sets or removes."""
        return self.recipe.keys | self.line.keys

    @property
    def _groups(self) -> set[str]:
        """The groups that the user chooses, those of a chosen experiment included."""
        choices = (*self.from_recipe, *self.chosen)
        return {choice.group for choice in choices} | set(self.roots.replaced_by(choices))

    def _implied_choices(self) -> tuple[Choice, ...]:
        asked = dict([*self.recipe.implied_choices, *self.line.implied_choices])
        free = "dataset" not in self._groups and not self._named & _DATA
        return tuple(Choice(group, option) for group, option in asked.items() if free)

    def _merged(self, first: Sequence[Choice]) -> dict[str, Any]:
        self.notes.clear()
        with _resolving():
            tree = self._tree(first)
            for setting in self.line.settings:
                self._apply(tree, setting)
            self._imply(tree)
            self._fit_loss_to_maxent(tree)
            self._drop_maxent(tree)
            self._compute_deferred(tree)
            values = OmegaConf.to_container(tree, resolve=True)
        assert isinstance(values, dict)
        return {str(key): value for key, value in values.items()}

    def _tree(self, first: Sequence[Choice]) -> DictConfig:
        """Defaults (except dropped ones), recipe and group choices, merged; interpolations not yet resolved."""
        self.choices = (*first, *self.from_recipe, *self.chosen)
        self.groups = ResolvedSettings()
        composed = _composed(self.roots, self.choices)
        composed = self._without_aliases(self._over_tuning(composed))
        if self.source is None:
            return composed
        tree = OmegaConf.create({}) if self.complete else OmegaConf.create(composed)
        for setting in self.recipe.settings:
            self._apply(tree, setting)
        for group in self.roots.replaced_by(self.chosen):
            path = group.replace("/", ".")
            part = OmegaConf.select(composed, path)
            OmegaConf.update(tree, path, {} if part is None else part, merge=False, force_add=True)
        for body in self.roots.bodies_of(self.chosen):
            merged = OmegaConf.merge(tree, self._without_aliases(body))
            assert isinstance(merged, DictConfig)
            tree = merged
        return tree

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
        foreign = [
            item for item in leaves(found) if not (known := look_up(item.name)) or known.convert or not known.native
        ]
        if not foreign:
            return tree
        part = resolve_aliases(foreign, {}, "config groups", strict=False)
        if part.choices:
            ((group, option), *_) = part.choices
            raise ConfigError(
                f"A config group of yours asks for {group}={option} by a key. Choose it in the group's `defaults:`, as "
                f"`- override /{group}: {option}`, or on the command line."
            )
        names = {item.name for item in foreign}
        kept = OmegaConf.create(_without(found, names))
        assert isinstance(kept, DictConfig)
        for setting in part.settings:
            self._apply(kept, setting)
        for name in ("settings", "implied", "implied_choices", "notes"):
            getattr(self.groups, name).extend(getattr(part, name))
        self.notes += part.notes
        return kept

    def _apply(self, tree: DictConfig, setting: Setting) -> None:
        """Set or remove one key."""
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

    def _imply(self, tree: DictConfig) -> None:
        """Set the values implied by the user's keys, where the user sets none."""
        groups = self._groups
        replaced = set(self.roots.replaced_by(self.chosen))
        applying: dict[str, ImpliedValue] = {}
        for part, gone in ((self.groups, set[str]()), (self.recipe, replaced), (self.line, set[str]())):
            for implied in part.implied:
                overridden = implied.key in self._named | self.groups.keys or implied.unless_group in groups
                if not overridden and implied.key.partition(".")[0] not in gone:
                    applying[implied.key] = implied
        for implied in applying.values():
            OmegaConf.update(tree, implied.key, implied.value, merge=True, force_add=True)
            self.notes += [implied.note] if implied.note else []

    def _fit_loss_to_maxent(self, tree: DictConfig) -> None:
        """Give MaxEnt the loss of its group, where only a key chose it."""
        key = "training.loss_type"
        loss_set = key in self._named or self.roots.sets((*self.from_recipe, *self.chosen), key)
        if self.complete or loss_set or "objective" in self._groups:
            return
        if OmegaConf.select(tree, "objective.name") != "maxent":
            return
        OmegaConf.update(tree, key, "grpo", force_add=True)
        self.notes.append(f"{key}=grpo, the mean per token, as the group objective=maxent has it")

    def _drop_maxent(self, tree: DictConfig) -> None:
        """Drop MaxEnt parameters set by aliases where that source, or a later one, asks for plain GRPO."""
        parts = (self.recipe, self.line)
        asked = [number for number, part in enumerate(parts) if _plain_grpo(part)]
        if not asked or OmegaConf.select(tree, "objective.name") != "grpo":
            return
        dropped = []
        for name in [str(name) for name in tree.get("objective", {}) if str(name).startswith("maxent_")]:
            key = f"objective.{name}"
            setters = [(n, found) for n, part in enumerate(parts) for found in part.settings if found.key == key]
            if setters and not setters[-1][1].native and setters[-1][0] <= asked[-1]:
                del tree["objective"][name]
                dropped.append(setters[-1][1].written.name)
        if dropped:
            self.notes.append(f"plain GRPO was asked for, so these are left out: {', '.join(dropped)}")

    def _compute_deferred(self, tree: DictConfig) -> None:
        """Replace the placeholders by the values computed from other keys."""
        waiting = {
            (found.key, _placeholder(found)): found
            for part in (self.groups, self.recipe, self.line)
            for found in part.settings
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
                raise BadKeyError(found.written.name, f"={show(found.written.value)} {problem}") from None
            OmegaConf.update(tree, found.key, value)
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

    def _drop_stale_weights(self, values: dict[str, Any]) -> None:
        """Drop the default reward weights where the user chose other rewards.

        An experiment's weights stay with the rewards it names.
        """
        funcs = (values.get("rewards") or {}).get("funcs")
        if self.complete or "training.reward_weights" in self._named or funcs is None:
            return
        if not isinstance(funcs, str | list):
            return  # rejected by the check of the values
        asked = (funcs,) if isinstance(funcs, str) else tuple(funcs)
        bodies = self.roots.bodies_of((*self.from_recipe, *self.chosen))
        own = [body for body in bodies if "reward_weights" in (body.get("training") or {})]
        weights = (values.get("training") or {}).get("reward_weights")
        if own and "rewards.funcs" not in self._named and isinstance(weights, list) and len(weights) == len(asked):
            return
        if asked != RewardsConfig().funcs:
            (values.get("training") or {}).pop("reward_weights", None)


def _plain_grpo(part: ResolvedSettings) -> bool:
    """Whether a source asks for plain GRPO by an alias."""
    switch, name = "train_grpo_objective", "objective"
    off = switch in part.set_here and flag(part.canonical_values[switch])
    return off or (name in part.set_here and str(part.canonical_values[name]).lower() == "grpo")


def _composed(roots: Roots, choices: tuple[Choice, ...]) -> DictConfig:
    """The groups composed; cached for Covey's own folder, since Hydra is slow."""
    return copy.deepcopy(_of_own_folder(roots, choices)) if len(roots.folders) == 1 else roots.compose(choices)


@lru_cache(maxsize=64)
def _of_own_folder(roots: Roots, choices: tuple[Choice, ...]) -> DictConfig:
    return roots.compose(choices)


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
    word = f"{setting.written.text[0].upper()}{setting.written.text[1:]}"
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
