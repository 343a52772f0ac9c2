"""One tree of values: setting and removing keys, and errors about references that cannot be resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, GrammarParseError, OmegaConfBaseException

from covey.config.aliases.alias_result import DeferredValue
from covey.config.compose.flags import Flag, parse
from covey.config.compose.recipe import unreadable_reference
from covey.config.compose.render import document
from covey.config.keys import GROUPS, Setting, kinds
from covey.config.values import BadKeyError, is_mapping_kind, members, show
from covey.errors import ConfigError


def placeholder(setting: Setting) -> str:
    """What the tree holds for a value that is not computed yet."""
    return f"<{setting.written.name}={setting.written.value}>"


def apply_setting(tree: DictConfig, setting: Setting) -> None:
    """Set or remove one key; implied values come last."""
    if setting.implied:
        return
    if setting.written.delete:
        _remove(tree, setting)
        return
    value = placeholder(setting) if isinstance(setting.value, DeferredValue) else setting.value
    try:
        OmegaConf.update(tree, setting.key, value, merge=True, force_add=True)
    except ConfigTypeError:  # a mapping in place of a list or the reverse, rejected by the check of the values
        OmegaConf.update(tree, setting.key, value, merge=False, force_add=True)
    except GrammarParseError as error:
        raise BadKeyError(setting.key, unreadable_reference(error)) from None
    except ValueError:
        group, _, name = setting.key.rpartition(".")
        raise BadKeyError(setting.key, f" cannot be set: {group} is a list here, which has no key {name}.") from None


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
def resolving() -> Iterator[None]:
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


def set_defaults(tree: DictConfig) -> list[str]:
    """Set the keys that values refer to (`${seed}`) and that are not set to their defaults, so that they resolve.
    Returns these keys."""
    found = []
    for key in re.findall(r"\$\{\s*([a-z_][\w.]*)\s*\}", str(OmegaConf.to_container(tree, resolve=False))):
        group, _, name = key.rpartition(".")
        held = OmegaConf.select(tree, group) if group else tree
        if key in GROUPS or key not in kinds() or not (held is None or OmegaConf.is_dict(held)) or name in (held or {}):
            continue
        if (default := document(key).default) is not None:
            OmegaConf.update(tree, key, default, force_add=True)
            found.append(key)
    return found


def resolve(tree: DictConfig, defaults: list[str]) -> dict[str, Any]:
    """The nested plain values, without these keys. What a reference gives is read by the type of its key: the text of a
    number, as environment variables have it, is a number where one is wanted, and a number is text for a text."""
    container = OmegaConf.to_container(tree, resolve=True)
    assert isinstance(container, dict)
    values = {str(key): value for key, value in container.items()}
    for key, kind in kinds().items():
        group, _, name = key.rpartition(".")
        held, inside = OmegaConf.select(tree, group) if group else tree, value_of(values, group) if group else values
        if not isinstance(inside, dict) or name not in inside:
            continue
        if key in defaults:
            del inside[name]
        elif OmegaConf.is_dict(held) and OmegaConf.is_interpolation(held, name):
            value = inside[name]
            if isinstance(value, str) and "str" not in members(kind) and not is_mapping_kind(kind):
                inside[name] = parse(Flag(key, (value,)), kind)
            elif isinstance(value, int | float) and set(members(kind)) <= {"str", "None"}:
                inside[name] = str(value)
    return values


def value_of(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key in nested values; None where there is none."""
    found: Any = values
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
