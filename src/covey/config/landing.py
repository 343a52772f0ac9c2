"""What a key in another tool's spelling comes to here: values, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.config.keys import kinds


@dataclass(frozen=True, slots=True)
class Later:
    """A value that depends on other keys, whatever order they come in: worked out once everything is merged."""

    compute: Callable[[Callable[[str], Any]], tuple[Any, str]]
    """Takes a look-up of merged values by dotted key; gives the value and how it came about, in words."""


@dataclass(frozen=True, slots=True)
class Implied:
    """A value that follows from a key, unless the user says something of it anywhere."""

    key: str
    value: Any
    note: str = ""
    unless_group: str = ""
    """A config group whose choice says it as well."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Where one key, or several that belong together, land."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Values by dotted key; a `Later` stands for one that is still to be worked out."""
    implied: tuple[Implied, ...] = ()
    choice: tuple[str, str] | None = None
    """A config group and the option that is chosen."""
    implied_choice: tuple[str, str] | None = None
    """The same, unless the user says anything of that group."""
    note: str = ""
    """What the user should know, said once."""
    ignored: bool = False
    """Whether it has no effect here."""
    not_done: bool = False
    """Whether it asks for something that Covey does not have."""


class UnfitError(ValueError):
    """A value that a spelling cannot have; the text goes on after `KEY=VALUE `."""

    def __init__(self, text: str, fact: str = "") -> None:
        super().__init__(text)
        self.fact = fact
        """Which of several keys that belong together is at fault."""


Convert = Callable[[Any], Landing]


@dataclass(frozen=True, slots=True)
class Spelling:
    """What a name stands for."""

    key: str = ""
    """Covey's own key; empty when it lands in several places or in none."""
    convert: Convert | None = None
    """What becomes of the value; None takes it as it is."""
    kind: str = ""
    """The type of what is written, where it is not that of the key."""
    fact: str = ""
    """Its name among the keys that mean something only together."""
    own: bool = False
    """Whether the name is Covey's own key."""

    @property
    def type(self) -> str:
        """The type of what is written, as text; empty when it is not known."""
        return self.kind or kinds().get(self.key, "")
