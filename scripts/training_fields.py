"""Take the snapshot of TRL's `GRPOConfig` fields that `covey.config` reads instead of importing TRL (and so torch).

Run it after raising the pinned version of TRL: `python scripts/training_fields.py`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "src" / "covey" / "config" / "groups" / "training_fields.json"


def snapshot() -> dict[str, Any]:
    """Every field of the installed TRL's `GRPOConfig` as plain data, in TRL's order.

    Returns:
        `trl`, `transformers` (versions), `about`, and `fields`: name to `type`, `default`, `choices` where the type
        is an enum or the field lists them, and `grpo`: the names that `SFTConfig` lacks.
    """
    import transformers
    import trl

    fields: dict[str, Any] = {}
    for field in dataclasses.fields(trl.GRPOConfig):
        hint = typing.get_type_hints(trl.GRPOConfig).get(field.name) if isinstance(field.type, str) else field.type
        entry: dict[str, Any] = {"type": type_text(hint), "default": _default(field)}
        choices = _enum_values(hint) or [str(choice) for choice in field.metadata.get("choices", ())]
        if choices:
            entry["choices"] = choices
        fields[field.name] = entry
    return {
        "about": "Names, types and defaults of trl.GRPOConfig's fields, made by scripts/training_fields.py.",
        "trl": trl.__version__,
        "transformers": transformers.__version__,
        "grpo": " ".join(
            name for name in fields if name not in {one.name for one in dataclasses.fields(trl.SFTConfig)}
        ),
        "fields": fields,
    }


def type_text(hint: Any) -> str:
    """A type as text that reads the same under every Python version, with enums as the strings that spell them."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        members = dict.fromkeys(type_text(member) for member in typing.get_args(hint))
        return " | ".join(sorted(members, key=lambda member: member == "None"))
    if origin is typing.Literal:
        return " | ".join(str(value) for value in typing.get_args(hint))
    if origin is not None:
        inside = ", ".join(type_text(member) for member in typing.get_args(hint))
        return f"{origin.__name__}[{inside}]"
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "str"
    return str(getattr(hint, "__name__", hint))


def _enum_values(hint: Any) -> list[str]:
    members = typing.get_args(hint) or (hint,)
    enums = [m for m in members if isinstance(m, type) and issubclass(m, enum.Enum)]
    return [str(item.value) for found in enums for item in found]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    value = None if field.default is dataclasses.MISSING else field.default
    return value.value if isinstance(value, enum.Enum) else value


def main() -> None:
    """Write the snapshot where `covey.config` reads it."""
    TARGET.write_text(json.dumps(snapshot(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
