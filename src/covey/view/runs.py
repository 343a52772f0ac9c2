"""The runs of a folder, read again only when their files have changed: as a list, and as the page of one."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from covey.advice import command
from covey.errors import ConfigError, CoveyError, RunDirectoryError, one_line
from covey.evaluation.comparison import metric_of
from covey.report.completion_findings import Evidence
from covey.report.findings import findings
from covey.report.load import RunRecord, data_of, model_of, objective_of, read_run
from covey.report.panels import axes
from covey.report.summary import Change, changes, evaluations, figure_of, how_it_ended, key_settings
from covey.report.tables import evaluation_rows, modes_rows
from covey.runlog import names
from covey.runlog.directory import FORMER, RunDirectory
from covey.runlog.evaluations import COMPLETIONS, SETTINGS, is_evaluation, read_evaluation, training_file
from covey.runlog.files import parse_json, writable
from covey.runlog.notes import FAILED, FINISHED, Tags, read_tags

logger = logging.getLogger(__name__)

TRAINING, PREPARING, STOPPED, EVALUATING = "training", "preparing", "stopped", "evaluating"
"""Statuses, besides finished and failed. An evaluation is evaluating, finished or stopped."""

DAMAGED = (
    *(CoveyError, ArithmeticError, AttributeError, LookupError, MemoryError),
    *(OSError, RecursionError, TypeError, ValueError),
)
"""What reading the files of a run can raise: any program may have written them."""


def damage_text(run: object, error: Exception) -> str:
    """What a page says of an error of reading the files of a run."""
    return f"A file of the run {run} cannot be read ({one_line(error)}): it was cut short or changed."


@contextlib.contextmanager
def damage_reported(run: object) -> Iterator[None]:
    """Turn every error of reading the files of a run into a RunDirectoryError.

    Args:
        run: its name or folder, for the message.
    """
    try:
        yield
    except CoveyError:
        raise
    except DAMAGED as error:
        raise RunDirectoryError(damage_text(run, error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run, or one evaluation outside of a run; unknown values are None."""

    id: str
    """Its path relative to the folder that was searched."""
    name: str
    path: str
    kind: str = "run"
    """`run` or `evaluation`."""
    status: str = STOPPED
    message: str | None = None
    """Why it failed, or why it cannot be read."""
    model: str | None = None
    data: str | None = None
    objective: str | None = None
    step: int | None = None
    max_steps: int | None = None
    metric: str | None = None
    """The held-out metric that decides the best evaluation, by its name after `eval/`."""
    grader: str | None = None
    """Of an accuracy."""
    value: float | None = None
    """At the last evaluation, with its 95% interval and the number of problems."""
    low: float | None = None
    high: float | None = None
    problems: int | None = None
    best: dict[str, float] | None = None
    """Step and value of the best evaluation, if it is above the first."""
    tokens: int | None = None
    """Tokens of prompts and completions, in training."""
    seconds: float | None = None
    """Of all steps and evaluations, over all invocations."""
    started: str | None = None
    """The first start, in ISO 8601."""
    tags: tuple[str, ...] = ()
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`, also strictly: what is not finite is None."""
        return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in asdict(self).items()}


def entry_of(folder: Path, identity: str) -> Entry:
    """The entry of a run or evaluation; of one that cannot be read, with the reason as its message."""
    own: dict[str, Any] = {"id": identity, "name": folder.absolute().name, "path": str(folder)}
    try:
        noted = read_tags(folder)
    except CoveyError as error:
        logger.warning("%s", error)
        noted = Tags()
    own |= asdict(noted)
    try:
        with damage_reported(folder):
            found = _evaluation(folder) if is_evaluation(folder) else _run(read_run(folder))
    except CoveyError as error:
        found = {"status": FAILED, "message": str(error)}
    return Entry(**own, **found)


def _text(value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def _run(record: RunRecord) -> dict[str, Any]:
    status, message = _status(record)
    config, spent = record.config, axes(record.rows)
    return {
        "status": status,
        "message": message,
        "model": _text(model_of(config)),
        "data": _text(data_of(config)),
        "objective": _text(objective_of(config)),
        "step": record.step,
        "max_steps": record.max_steps,
        "tokens": int(spent["tokens"][-1]) if spent["tokens"] else None,
        "seconds": spent["seconds"][-1] if spent["seconds"] else None,
        "started": _started(record),
        **_held_out(record),
    }


def _status(record: RunRecord) -> tuple[str, str | None]:
    status, _ = how_it_ended(record)
    if status == "running":
        return (TRAINING if record.rows else PREPARING), None
    return status, _text(record.summary.get("message")) if status == FAILED else None


def _held_out(record: RunRecord) -> dict[str, Any]:
    metric = record.metric
    found = evaluations(record) if metric else []
    if metric is None or not found:
        return {}
    held_out = names.held_out_sets(record.rows)[0]
    key = names.eval_name(held_out, metric)
    figure = figure_of(found[-1], held_out, metric)
    values = [(float(row[key]), int(row[names.STEP])) for row in found]
    best, step = max(values, key=lambda one: one[0] if math.isfinite(one[0]) else -math.inf)
    return {
        "metric": metric,
        "grader": record.grader if metric == names.ACCURACY else None,
        "value": figure.value,
        "low": figure.low,
        "high": figure.high,
        "problems": _problems(training_file(record.run.root, held_out, int(found[-1][names.STEP]))),
        "best": {"step": step, "value": best} if math.isfinite(best) and best > values[0][0] else None,
    }


def _problems(file: Path) -> int | None:
    """The number of problems of an evaluation of training: they are numbered from 0, and in order."""
    last = file.read_bytes().rstrip().rpartition(b"\n")[2] if file.is_file() else b""
    try:
        return int(parse_json(last)["problem"]) + 1
    except (ValueError, LookupError, TypeError):  # missing, or damaged, which a comparison reports
        return None


def _started(record: RunRecord) -> str | None:
    """From `environment.json`; of a run by an older version, the time of its config."""
    started = record.environment.get("started")
    if isinstance(started, str):
        return started
    config = record.run.config
    if not config.is_file():
        return None
    return datetime.fromtimestamp(config.stat().st_mtime, UTC).isoformat(timespec="seconds")


def _evaluation(folder: Path) -> dict[str, Any]:
    stored = read_evaluation(folder)
    settings, metric = stored.settings, metric_of(stored)
    figure = stored.summary.get(metric, {})
    busy = RunDirectory(folder).is_locked()
    return {
        "kind": "evaluation",
        "status": FINISHED if stored.done else EVALUATING if busy else STOPPED,
        "model": _text((settings.get("model") or {}).get("id")),
        "data": _text(settings.get("name")),
        "metric": metric,
        "grader": _text(settings.get("grader")),
        "problems": int((settings.get("data") or {}).get("problems") or 0) or None,
        "started": _text((settings.get("environment") or {}).get("started")),
        **figure,
    }


DEPTH = 4
"""Levels below the folder that are searched: `out/sweep/job` has two."""

_FILES = (
    *("config.yaml", "metrics.jsonl", "environment.json", "summary.json", "tags.json", "vocabulary.json"),
    *("completions", "evaluation", "final_model", "best_model", SETTINGS, COMPLETIONS),
)
"""What the list and the pages are made from; the time of a folder changes with the names in it."""

Signature = tuple[object, ...]
"""Equal as long as nothing that is shown of a run has changed."""


def existing(folder: Path) -> Path:
    """The folder, if it can be searched for runs.

    Raises:
        RunDirectoryError: it does not exist, is a file, or may not be read.
    """
    try:
        with os.scandir(folder):
            return folder
    except NotADirectoryError:
        problem = "is a file"
    except PermissionError:
        problem = "may not be read"
    except OSError:
        problem = "does not exist"
    raise RunDirectoryError(f"{folder} {problem}: name a run, or the folder that runs were written to (output_dir).")


def find_runs(folder: Path) -> dict[str, Path]:
    """The runs and the evaluations of their own in a folder, by their path relative to it; `.` is the folder itself.

    Evaluations in a run belong to it. A link to one of them counts; other links are not followed.
    """
    return {writable(path.relative_to(folder).as_posix()): path for path in _walk(folder, DEPTH)}


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, or one that is being prepared: some `config.yaml` alone is not one."""
    run = RunDirectory(folder)
    if run.metrics.is_file():
        return True
    if run.config.is_file():
        return run.environment.is_file() or run.is_locked() or bool(run.checkpoints())
    return run.is_locked() and run.is_empty()


def signature(folder: Path) -> Signature:
    """The times and sizes of what is shown of a run, and whether it is being written."""
    stats = tuple(_stat(folder / name) for name in _FILES)
    evaluations = tuple(
        (entry.name, _stat(folder / "evaluation" / entry.name)) for entry in _folders(folder / "evaluation")
    )
    return (*stats, evaluations, RunDirectory(folder).is_locked())


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if _is_shown(folder):
        yield folder
        yield from (former for former in sorted(folder.glob(f"{FORMER}*")) if _is_shown(former))
        return
    for entry in _folders(folder) if depth else ():
        yield from _walk(folder / entry.name, 0 if entry.is_symlink() else depth - 1)


def _is_shown(folder: Path) -> bool:
    """Whether it is a run, or an evaluation: some `settings.json` alone is none."""
    try:
        return is_run(folder) or (is_evaluation(folder) and (folder / COMPLETIONS).exists())
    except DAMAGED:  # deleted meanwhile, not ours to read, or a checkpoint that is none
        return False


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".") and Path(entry).is_dir()]
    except OSError:  # deleted meanwhile, or not ours to read
        return []
    return sorted(found, key=lambda entry: entry.name)


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


T = TypeVar("T")


class Cache(Generic[T]):
    """The newest results, each with the state it was made from; may be used by several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[object, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, state: object, make: Callable[[], T]) -> T:
        """The result, made if there is none or its state is another one, such as the signatures of files."""
        with self._lock:
            before = self._kept.get(key)
            if before is not None and before[0] == state:
                self._kept.move_to_end(key)
                return before[1]
        made = make()
        with self._lock:
            self._kept[key] = (state, made)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


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


def run_page(record: RunRecord) -> dict[str, Any]:
    """Summary, findings, settings, evaluations and config of a run."""
    changed = changes(record)
    return {
        "title": record.title,
        "ended": how_it_ended(record)[1],
        "traceback": record.summary.get("traceback"),
        "changes": [_change(one) for one in changed],
        "findings": [asdict(one) for one in findings(Evidence.of(record, changed))],
        "settings": [list(pair) for pair in key_settings(record)],
        "config": yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True) if record.config else "",
        "evaluations": [
            {
                "set": row.label,
                "weights": row.state,
                "sampling": row.sampling,
                "problems": row.problems,
                "samples": row.samples,
                "text": row.text,
                "folder": row.folder,
            }
            for row in evaluation_rows(record.run)
        ],
        "modes": [asdict(row) for row in modes_rows(record.rows)],
    }


def _change(one: Change) -> dict[str, Any]:
    before, after, difference = one.values
    percent = one.in_percent
    return {
        "what": one.what,
        "steps": list(one.steps),
        "before": before,
        "after": after,
        "texts": list(one.texts),
        "difference": difference,
        "verdict": one.verdict,
        "tested": one.paired.found is not None,
        "test": one.test_text,
        "percent": percent and [asdict(end) for end in percent],
    }
