"""`covey config --doc KEY`: what a key means, where it comes from, and what it is in this run."""

from __future__ import annotations

from covey.cli.composing import Request, value_of
from covey.config import document
from covey.config.keys import GROUPS
from covey.config.landing import Spelling, UnfitError
from covey.config.spelling import look_up
from covey.config.values import show

_ORIGINS = {"covey": "Covey", "trl": "TRL's GRPOConfig"}


def explain(name: str, request: Request) -> str:
    """The explanation of a key, or of another tool's name for one.

    Raises:
        ConfigError: nobody knows this name; the message names the nearest ones. Or the run cannot be composed.
    """
    known = look_up(name)
    if known is not None and not known.key:
        return f"{name} {_without_key(known, name)}\n"
    key = name if known is None or known.own else known.key
    doc = document(key)
    facts = {"type": doc.type, "default": show(doc.default), "origin": _ORIGINS[doc.origin]}
    if key in GROUPS:
        facts = {"type": doc.type}
    else:
        composed = request.compose()
        facts["here"] = f"{show(value_of(composed.config, key))}, {_place(composed.origins.get(key))}"
    lines = [key, *(f"  {fact:<8} {text}" for fact, text in facts.items()), "", doc.doc]
    if key != name:
        meant = "stands for this key" if known is None or known.convert is None else "is converted into this key"
        lines.insert(0, f"{name} is another tool's name; it {meant}:")
    return "\n".join(lines) + "\n"


def _place(origin: str | None) -> str:
    return "as Covey's defaults and groups have it" if origin is None else f"set by {origin}"


def _without_key(known: Spelling, name: str) -> str:
    """What becomes of a name that stands for no single key."""
    try:
        landing = known.convert(True) if known.convert is not None else None
    except UnfitError:
        landing = None
    if landing is not None and landing.ignored:
        return "is another tool's name for something that has no effect here: it is ignored, and a note says so."
    if landing is not None and landing.not_done:
        return "is another tool's name for something that Covey does not do: a run goes without it, and a note says so."
    return f"is another tool's name; what it becomes goes by its value: `covey config {name}=VALUE --diff` shows it."
