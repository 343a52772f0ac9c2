"""Merging defaults, recipe and command line into one tree of values, and what can be worked out only then."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from covey.config import snapshot
from covey.config.conversions import flag
from covey.config.groups import OTHER_MODEL, Roots
from covey.config.keys import kinds
from covey.config.landing import Implied, Later, UnfitError
from covey.config.model import ModelConfig
from covey.config.recipe import Choice, Recipe, unreadable_reference
from covey.config.schema import RewardsConfig
from covey.config.spelling import look_up
from covey.config.translate import Setting, Translation, leaves, translate
from covey.config.values import BadKeyError, coerce, show
from covey.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_DATA = frozenset({"dataset.task", "dataset.id", "dataset.path", "dataset.mixture.datasets"})


@dataclass(slots=True)
class Merging:
    """The parts of a run's config, and how they come together."""

    roots: Roots
    source: Recipe | None
    from_recipe: tuple[Choice, ...]
    """Group choices of the recipe."""
    chosen: tuple[Choice, ...]
    """Group choices of the command line."""
    recipe: Translation
    line: Translation
    notes: list[str] = field(default_factory=list)
    """What was worked out or left out in the merging."""
    groups: Translation = field(default_factory=Translation)
    """What the options in the user's own folders say in other spellings."""
    choices: tuple[Choice, ...] = ()
    """The group choices that were composed, in order, those that follow from keys among them."""

    @property
    def complete(self) -> bool:
        """Whether the recipe is a whole config."""
        return self.source is not None and self.source.complete

    def values(self) -> dict[str, Any]:
        """Everything merged and resolved, as nested plain values."""
        implied = self._implied_choices()
        found = self._merged(implied)
        left = self._left_defaults(found)
        if left:
            found = self._merged((*left, *implied))
        self.notes += [f"no data are named but where they come from, so {c.group}={c.option} is taken" for c in implied]
        self._drop_stale_weights(found)
        return found

    @property
    def _named(self) -> set[str]:
        """The keys that the user says something of."""
        return self.recipe.keys | self.line.keys

    @property
    def _groups(self) -> set[str]:
        """The groups that the user chooses, those inside a chosen experiment among them."""
        choices = (*self.from_recipe, *self.chosen)
        return {choice.group for choice in choices} | set(self.roots.replaced_by(choices))

    def _implied_choices(self) -> tuple[Choice, ...]:
        asked = dict([*self.recipe.implied_choices, *self.line.implied_choices])
        free = "dataset" not in self._groups and not self._named & _DATA
        return tuple(Choice(group, option) for group, option in asked.items() if free)

    def _merged(self, first: Sequence[Choice]) -> dict[str, Any]:
        from omegaconf import OmegaConf

        self.notes.clear()
        tree = self._tree(first)
        for setting in self.line.settings:
            self._apply(tree, setting)
        self._imply(tree)
        self._fit_loss_to_maxent(tree)
        self._leave_out_maxent(tree)
        self._work_out(tree)
        return _resolve(tree) if OmegaConf.is_dict(tree) else {}

    def _tree(self, first: Sequence[Choice]) -> DictConfig:
        """Defaults (less those left out), recipe and group choices, merged; interpolations still in place."""
        from omegaconf import DictConfig, OmegaConf

        self.choices = (*first, *self.from_recipe, *self.chosen)
        self.groups = Translation()
        composed = _composed(self.roots, self.choices)
        composed = self._in_our_spelling(self._over_tuning(composed))
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
            merged = OmegaConf.merge(tree, self._in_our_spelling(body))
            assert isinstance(merged, DictConfig)
            tree = merged
        return tree

    def _over_tuning(self, tree: DictConfig) -> DictConfig:
        """Let an option of the user's own win over the tuning of a default model, which Hydra merges after it."""
        from omegaconf import OmegaConf

        later = self.roots.bodies_of(self.choices)
        for group, values in self.roots.users_options(self.choices):
            for name, value in values.items():
                key = f"{group.replace('/', '.')}.{name}"
                if all(OmegaConf.select(body, key) is None for body in later):
                    OmegaConf.update(tree, key, value, merge=True, force_add=True)
        return tree

    def _in_our_spelling(self, tree: DictConfig) -> DictConfig:
        """What the groups say, the spellings of other tools translated; only the user's own folders can hold those."""
        from omegaconf import DictConfig, OmegaConf

        if len(self.roots.folders) == 1:
            return tree
        values = OmegaConf.to_container(tree, resolve=False)
        assert isinstance(values, dict)
        found = {str(name): inner for name, inner in values.items()}
        said = list(leaves(found))
        foreign = [item for item in said if not (known := look_up(item.spelling)) or known.convert or not known.own]
        if not foreign:
            return tree
        part = translate(foreign, {}, "config groups", strict=False)
        if part.choices:
            ((group, option), *_) = part.choices
            raise ConfigError(
                f"A config group of yours asks for {group}={option} by a key. Choose it in the group's `defaults:`, as "
                f"`- override /{group}: {option}`, or on the command line."
            )
        names = {item.spelling for item in foreign}
        kept = OmegaConf.create(_without(found, names))
        assert isinstance(kept, DictConfig)
        for setting in part.settings:
            self._apply(kept, setting)
        for name in ("settings", "implied", "implied_choices", "notes"):
            getattr(self.groups, name).extend(getattr(part, name))
        self.notes += part.notes
        return kept

    def _apply(self, tree: DictConfig, setting: Setting) -> None:
        """Set, or take away, one key."""
        from omegaconf import OmegaConf
        from omegaconf.errors import GrammarParseError

        if setting.said.delete:
            _take_away(tree, setting)
            return
        value = _marker(setting) if isinstance(setting.value, Later) else setting.value
        try:
            OmegaConf.update(tree, setting.key, value, merge=True, force_add=True)
        except GrammarParseError as error:
            raise BadKeyError(setting.key, unreadable_reference(error)) from None

    def _imply(self, tree: DictConfig) -> None:
        """Set what follows from the user's keys where the user says nothing of it."""
        from omegaconf import OmegaConf

        groups = self._groups
        replaced = set(self.roots.replaced_by(self.chosen))
        applying: dict[str, Implied] = {}
        for part, gone in ((self.groups, set[str]()), (self.recipe, replaced), (self.line, set[str]())):
            for implied in part.implied:
                said = implied.key in self._named | self.groups.keys or implied.unless_group in groups
                if not said and implied.key.partition(".")[0] not in gone:
                    applying[implied.key] = implied
        for implied in applying.values():
            OmegaConf.update(tree, implied.key, implied.value, merge=True, force_add=True)
            self.notes += [implied.note] if implied.note else []

    def _fit_loss_to_maxent(self, tree: DictConfig) -> None:
        """Give MaxEnt the loss that its group has, where it was asked for by a key alone."""
        from omegaconf import OmegaConf

        key = "training.loss_type"
        said = key in self._named or self.roots.says((*self.from_recipe, *self.chosen), key)
        if self.complete or said or "objective" in self._groups or OmegaConf.select(tree, "objective.name") != "maxent":
            return
        OmegaConf.update(tree, key, "grpo", force_add=True)
        self.notes.append(f"{key}=grpo, the mean per token, as the group objective=maxent has it")

    def _leave_out_maxent(self, tree: DictConfig) -> None:
        """Let go of a foreign source's MaxEnt knobs where it, or one after it, asks for plain GRPO in so many words."""
        from omegaconf import OmegaConf

        parts = (self.recipe, self.line)
        asked = [number for number, part in enumerate(parts) if _plain_grpo(part)]
        if not asked or OmegaConf.select(tree, "objective.name") != "grpo":
            return
        idle = []
        for name in [str(name) for name in tree.get("objective", {}) if str(name).startswith("maxent_")]:
            key = f"objective.{name}"
            setters = [(n, found) for n, part in enumerate(parts) for found in part.settings if found.key == key]
            if setters and not setters[-1][1].own and setters[-1][0] <= asked[-1]:
                del tree["objective"][name]
                idle.append(setters[-1][1].said.spelling)
        if idle:
            self.notes.append(f"plain GRPO was asked for, so these are left out: {', '.join(idle)}")

    def _work_out(self, tree: DictConfig) -> None:
        """Put the values that depend on other keys in place of their markers."""
        from omegaconf import OmegaConf

        waiting = {
            (found.key, _marker(found)): found
            for part in (self.groups, self.recipe, self.line)
            for found in part.settings
            if isinstance(found.value, Later)
        }

        def get(key: str) -> Any:
            value = OmegaConf.select(tree, key)
            if isinstance(value, str) and (key, value) in waiting:
                return settle(waiting[key, value])
            return _default(key) if value is None else coerce(key, value, kinds()[key])

        def settle(found: Setting) -> Any:
            assert isinstance(found.value, Later)
            try:
                value, words = found.value.compute(get)
            except UnfitError as problem:
                raise BadKeyError(found.said.spelling, f"={show(found.said.value)} {problem}") from None
            OmegaConf.update(tree, found.key, value)
            self.notes.append(f"{found.key}={value}, from {found.said.spelling}: {words}")
            return value

        for (key, marker), found in waiting.items():
            if OmegaConf.select(tree, key) == marker:
                settle(found)

    def _left_defaults(self, values: dict[str, Any]) -> list[Choice]:
        """The default groups that do not belong to what the user asked for.

        `model.name=X` alone means another model than the default group's, so neither that group nor its tuning is
        meant; `dataset.path=FILE` alone means other data than the default task.
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
        """Let go of the default reward weights where other rewards were asked for: they belong to the default ones.

        An experiment's weights stay with the rewards it names.
        """
        funcs = (values.get("rewards") or {}).get("funcs")
        if self.complete or "training.reward_weights" in self._named or funcs is None:
            return
        asked = (funcs,) if isinstance(funcs, str) else tuple(funcs)
        bodies = self.roots.bodies_of((*self.from_recipe, *self.chosen))
        own = [body for body in bodies if "reward_weights" in (body.get("training") or {})]
        weights = (values.get("training") or {}).get("reward_weights") or ()
        if own and "rewards.funcs" not in self._named and len(weights) == len(asked):
            return
        if asked != RewardsConfig().funcs:
            (values.get("training") or {}).pop("reward_weights", None)


def _plain_grpo(part: Translation) -> bool:
    """Whether one source asks for plain GRPO in another tool's words."""
    switch, name = "train_grpo_objective", "objective"
    off = switch in part.now and flag(part.facts[switch])
    return off or (name in part.now and str(part.facts[name]).lower() == "grpo")


