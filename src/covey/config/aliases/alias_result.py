"""What an alias, another tool's name for a key, converts to: values, and what they imply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.config.keys import Choice, kinds

ANYTHING = "list[Any]"
"""The type of an alias without effect: any words, or none."""


@dataclass(frozen=True, slots=True)
class DeferredValue:
    """A value computed from other keys once everything is merged."""

    compute: Callable[[Callable[[str], Any]], tuple[Any, str]]
    """Takes a look-up of merged values by dotted key; returns the value and an explanation for the user."""


@dataclass(frozen=True, slots=True)
class AliasResult:
    """What one alias, or several combined, convert to."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Values by dotted key, `DeferredValue`s among them."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """The same, used only where the user sets none."""
    choices: tuple[Choice, ...] = ()
    """Options of config groups."""
    note: str = ""
    """A note for the user, logged once: of a result that only implies a value, where that value holds."""
    ignored: bool = False
    """Whether it has no effect here."""
    unsupported: bool = False
    """Whether it asks for something that Covey does not support."""


class AliasValueError(ValueError):
    """An invalid value of an alias; the text follows `KEY=VALUE `."""

    def __init__(self, text: str, canonical: str = "") -> None:
        super().__init__(text)
        self.canonical = canonical
        """The canonical name of the key at fault, where several are combined."""


Convert = Callable[[Any], AliasResult]


@dataclass(frozen=True, slots=True)
class Alias:
    """What a name converts to."""

    key: str = ""
    """Covey's own key; empty when it sets several keys or none."""
    convert: Convert | None = None
    """Converts the value; None keeps it."""
    kind: str = ""
    """The type of the alias's value, where it differs from the key's."""
    canonical: str = ""
    """The name of its canonical value, for aliases that are combined."""
    native: bool = False
    """Whether the name is Covey's own key."""

    @property
    def type(self) -> str:
        """The type of its value, as text; empty when unknown."""
        return self.kind or kinds().get(self.key, "")
