"""`covey config --doc KEY`: the meaning of a key, its origin, and its value in this run."""

from __future__ import annotations

from covey.cli.config_arguments import Request, value_of
from covey.config import document
from covey.config.aliases.alias_result import Alias, AliasValueError
from covey.config.aliases.aliases import look_up
from covey.config.keys import GROUPS
from covey.config.secrets import redact_value
from covey.config.values import show

_ORIGINS = {"covey": "Covey", "trl": "TRL's GRPOConfig"}


def explain(name: str, request: Request) -> str:
    """The explanation of a key, or of another tool's name for one.

    Raises:
        ConfigError: an unknown name (the message names the nearest ones), or the run cannot be composed.
    """
    known = look_up(name)
    if known is not None and not known.key:
        return f"{name} {_without_key(known, name)}\n"
    key = name if known is None or known.native else known.key
    doc = document(key)
    fields = {"type": doc.type, "default": show(doc.default), "origin": _ORIGINS[doc.origin]}
    if key in GROUPS:
        fields = {"type": doc.type}
    else:
        composed = request.compose()
        origin = composed.origins.get(key)
        place = "from Covey's defaults and groups" if origin is None else f"set by {origin}"
        fields["here"] = f"{show(redact_value(key, value_of(composed.config, key)))}, {place}"
    lines = [key, *(f"  {field:<8} {text}" for field, text in fields.items()), "", doc.doc]
    if key != name:
        meaning = "stands for this key" if known is None or known.convert is None else "is converted into this key"
        lines.insert(0, f"{name} is another tool's name; it {meaning}:")
    return "\n".join(lines) + "\n"


def _without_key(known: Alias, name: str) -> str:
    """What happens to an alias that stands for no single key."""
    try:
        result = known.convert(True) if known.convert is not None else None
    except AliasValueError:
        result = None
    if result is not None and result.ignored:
        return "is another tool's name for something that has no effect here: it is ignored, with a note."
    if result is not None and result.unsupported:
        return "is another tool's name for something not supported by Covey: it is ignored, with a note."
    return f"is another tool's name; what it sets depends on its value: `covey config {name}=VALUE --diff` shows it."
