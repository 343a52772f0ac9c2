"""What is noted about a run besides its metrics: tags, how it ended, and the code of the user's own parts."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covey.config.secrets import redact
from covey.errors import ConfigError, CoveyError, RunDirectoryError, one_line
from covey.importing import code_hashes, code_of
from covey.runlog.directory import RunDirectory
from covey.runlog.files import guard_disk, read_json, writable, write_atomically

MOST_TAGS, TAG_LENGTH, NOTE_LENGTH = 20, 40, 10_000
"""Tags of a run, and characters of a tag and of a note."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags and the note of a run. Their file is the only thing that `covey view` writes."""

    tags: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, tags: Any, note: Any) -> Tags:
        """Tags and a note as the user gave them: without repetitions and white space around them. Raises a
        `ConfigError` if they are no texts, too long, or too many."""
        if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
            raise ConfigError("The tags of a run are a list of texts.")
        if not isinstance(note, str) or len(note) > NOTE_LENGTH:
            raise ConfigError(f"The note of a run is a text of at most {NOTE_LENGTH:,} characters.")
        kept = tuple(dict.fromkeys(tag for text in tags if (tag := " ".join(writable(text).split()))))
        if len(kept) > MOST_TAGS or any(len(tag) > TAG_LENGTH or not tag.isprintable() for tag in kept):
            raise ConfigError(
                f"A run has at most {MOST_TAGS} tags, each of at most {TAG_LENGTH} printable characters; longer texts "
                "go into its note."
            )
        return cls(kept, writable(note).strip())


def read_tags(folder: Path) -> Tags:
    """The tags and the note of a run; empty without any. Raises a `RunDirectoryError` if the file is damaged."""
    path = RunDirectory(folder).tags
    try:
        content = read_json(path)
        return Tags.of(content["tags"], content["note"])
    except FileNotFoundError:
        return Tags()
    except (ValueError, KeyError, TypeError, OSError, ConfigError) as error:
        raise RunDirectoryError(f"{path} does not hold tags and a note ({error}). Mend it, or delete it.") from error


def write_tags(folder: Path, tags: Tags) -> None:
    """Replace the tags and the note of a run; empty ones delete the file. Raises a `RunDirectoryError` if they cannot
    be written."""
    path = RunDirectory(folder).tags
    with guard_disk(path.name, folder, elsewhere="copy the run to a place that may be written to"):
        if tags == Tags():
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, json.dumps(asdict(tags), ensure_ascii=False, indent=2) + "\n")


FINISHED, FAILED = "finished", "failed"
"""The values of `status` in `summary.json`. A run without the file is running, was stopped, or was killed."""


def has_failed(run: RunDirectory) -> bool:
    """Whether the last invocation of a run ended with an error.

    Older versions wrote the file of finished runs only, without a status; so does one count that cannot be read.
    """
    try:
        return bool(read_json(run.summary)["status"] == FAILED)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def write_failure(run: RunDirectory, error: BaseException) -> None:
    """Write `summary.json` of a run that ended with an error; the next invocation removes it."""
    failure = {
        "status": FAILED,
        "error": type(error).__name__,
        "message": redact(failure_text(error)),
        "traceback": redact("".join(traceback.format_exception(error))),
    }
    write_atomically(run.summary, writable(json.dumps(failure, indent=2, ensure_ascii=False)) + "\n")


def failure_text(error: BaseException) -> str:
    """What an error says: a `CoveyError` is a paragraph of its own, any other has its type before it."""
    return str(error) if isinstance(error, CoveyError) else f"{type(error).__name__}: {one_line(error)}"


def record_environment(run: RunDirectory, names: Iterable[str], used: Sequence[str] = ()) -> None:
    """Write `environment.json`, with settings that are used otherwise than the config has them, and copy the code of
    these parts into the run directory.

    A copy's name has the beginning of its hash; copies of earlier versions stay.
    """
    names = list(names)
    run.write_environment(code_hashes(names), used)
    for file, content in set(code_of(names).values()):
        name, digest = Path(file), hashlib.sha256(content).hexdigest()
        with run.guard(run.code.name):
            write_atomically(run.code / f"{name.stem}-{digest[:8]}{name.suffix}", content)


def edited(known: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts whose code is not what it was."""
    return [name for name, digest in now.items() if known.get(name, digest) != digest]
