"""`--json`: what a command shows as tables, as one JSON document on stdout, for scripts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from covey.config.secrets import redact_value
from covey.runlog.files import writable


def add_json(parser: argparse.ArgumentParser, what: str = "print JSON in place of tables, for scripts") -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", dest="as_json", action="store_true", help=what)


def print_json(content: Any) -> None:
    """Print values, and dataclasses of them, as JSON: what is not finite as null, secrets as `***`."""
    print(writable(json.dumps(redact_value("", _plain(content)), indent=2, ensure_ascii=False, allow_nan=False)))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, PurePath) else value
