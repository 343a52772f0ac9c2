"""Evaluations on disk: `settings.json`, `completions.jsonl` and, once finished, `summary.json`.

Each has a folder, those of a run in `evaluation/`. `completions.jsonl` is appended to, so that a stopped evaluation can
resume. Training writes the completions only, to `evaluation/<set>-step-<N>.jsonl`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.errors import RunDirectoryError
from covey.runlog.directory import RunDirectory
from covey.runlog.files import guard_disk, json_line, parse_json, read_json, write_atomically

EVALUATION_FORMAT = 1
"""Bumped when older versions can no longer read an evaluation."""

logger = logging.getLogger(__name__)

_ESTIMATE = ("value", "low", "high")
_OF_TRAINING = re.compile(r"(.+)-step-(\d+)")
SETTINGS, COMPLETIONS, SUMMARY = "settings.json", "completions.jsonl", "summary.json"


@dataclass(frozen=True, slots=True)
class StoredEvaluation:
    """One evaluation on disk."""

    folder: Path
    """Its folder; for one made during training, the file with its completions."""
    settings: dict[str, Any]
    """The model, data, sampling parameters, seed and versions."""
    summary: dict[str, dict[str, float]]
    """Metric to `value`, `low` and `high`, NaN where undefined; empty until finished."""

    @property
    def name(self) -> str:
        return self.folder.stem if self.of_training else self.folder.name

    @property
    def of_training(self) -> bool:
        """Whether it was made during training."""
        return self.folder.suffix == ".jsonl"

    @property
    def done(self) -> bool:
        """Whether it is finished, with all completions and results."""
        return bool(self.summary)

    def completions(self) -> Iterator[dict[str, Any]]:
        """The completions so far, in the order of writing."""
        yield from read_completions(self.folder)


def training_file(run_dir: Path, set_name: str, step: int) -> Path:
    """The file with the completions of an evaluation of training."""
    return RunDirectory(run_dir).evaluation / f"{set_name}-step-{step:06d}.jsonl"


def training_file_names(file: Path) -> tuple[str, int] | None:
    """The set and the step of an evaluation of training, from the name of its file; None if it is not one."""
    named = _OF_TRAINING.fullmatch(file.stem)
    return (named[1], int(named[2])) if named and file.suffix == ".jsonl" else None


def training_files(run_dir: Path) -> list[tuple[str, int, Path]]:
    """The evaluations of training in a run directory: set, step and file, by set and step."""
    root = RunDirectory(run_dir).evaluation
    found = [(named, path) for path in root.glob("*-step-*.jsonl") if (named := training_file_names(path))]
    return sorted((*named, path) for named, path in found)


def is_evaluation(folder: Path) -> bool:
    """Whether this folder holds an evaluation, finished or not."""
    return (folder / SETTINGS).is_file()


def read_evaluation(folder: Path) -> StoredEvaluation:
    """Read an evaluation's settings and results.

    Raises:
        RunDirectoryError: it is not an evaluation, cannot be read, or has another format.
    """
    settings = _read(folder / SETTINGS)
    stored = settings.get("format")
    if stored != EVALUATION_FORMAT:
        raise RunDirectoryError(
            f"{folder / SETTINGS} says that this evaluation has format {stored!r}, but this version of Covey reads "
            f"format {EVALUATION_FORMAT}. Use the version of Covey that wrote it, or evaluate again."
        )
    summary: Any = _read(folder / SUMMARY).get("metrics") if (folder / SUMMARY).is_file() else {}
    try:
        figures = {
            name: {key: math.nan if estimate.get(key) is None else float(estimate[key]) for key in _ESTIMATE}
            for name, estimate in summary.items()
        }
        if figures:
            int(settings["num_samples"]), int(settings["data"]["problems"]), str(settings["name"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise RunDirectoryError(
            f"{folder} is damaged: {SETTINGS} or {SUMMARY} is not as `covey eval` wrote it. Delete the folder and "
            "evaluate again."
        ) from None
    return StoredEvaluation(folder, settings, figures)


def list_evaluations(run_dir: Path, *, skip_damaged: bool = False) -> list[StoredEvaluation]:
    """The finished evaluations in a run directory, oldest first.

    Args:
        skip_damaged: skip those that cannot be read, with a warning.

    Raises:
        RunDirectoryError: one of them cannot be read.
    """
    root = RunDirectory(run_dir).evaluation
    folders = [path.parent for path in root.glob(f"*/{SUMMARY}")] if root.is_dir() else []
    folders.sort(key=lambda folder: ((folder / SUMMARY).stat().st_mtime_ns, folder.name))
    found = []
    for folder in folders:
        try:
            found.append(read_evaluation(folder))
        except RunDirectoryError as error:
            if not skip_damaged:
                raise
            logger.warning("Skipped: %s", error)
    return found


@contextlib.contextmanager
def writing_evaluation(folder: Path) -> Iterator[None]:
    """Lock the folder of an evaluation against other writers; creates the folder.

    Raises:
        RunDirectoryError: another process is writing here, or the folder cannot be created.
    """
    instead = "Wait until that evaluation is done, stop it, or give another folder with --out."
    with _guard(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with RunDirectory(folder).lock("the evaluation", instead):
        for leftover in folder.glob(".*.tmp"):  # of a process that was killed while writing
            leftover.unlink()
        yield


def begin_evaluation(folder: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> list[dict[str, Any]]:
    """Start or resume an evaluation; returns its completions so far.

    An incomplete last line is removed.

    Args:
        folder: of the evaluation.
        settings: what identifies it.
        overwrite: delete one with other settings.

    Raises:
        RunDirectoryError: the folder holds an evaluation with other settings, or cannot be written.
    """
    with _guard(folder):
        if not is_evaluation(folder):
            if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
                raise RunDirectoryError(
                    f"{folder} holds files, but no evaluation ({SETTINGS} is missing). Give another folder with --out."
                )
            _write_settings(folder, settings)
            (folder / COMPLETIONS).touch()
            return []
        there = read_evaluation(folder).settings
        differ = _differences(there, _to_compare(settings))
        if differ and overwrite:
            _begin_again(folder, settings, [])
            return []
        if differ:
            raise RunDirectoryError(
                f"{folder} holds an evaluation with other settings ({'; '.join(differ)}). Give another folder with "
                "--out, or replace that evaluation with --overwrite."
            )
        found = list(read_completions(folder))
        write_atomically(folder / COMPLETIONS, "".join(map(json_line, found)))
        return found


def extend_evaluation(
    folder: Path, settings: Mapping[str, Any], on_first: Callable[[int], Mapping[str, Any]], kept: Callable[[int], int]
) -> None:
    """Make an evaluation on the first of these problems, if there is one, an unfinished one on all of them.

    Args:
        folder: of the evaluation; unchanged where it holds none, or one with other settings.
        settings: of the evaluation on all problems.
        on_first: from a number of problems, the settings of the same evaluation on the first ones only.
        kept: from the number of completions so far, that of those to resume from.

    Raises:
        RunDirectoryError: it is damaged, or cannot be written.
    """
    if not is_evaluation(folder):
        return
    there = read_evaluation(folder).settings
    count, wanted = (_problems(one) for one in (there, settings))
    if not 0 < count < wanted or _differences(there, _to_compare(on_first(count))):
        return
    found = list(read_completions(folder))
    with _guard(folder):
        _begin_again(folder, settings, found[: kept(len(found))])


def append_completions(folder: Path, completions: Sequence[Mapping[str, Any]]) -> None:
    """Append completions to an evaluation."""
    with _guard(folder), (folder / COMPLETIONS).open("a", encoding="utf-8") as file:
        file.write("".join(map(json_line, completions)))


def finish_evaluation(folder: Path, metrics: Mapping[str, tuple[float, float, float]]) -> None:
    """Write the results, each `(value, low, high)`, which finishes the evaluation."""
    figures = {
        name: dict(zip(_ESTIMATE, (x if math.isfinite(x) else None for x in estimate), strict=True))
        for name, estimate in metrics.items()
    }
    with _guard(folder):
        content = {"format": EVALUATION_FORMAT, "metrics": figures}
        write_atomically(folder / SUMMARY, json.dumps(content, indent=2) + "\n")


def read_completions(folder: Path) -> Iterator[dict[str, Any]]:
    """The completions of an evaluation; an incomplete last line is skipped.

    Raises:
        RunDirectoryError: a line before the last is not a JSON object.
    """
    path = folder if folder.suffix == ".jsonl" else folder / COMPLETIONS
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for number, line in enumerate(lines[:-1], start=1):  # after the last line break: empty, or incomplete
        try:
            yield dict(parse_json(line))
        except (ValueError, TypeError):
            raise RunDirectoryError(
                f"Line {number} of {path} is not a JSON object, so the evaluation is damaged. Delete {folder} and "
                "evaluate again."
            ) from None


def _begin_again(folder: Path, settings: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> None:
    (folder / SUMMARY).unlink(missing_ok=True)  # if stopped in between, it is an unfinished one with the old settings
    write_atomically(folder / COMPLETIONS, "".join(map(json_line, kept)))
    _write_settings(folder, settings)


def _write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    wanted = {"format": EVALUATION_FORMAT, **settings}
    write_atomically(folder / SETTINGS, json.dumps(wanted, indent=2, ensure_ascii=False) + "\n")


def _to_compare(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are read back."""
    return {"format": EVALUATION_FORMAT, "episodes": None, **json.loads(_text(settings))}


