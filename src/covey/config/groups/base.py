"""The base of the schema: a field with its bounds, and a frozen group that checks its fields."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from covey.config.values import check_choice, check_range, coerce


def option(
    default: Any = dataclasses.MISSING,
    *,
    choices: tuple[Any, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    live: str = "",
    refused: bool = False,
) -> Any:
    """A dataclass field with its allowed values.

    Args:
        default: of the field.
        choices: the possible values; empty for any.
        low: the least value.
        high: the greatest value.
        above: what the value must be above.
        live: when the field has an effect, as an expression of `covey.config.live`; empty for always.
        refused: whether setting it without effect is an error, as a run would go another way than asked for.
    """
    checks = {"choices": choices, "low": low, "high": high, "above": above}
    return field(default=default, metadata={**checks, "live": live, "refused": refused})


def both(first: str, second: str) -> str:
    """The expression of `live` that holds where both do; an empty one always holds."""
    return " and ".join(f"({one})" if " or " in one else one for one in (first, second) if one)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Checks every field against its own annotation and `option` when the object is made."""

    PREFIX: ClassVar[str] = ""
    LIVE: ClassVar[str] = ""
    """When any of its fields has an effect, besides what each says: see `option`."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if dataclasses.is_dataclass(value):  # a nested group, already checked
                continue
            key = self.PREFIX + item.name
            value = coerce(key, value, str(item.type))
            check_option(key, value, item)
            object.__setattr__(self, item.name, value)


def check_option(key: str, value: Any, item: dataclasses.Field[Any]) -> None:
    """Raise a `BadKeyError` for a value out of the range, or none of the choices, of its field's `option`."""
    if item.metadata.get("choices"):
        check_choice(key, value, item.metadata["choices"])
    check_range(key, value, **{bound: item.metadata.get(bound) for bound in ("low", "high", "above")})
