"""The code of the user's own parts: its copies in the run directory, and which of them have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from covey.importing import code_hashes, code_of
from covey.runlog.directory import RunDirectory
from covey.runlog.files import write_atomically


def record_environment(run: RunDirectory, names: Iterable[str]) -> None:
    """Write `environment.json`, and copy the code of these parts into the run directory.

    A copy's name has the beginning of its hash; copies of earlier versions stay.
    """
    names = list(names)
    run.write_environment(code_hashes(names))
    for file, content in set(code_of(names).values()):
        name, digest = Path(file), hashlib.sha256(content).hexdigest()
        with run.guard(run.code.name):
            write_atomically(run.code / f"{name.stem}-{digest[:8]}{name.suffix}", content)


def edited(known: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts whose code is not what it was."""
    return [name for name, digest in now.items() if known.get(name, digest) != digest]