def _composed(roots: Roots, choices: tuple[Choice, ...]) -> DictConfig:
    """The groups composed; Hydra takes its time, and Covey's own folder stays as it is, so that is done once."""
    return copy.deepcopy(_of_own_folder(roots, choices)) if len(roots.folders) == 1 else roots.compose(choices)


@lru_cache(maxsize=64)
def _of_own_folder(roots: Roots, choices: tuple[Choice, ...]) -> DictConfig:
    return roots.compose(choices)


def _marker(setting: Setting) -> str:
    """What stands in the tree for a value that is still to be worked out."""
    return f"<{setting.said.spelling}={setting.said.value}>"


def _default(key: str) -> Any:
    group, _, name = key.partition(".")
    return snapshot.fields()[name].default if group == "training" else 1.0


def _without(values: dict[str, Any], names: set[str], prefix: str = "") -> dict[str, Any]:
    """The nested values less the keys of these dotted names, and less what is empty then."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        inside = _without(value, names, f"{key}.") if isinstance(value, dict) else value
        if key not in names and (inside or not value):
            found[name] = inside
    return found


def _take_away(tree: DictConfig, setting: Setting) -> None:
    from omegaconf import OmegaConf

    parent, _, name = setting.key.rpartition(".")
    node = OmegaConf.select(tree, parent) if parent else tree
    word = f"{setting.said.text[0].upper()}{setting.said.text[1:]}"
    if not OmegaConf.is_dict(node) or name not in node:
        raise ConfigError(f"{word} takes away {setting.key}, which is not set.")
    if setting.value is not None and node[name] != setting.value:
        raise ConfigError(
            f"{word} takes away {setting.key} only if it is {show(setting.value)}, but it is {show(node[name])}."
        )
    del node[name]


def _resolve(tree: DictConfig) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise BadKeyError(
            str(error.full_key or "A value"),
            f" holds ${{...}}, which stands for another key, and cannot be resolved: {reason}. Write \\${{ for the "
            "characters themselves.",
        ) from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}
