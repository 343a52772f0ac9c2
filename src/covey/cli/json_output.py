"""`--json`: what a command shows as tables, as one JSON document on stdout, for scripts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import PurePath
from typing import IO, Any

from covey.cli.streams import screen
from covey.config.secrets import redact_value
from covey.runlog.files import writable

_OUT: ContextVar[IO[str] | None] = ContextVar("where JSON goes, if stdout leads to stderr", default=None)


def add_json(parser: argparse.ArgumentParser, what: str = "print JSON in place of tables, for scripts") -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", dest="as_json", action="store_true", help=what)


@contextmanager
def json_alone(wanted: bool = True) -> Iterator[None]:
    """Context manager: stdout is for `print_json` alone. What else prints there (a user's reward file, a library, a
    process that is started) prints on stderr."""
    if not wanted or sys.stderr is None:
        yield
        return
    with ExitStack() as stack:
        out: IO[str] = sys.stdout
        try:
            own = out.fileno() == 1
        except (OSError, ValueError):  # a stream of Python alone
            own = False
        if own:
            out.flush()
            out = stack.enter_context(screen(os.dup(1), closefd=True))
            os.dup2(2, 1)
            stack.callback(os.dup2, out.fileno(), 1)
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.callback(_OUT.reset, _OUT.set(out))
        yield


def print_json(content: Any) -> None:
    """Print values, and dataclasses of them, as JSON: see `json_text`."""
    print(json_text(content), file=_OUT.get() or sys.stdout, flush=True)


def json_text(content: Any) -> str:
    """Values, and dataclasses of them, as JSON: what is not finite as null, secrets as `***`."""
    # in ASCII, so that names from folders of others do nothing to a terminal
    return json.dumps(redact_value("", _plain(content)), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {writable(str(name)): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return writable(str(value)) if isinstance(value, str | PurePath) else value
