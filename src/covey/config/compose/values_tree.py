"""One tree of values: setting and removing keys, and errors about references that cannot be resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, GrammarParseError, OmegaConfBaseException

from covey.config.aliases.alias_result import DeferredValue
from covey.config.compose.recipe import unreadable_reference
from covey.config.settings import Setting
from covey.config.values import BadKeyError, show
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


def value_of(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key in nested values; None where there is none."""
    found: Any = values
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
