"""The version, read by the package, the wheel and `covey --version`."""

from __future__ import annotations

__version__ = "0.1.0"
