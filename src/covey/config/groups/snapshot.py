"""The committed snapshot of TRL's `GRPOConfig` fields: names, types and defaults, without importing torch."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

PATH = Path(__file__).with_name("training_fields.json")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of TRL's `GRPOConfig`."""

    name: str
    type: str
    """The type as text, for instance `float | None`."""
    default: Any
    choices: tuple[str, ...] = ()
    """The possible values where TRL names them in an enum."""


@cache
def fields() -> Mapping[str, Field]:
    """Every field by name, in TRL's order."""
    entries = json.loads(PATH.read_text(encoding="utf-8"))["fields"]
    return MappingProxyType(
        {
            name: Field(name, entry["type"], entry["default"], tuple(entry.get("choices", ())))
            for name, entry in entries.items()
        }
    )


@cache
def explanations() -> Mapping[str, str]:
    """The help of each field from the sources of the installed TRL and transformers, without importing them.

    Fields without help are left out, as are all when TRL is not installed.
    """
    found: dict[str, str] = {}
    for package, file in _EXPLAINED_IN:
        spec = find_spec(package)
        source = Path(spec.origin).parent / file if spec is not None and spec.origin else None
        if source is not None and source.is_file():
            found |= _helps(source)
    return MappingProxyType(found)


_EXPLAINED_IN = (
    ("transformers", "training_args.py"),
    ("trl", "trainer/base_config.py"),
    ("trl", "trainer/grpo_config.py"),
)


def _helps(source: Path) -> dict[str, str]:
    """The `help` of every dataclass field in a file, later ones over earlier ones."""
    helps = {}
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if keyword.arg == "metadata" and isinstance(keyword.value, ast.Dict):
                    for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                        if isinstance(key, ast.Constant) and key.value == "help" and isinstance(value, ast.Constant):
                            helps[node.target.id] = " ".join(str(value.value).replace("%%", "%").split())
    return helps
