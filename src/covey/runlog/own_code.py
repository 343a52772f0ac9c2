"""The files of the user's own parts: their copies in the run directory, and which of them have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from covey.importing import code_files, code_hashes
from covey.runlog.directory import RunDirectory
from covey.runlog.files import write_atomically


def record_environment(run: RunDirectory, names: Iterable[str]) -> None:
    """Write `environment.json`, and copy the files of these parts into the run directory.

    A copy's name has the beginning of its hash; copies of earlier versions stay.
    """
    names = list(names)
    run.write_environment(code_hashes(names))
    for file in set(code_files(names).values()):
        content = file.read_bytes()
        with run.guard(run.code.name):
            write_atomically(run.code / f"{file.stem}-{hashlib.sha256(content).hexdigest()[:8]}{file.suffix}", content)


def edited(known: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts whose file has another content than it had.

    Args:
        known: from an earlier `code_hashes`.
        now: from `code_hashes`.
    """
    return [name for name, digest in now.items() if known.get(name, digest) != digest]
