"""The fields of the group `training`: a committed snapshot of TRL's `GRPOConfig`, and Covey's own, without torch."""

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
    """One field of the group `training`."""

    name: str
    type: str
    """The type as text, for instance `float | None`."""
    default: Any
    choices: tuple[str, ...] = ()
    """The possible values where TRL names them in an enum."""


OWN: Mapping[str, tuple[Field, str]] = MappingProxyType(
    {
        field.name: (field, text)
        for field, text in (
            (
                Field("staleness", "int", 0),
                "Generation rounds that completions may be behind the weights that train on them: rounds are written "
                "ahead while the policy learns. 0 generates and learns in turns.",
            ),
            (
                Field("async_order", "str", "sampler", ("sampler", "arrival")),
                "Which completions join a round when training.staleness is above 0: those of its prompts in the "
                "sampler's order, or whole groups in the order in which they are done.",
            ),
            (
                Field("async_partial", "str", "finish", ("finish", "continue")),
                "What becomes of unfinished completions at a weight sync when training.staleness is above 0: they are "
                "finished with the old weights, or go on with the new ones.",
            ),
            (
                Field("schedule", "str | None", None),
                "The schedule.jsonl of an asynchronous run, which this run replays on the local engine.",
            ),
            (
                Field("vllm_lora_sync", "str", "auto", ("auto", "adapter", "merge")),
                "What a weight sync sends to vLLM in LoRA training: the adapter alone, or whole weights with the "
                "adapter merged. auto sends the adapter where vLLM takes it, and logs the reason where not.",
            ),
        )
    }
)
"""Covey's own fields of the group `training`, each with its help."""


@cache
def fields() -> Mapping[str, Field]:
    """Every field by name: TRL's in TRL's order, then Covey's own."""
    entries = json.loads(PATH.read_text(encoding="utf-8"))["fields"]
    return MappingProxyType(
        {
            name: Field(name, entry["type"], entry["default"], tuple(entry.get("choices", ())))
            for name, entry in entries.items()
        }
        | {name: field for name, (field, _) in OWN.items()}
    )


@cache
def explanations() -> Mapping[str, str]:
    """The help of each field: TRL's from the sources of the installed TRL and transformers, without importing them.

    Fields without help are left out, as are all when TRL is not installed.
    """
    found: dict[str, str] = {}
    for package, file in _EXPLAINED_IN:
        spec = find_spec(package)
        source = Path(spec.origin).parent / file if spec is not None and spec.origin else None
        if source is not None and source.is_file():
            found |= _helps(source)
    return MappingProxyType(found | {name: text for name, (_, text) in OWN.items()})


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
