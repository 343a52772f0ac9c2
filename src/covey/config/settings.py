"""What a recipe, a user's config group or a command line sets: keys as written, and Covey's own keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Written:
    """One key as the user wrote it."""

    name: str
    value: Any
    by: str = "recipe"
    """What sets it: a `recipe`, a config `group`, an `override` or a `flag`."""
    place: str = ""
    """Where it was written: `FILE, line N`, or the words on the command line."""
    delete: bool = False
    """Whether the key is removed instead of set."""

    @property
    def typed(self) -> bool:
        """Whether it is on the command line."""
        return self.by in ("override", "flag")

    @property
    def where(self) -> str:
        """Where it was written, for a message."""
        return f"the {self.by} `{self.place}`" if self.typed else self.place

    def sentence(self, key: str = "") -> str:
        """A sentence on where it was written; it gives the name if that is another than this key."""
        if self.typed:
            return f" (Set by {self.where}.)"
        return f" (Set in {self.where}{f', as {self.name}' if key and key != self.name else ''}.)" if self.place else ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One of Covey's own keys, its value, and the key as written that it comes from."""

    key: str
    value: Any
    written: Written
    native: bool = True
    """Whether it was written under Covey's own key."""
    implied: bool = False
    """Whether another key implies it, so that it holds only where the user sets none."""
    note: str = ""
    """What the user is told where an implied value holds."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One option of a config group; None drops the group."""

    group: str
    option: str | None
    optional: bool = False
    """Whether it may be missing."""
    origin: str = ""
    """Where it was chosen, for messages."""
    implied: bool = False
    """Whether a key implies it, so that it holds only where the user sets nothing of that group."""


@dataclass(slots=True)
class Source:
    """What one source sets: a recipe, the user's config groups, or the command line."""

    settings: list[Setting] = field(default_factory=list)
    """In the order written, implied ones included."""
    choices: list[Choice] = field(default_factory=list)
    """Options of config groups, implied ones included."""
    notes: list[str] = field(default_factory=list)
    foreign_names: list[str] = field(default_factory=list)
    """Its keys that are another tool's, as written."""
    canonical_values: dict[str, Any] = field(default_factory=dict)
    """Set so far, by this source and those before it; by canonical name."""

    @property
    def foreign(self) -> bool:
        """Whether any key is another tool's."""
        return bool(self.foreign_names)

    @property
    def keys(self) -> set[str]:
        """The keys it sets or removes itself."""
        return {setting.key for setting in self.settings if not setting.implied}