def _problems(settings: Mapping[str, Any]) -> int:
    count = (settings.get("data") or {}).get("problems")
    return count if isinstance(count, int) else 0


def _differences(there: Mapping[str, Any], here: Mapping[str, Any], within: str = "") -> list[str]:
    """The settings that differ, as text; for fingerprints only that they differ."""
    found = []
    for key, value in here.items():
        other = there.get(key)
        if value == other or f"{within}{key}" in ("environment", "data.seed"):  # fingerprints tell problems apart
            continue
        if key in ("rewards", "code") and key not in there:  # older
            continue
        if isinstance(value, Mapping) and isinstance(other, Mapping) and value:
            found += _differences(other, value, f"{within}{key}.")
        elif within == "code.":
            found.append(f"the file of {key} was another")
        elif key.endswith("fingerprint"):
            found.append(f"other {'weights' if key == 'fingerprint' else key.partition('_')[0]}")
        else:
            found.append(f"{within}{key}: {_text(other)} there, {_text(value)} here")
    return found


def _guard(folder: Path) -> contextlib.AbstractContextManager[None]:
    return guard_disk("the evaluation", folder, elsewhere="give another folder with --out")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise RunDirectoryError(f"{path.parent} is not an evaluation: it has no {path.name}. `covey eval` makes one.")
    try:
        return dict(read_json(path))
    except (ValueError, TypeError):
        raise RunDirectoryError(
            f"{path} cannot be read: it is not a JSON object. Delete it and evaluate again."
        ) from None


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
