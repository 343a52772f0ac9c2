"""The runs of a folder, read again only when their files have changed."""

from __future__ import annotations

from pathlib import Path

from covey.advice import command
from covey.errors import ConfigError
from covey.report.load import RunRecord, read_run
from covey.view.cache import Cache
from covey.view.discovery import Signature, existing, find_runs, signature
from covey.view.entries import Entry, entry_of


class UnknownRunError(ConfigError):
    """No run has this id."""


class RunStore:
    """The runs of a folder; may be used by several threads.

    Raises:
        ConfigError: the folder does not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = existing(root)
        self._found: dict[str, Path] = {}
        self._entries: Cache[Entry] = Cache(10_000)
        self._records: Cache[RunRecord] = Cache(8)  # the metrics of a long run take tens of megabytes

    def scan(self) -> dict[str, Path]:
        """The runs and evaluations that are there now, by id."""
        self._found = find_runs(self.root)
        return self._found

    def signatures(self) -> dict[str, Signature]:
        """Of every run that is there now, what changes when its files do."""
        return {identity: signature(path) for identity, path in self.scan().items()}

    def path(self, identity: str) -> Path:
        """The folder of a run.

        Raises:
            UnknownRunError: there is none with this id. Only folders that hold runs have one.
        """
        path = self._found.get(identity)
        if path is None or not path.is_dir():
            path = self.scan().get(identity)
        if path is None:
            raise UnknownRunError(f"{self.root} holds no run {identity!r}: it may have been deleted or renamed.")
        return path

    def entries(self) -> list[Entry]:
        """The list of runs, the newest first."""
        found = [self._entry(identity, path) for identity, path in self.scan().items()]
        return sorted(found, key=lambda one: (one.started or "", one.id), reverse=True)

    def entry(self, identity: str) -> Entry:
        """One line of the list; raises as `path`."""
        return self._entry(identity, self.path(identity))

    def record(self, identity: str) -> RunRecord:
        """The metrics, config and summary of a run; raises as `path`, and as `read_run`."""
        path = self.path(identity)
        return self._records.get(path, signature(path), lambda: read_run(path))

    def select(self, name: str) -> Entry:
        """The run that a command line names: by its path, its id, or its name where only one has it.

        Raises:
            ConfigError: there is none, or several.
        """
        path = Path(name)
        if "." in find_runs(path):
            return entry_of(path, name)
        entries = self.entries()
        matches = [one for one in entries if one.id == name] or [one for one in entries if one.name == name]
        if len(matches) > 1:
            ids = ", ".join(sorted(one.id for one in matches))
            raise ConfigError(f"{self.root} holds several runs called {name}: {ids}. Name one of these.")
        if not matches:
            listed = command("runs {folder}", folder=self.root)
            raise UnknownRunError(f"There is no run {name} in {self.root}. `{listed}` lists its runs.")
        return matches[0]

    def _entry(self, identity: str, path: Path) -> Entry:
        return self._entries.get(path, signature(path), lambda: entry_of(path, identity))
