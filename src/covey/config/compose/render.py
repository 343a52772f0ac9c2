"""Writing a config so that it loads again, comparing two configs, and explaining a key."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from covey.config.compose.build import as_dict, flatten
from covey.config.groups.objectives import SETTINGS
from covey.config.groups.training import explanations, training_fields
from covey.config.keys import GROUPS, check_known, kinds
from covey.config.schema import Config
from covey.config.secrets import is_secret_key, without_secrets
from covey.config.values import BadKeyError, describe, members, show
from covey.former_paths import current

HEADER = """\
# The resolved config of a run. It can be run again: covey train --config THIS_FILE
# `defaults: []` means that it is complete: Covey's defaults are not added.
"""

_NOT_COMPARED = frozenset(
    {
        *("resume", "stop_after_steps", "overwrite", "output_dir", "run_name", "ignore_checks"),
        # Where a vLLM server listens: a resumed run may use another port or node.
        *("training.vllm_server_base_url", "training.vllm_server_host", "training.vllm_server_port"),
        *("training.vllm_group_port", "training.vllm_server_timeout"),
        # Where the final model is pushed.
        *("training.push_to_hub", "training.hub_model_id", "training.hub_revision", "training.hub_strategy"),
        *("training.hub_token", "training.hub_private_repo", "training.hub_always_push"),
        # Where metrics are logged besides the run directory.
        *("training.report_to", "training.project"),
    }
)
"""Keys that do not change what a run computes, besides those of `_NOT_COMPARED_GROUPS`."""

_NOT_COMPARED_GROUPS = ("profile.", "logging.", "launch.")

_INTERPOLATION = re.compile(r"(\\*)\$\{")
_OTHER_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
_LOOKS_LIKE_NUMBER = re.compile(r"[-+.]?\d")


def to_yaml(config: Config) -> str:
    """The config as YAML, in Covey's order; of `training` only the values set. It loads again as a recipe.

    Secret keys are left out, and `***` replaces secrets inside other texts.
    """
    content = {"defaults": [], **escape(without_secrets(as_dict(config)))}
    body: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    secret = [key for key, value in flatten(config).items() if isinstance(value, str) and value and is_secret_key(key)]
    return HEADER + (f"# Set, but left out as secret: {', '.join(secret)}\n" if secret else "") + body


def differences(a: Config, b: Config) -> list[tuple[str, Any, Any]]:
    """Every key in which two configs differ and that can change a run's numbers, as `(key, value in a, value in b)`.

    A `training` field that only one of them sets is compared with TRL's default, so a default written out is no
    difference. Secrets are not compared: a run's config file holds none.
    """
    left, right = _comparable(a), _comparable(b)
    return [
        (key, left.get(key), right.get(key)) for key in kinds() if is_compared(key) and left.get(key) != right.get(key)
    ]


def is_compared(key: str) -> bool:
    """Whether two runs that differ in this key are different runs."""
    return key not in _NOT_COMPARED and not key.startswith(_NOT_COMPARED_GROUPS)


@dataclass(frozen=True, slots=True)
class KeyDoc:
    """The explanation of a key."""

    key: str
    type: str
    """In words: `an integer or null`."""
    default: Any
    """The schema's default, or TRL's; groups chosen by default may set another. None for groups."""
    doc: str
    origin: str
    """`covey`, or `trl` for the fields of GRPOConfig."""
    choices: tuple[str, ...] = ()
    """The values that it takes, as they are written, where they can be listed."""


def document(key: str) -> KeyDoc:
    """Explain a key or a group. Raises a `ConfigError` for an unknown key; the message names the nearest ones."""
    check_known(key)
    if key in GROUPS:
        return KeyDoc(key, "a group of keys", None, _docs()[GROUPS[key].__name__, ""], "covey")
    if key not in kinds():
        raise BadKeyError(key, f" lies inside {key.rpartition('.')[0]}, whose keys are passed on as they are.")
    group, _, name = key.rpartition(".")
    if group == "training":
        field = training_fields()[name]
        return _key_doc(key, field.type, field.choices, field.default, _explained(name), "trl")
    owner = GROUPS.get(group, Config)
    (item,) = [found for found in dataclasses.fields(owner) if found.name == name]
    default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
    places = [item.metadata.get("declared", ("", "")), *((kind.__name__, name) for kind in owner.__mro__)]
    doc = next(_docs()[place] for place in places if place in _docs())
    return _key_doc(key, str(item.type), item.metadata.get("choices") or (), default, doc, "covey")


def _explained(name: str) -> str:
    return explanations().get(name, f"See `{name}` in the documentation of TRL's GRPOConfig.")


def _key_doc(key: str, kind: str, choices: tuple[Any, ...], default: Any, doc: str, origin: str) -> KeyDoc:
    words = f"{describe(kind)}: {', '.join(map(str, choices))}" if choices else describe(kind)
    listed = choices or ((True, False) if "bool" in members(kind) else ())
    listed = (*listed, None) if listed and "None" in members(kind) and None not in listed else listed
    return KeyDoc(key, words, default, doc, origin, tuple(map(show, listed)))


def _comparable(config: Config) -> Mapping[str, Any]:
    defaults = {f"training.{name}": field.default for name, field in training_fields().items()}
    return without_secrets({**defaults, **{key: _current_names(value) for key, value in flatten(config).items()}})


def _current_names(value: Any) -> Any:
    """A run may hold the former path of a part of Covey."""
    return (
        [*map(_current_names, value)]
        if isinstance(value, list)
        else current(value)
        if isinstance(value, str)
        else value
    )


def escape(value: Any) -> Any:
    """Escape `${`, so that it is not read as a reference when the file is loaded again."""
    if isinstance(value, str):
        return _INTERPOLATION.sub(lambda match: match[1] * 2 + r"\${", value)
    if isinstance(value, dict):
        return {name: escape(inner) for name, inner in value.items()}
    return [escape(inner) for inner in value] if isinstance(value, list) else value


class _Dumper(yaml.SafeDumper):
    """Writes lines of text as lines, and short lists on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    if style is None and _LOOKS_LIKE_NUMBER.match(value):
        style = "'"  # OmegaConf reads 1e5 as a number, plain YAML does not
    if _OTHER_LINE_ENDS.search(value):
        style = '"'  # escapes them; otherwise they are read as plain line ends
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    flow = all(not isinstance(item, list | dict) and "\n" not in str(item) for item in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=flow)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)


@cache
def _docs() -> Mapping[tuple[str, str], str]:
    """The docstrings of classes (`(class, "")`) and of their fields, read from the source."""
    found: dict[tuple[str, str], str] = {}
    for file in {inspect.getfile(group) for group in (Config, *GROUPS.values(), *SETTINGS.values())}:
        for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef):
                continue
            found[node.name, ""] = " ".join((ast.get_docstring(node) or "").split())
            for field, below in zip(node.body, node.body[1:], strict=False):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[node.name, name] = " ".join(text.split())
    return found
