"""The version, in this one place: the package, the wheel and `covey --version` read it here."""

from __future__ import annotations

__version__ = "0.1.0"
