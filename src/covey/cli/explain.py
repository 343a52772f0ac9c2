"""`covey config --doc KEY`: the meaning of a key, its origin, and its value in this run."""

from __future__ import annotations

from covey.cli.config_arguments import Request, value_of
from covey.config import document
from covey.config.aliases.resolve import explain_alias
from covey.config.keys import GROUPS
from covey.config.secrets import redact_value
from covey.config.values import show

_ORIGINS = {"covey": "Covey", "trl": "TRL's GRPOConfig"}


def explain(name: str, request: Request) -> str:
    """The explanation of a key, or of another tool's name for one. Raises a `ConfigError` for an unknown name, naming
    the nearest ones, or if the run cannot be composed."""
    key, alias = explain_alias(name)
    if not key:
        return f"{alias}\n"
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
    if alias:
        lines.insert(0, alias)
    return "\n".join(lines) + "\n"
