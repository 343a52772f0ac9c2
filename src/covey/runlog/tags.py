"""`tags.json`: what the user notes about a run, the only thing that `covey view` writes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covey.errors import ConfigError, RunDirectoryError
from covey.runlog.directory import RunDirectory
from covey.runlog.files import guard_disk, read_json, writable, write_atomically

MOST_TAGS, TAG_LENGTH, NOTE_LENGTH = 20, 40, 10_000
"""Tags of a run, and characters of a tag and of a note."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags and the note of a run."""

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
