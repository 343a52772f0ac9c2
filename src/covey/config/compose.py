"""Composing a run: Covey's defaults, then the recipe, then the overrides from left to right.

Hydra composes the groups and its own parser reads the overrides, so both behave as people know them. The one rule that
is Covey's: a group chosen in an override beats what the recipe says of that group, since overrides come after the
recipe. Among the overrides, groups are chosen first and keys are set afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config.build import build, check_keys, walk
from covey.config.groups import OTHER_MODEL, Roots
from covey.config.keys import GROUPS, check_known, did_you_mean, kinds, nearest
from covey.config.model import ModelConfig
from covey.config.recipe import Choice, Recipe, read_recipe
from covey.config.schema import Config, RewardsConfig
from covey.config.values import BadKeyError, members, show
from covey.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


def load(
    overrides: Sequence[str] = (),
    recipe: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
    *,
    world_size: int | None = None,
) -> Config:
    """Compose and check a config without importing torch.

    Args:
        overrides: `group=option`, `key=value`, `+experiment=name`, `~key`, as Hydra spells them.
        recipe: a YAML file of group choices (`defaults:`) and keys, or a run directory.
        config_dirs: folders with more options for the groups.
        world_size: number of training processes; None takes the WORLD_SIZE of the launcher, else 1.

    Raises:
        ConfigError: one paragraph that says what is wrong, where, and what would be right.
    """
    roots = Roots.of(config_dirs)
    parsed = _parse(overrides)
    chosen = [choice for override in parsed if (choice := _as_choice(override, roots)) is not None]
    settings = [override for override in parsed if _as_choice(override, roots) is None]
    for override in settings:
        _check_setting(override, roots)
    source = read_recipe(recipe) if recipe is not None else None
    try:
        check_keys(source.values if source else {})
        values = _values(roots, source, chosen, settings)
        left = _left_defaults(values, roots, source, chosen, settings)
        if left:
            values = _values(roots, source, chosen, settings, left)
        _drop_stale_weights(values, source, settings)
        return build(values, world_size)
    except BadKeyError as problem:
        raise ConfigError(f"{problem}{_place(problem.key, settings, source)}") from None


def _values(
    roots: Roots,
    source: Recipe | None,
    chosen: Sequence[Choice],
    settings: Sequence[Override],
    left: Sequence[Choice] = (),
) -> dict[str, Any]:
    tree = _tree(roots, source, chosen, left)
    for override in settings:
        _apply(tree, override)
    return _resolve(tree)


def _left_defaults(
    values: dict[str, Any],
    roots: Roots,
    source: Recipe | None,
    chosen: Sequence[Choice],
    settings: Sequence[Override],
) -> list[Choice]:
    """The default groups that do not belong to what the user asked for.

    `model.name=X` alone means another model than the default group's, so neither that group nor its tuning is meant;
    `dataset.path=FILE` alone means other data than the default task.
    """
    if source is not None and source.complete:
        return []
    choices = [*(source.choices if source else ()), *chosen]
    groups = {choice.group for choice in choices} | set(roots.replaced_by(choices))
    left = []
    model = values.get("model") or {}
    if "model" not in groups and model.get("name") not in (None, ModelConfig().name):
        left.append(Choice("model", OTHER_MODEL))  # the tuning group follows the model group's name
    data = values.get("dataset") or {}
    named = {override.key_or_group for override in settings} | {key for key, _ in walk(source.values if source else {})}
    if "dataset" not in groups and data.get("task") and (data.get("path") or data.get("id")):
        left += [] if "dataset.task" in named else [Choice("dataset", None)]
    return left


def _drop_stale_weights(values: dict[str, Any], source: Recipe | None, settings: Sequence[Override]) -> None:
    """Let go of the default reward weights where other rewards were asked for: they belong to the default ones."""
    if source is not None and source.complete:
        return
    named = {override.key_or_group for override in settings} | {key for key, _ in walk(source.values if source else {})}
    funcs = (values.get("rewards") or {}).get("funcs")
    if "training.reward_weights" not in named and funcs is not None and tuple(funcs) != RewardsConfig().funcs:
        (values.get("training") or {}).pop("reward_weights", None)


def _tree(roots: Roots, source: Recipe | None, chosen: Sequence[Choice], left: Sequence[Choice]) -> DictConfig:
    """Defaults (less those left out), recipe and group choices, merged; interpolations still in place."""
    from omegaconf import OmegaConf

    from_recipe = source.choices if source else ()
    composed = roots.compose((*left, *from_recipe, *chosen))
    if source is None:
        return composed
    said = OmegaConf.create(dict(source.values))
    tree = said if source.complete else OmegaConf.merge(composed, said)
    for group in roots.replaced_by(chosen):
        path = group.replace("/", ".")
        part = OmegaConf.select(composed, path)
        OmegaConf.update(tree, path, {} if part is None else part, merge=False, force_add=True)
    for body in roots.bodies_of(chosen):
        tree = OmegaConf.merge(tree, body)
    assert OmegaConf.is_dict(tree)
    return tree  # type: ignore[return-value]


def _parse(overrides: Iterable[str]) -> list[Override]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    found = []
    for text in overrides:
        if "=" not in text and not text.startswith("~"):
            file = Path(text)
            hint = " A recipe is given once, before the overrides." if file.suffix in (".yaml", ".yml") else ""
            raise ConfigError(f"The argument `{text}` is not an override: write key=value.{hint}")
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            key = text.partition("=")[0]
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"The override `{text}` cannot be read ({reason}). Put a value with spaces, brackets, commas or = into "
                f"quotes, and those into quotes of the shell: '{key}=\"...\"'."
            ) from None
        if override.is_sweep_override():
            raise ConfigError(
                f"The override `{text}` is a sweep over several values, and this is one run. For a list write "
                f"{override.get_key_element()}=[...]; for a text with a comma put it into quotes."
            )
        found.append(override)
    return found


def _as_choice(override: Override, roots: Roots) -> Choice | None:
    """The group choice an override makes; None when it sets a key."""
    group = override.key_or_group
    value = override.value()
    if not roots.is_group(group) or isinstance(value, dict):
        return None
    if override.package is not None:
        raise ConfigError(f"The override `{override.input_line}`: Covey's groups have one place each; leave out the @.")
    if override.is_delete() or value is None:
        return Choice(group, None, origin=f"`{override.input_line}`")
    if isinstance(value, list):
        raise ConfigError(f"The override `{override.input_line}`: choose one option of {group}, not a list.")
    return Choice(group, str(value), origin=f"`{override.input_line}`")


def _check_setting(override: Override, roots: Roots) -> None:
    key = override.key_or_group
    try:
        check_known(key)
        if not override.is_delete() and isinstance(value := override.value(), dict):
            for inner, _ in walk({str(name): item for name, item in value.items()}, f"{key}."):
                check_known(inner)
    except BadKeyError as problem:
        text = str(problem)
        if problem.key == key and isinstance(override.value(), str) and "." not in key and not nearest(key):
            text += did_you_mean(roots.nearest_groups(key))
        raise ConfigError(f"{text} (In the override `{override.input_line}`.)") from None


def _apply(tree: DictConfig, override: Override) -> None:
    """Set, or take away, one key."""
    from omegaconf import OmegaConf

    key = override.key_or_group
    if override.is_delete():
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(tree, parent) if parent else tree
        if not OmegaConf.is_dict(node) or name not in node:
            raise ConfigError(f"The override `{override.input_line}` takes away {key}, which is not set.")
        expected = override.value()
        if expected is not None and node[name] != expected:
            raise ConfigError(
                f"The override `{override.input_line}` takes away {key} only if it is {show(expected)}, but it is "
                f"{show(node[name])}."
            )
        del node[name]
        return
    OmegaConf.update(tree, key, _value(override), merge=True, force_add=True)


def _value(override: Override) -> Any:
    """The value as parsed, except that a text key keeps `1e5` or `007` exactly as it was typed."""
    value = override.value()
    wants = members(kinds().get(override.key_or_group, ""))
    plain_text = "str" in wants and set(wants) <= {"str", "None"}
    if plain_text and isinstance(value, bool | int | float) and override.input_line is not None:
        return override.input_line.partition("=")[2].strip()
    return value


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


def _place(key: str, settings: Sequence[Override], source: Recipe | None) -> str:
    """Where the user set this key, the last place first; nothing when a default is at fault."""
    for override in reversed(settings):
        if override.key_or_group == key or (key in GROUPS and override.key_or_group.startswith(f"{key}.")):
            return f" (Set by the override `{override.input_line}`.)"
    place = source.place(key) if source else None
    return f" (Set in {place}.)" if place else ""
