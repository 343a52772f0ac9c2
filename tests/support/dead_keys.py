"""What commands print of the keys without effect."""

from __future__ import annotations

from typing import Any

from covey.cli.config_arguments import _FACTS as FACTS
from covey.cli.config_arguments import lines_without_effect
from covey.config import Composed, compose

__all__ = ["FACTS", "dead_lines", "dead_lines_of"]


def dead_lines(*arguments: Any) -> list[str]:
    """The lines on keys without effect of a run with these arguments of `compose`."""
    return dead_lines_of(compose(*arguments))


def dead_lines_of(composed: Composed) -> list[str]:
    """Those of a composed config."""
    return lines_without_effect(composed)
