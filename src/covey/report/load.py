"""Reading a run directory for the report; the run may be running, stopped, or copied in part."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from covey.config.compose.derived_values import with_held_out_seed
from covey.config.yaml import FAST_LOADER, check_yaml
from covey.errors import RunDirectoryError
from covey.evaluation.grading import ENVIRONMENT, grader_of_rewards
from covey.rewards.registry import canonical_name
from covey.runlog import RunDirectory, names, read_metrics
from covey.runlog.files import read_json
from covey.runlog.metrics import Row
from covey.runlog.notes import has_failed

logger = logging.getLogger(__name__)

VOCABULARY_FILE = "vocabulary.json"
"""What `covey vocab` has found."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The files of a run directory, without the completions."""

    run: RunDirectory
    name: str
    config: dict[str, Any]
    """The resolved config; empty if there is none."""
    environment: dict[str, Any]
    rows: list[Row]
    summary: dict[str, Any]
    """Empty until the run has ended."""

    @property
    def step(self) -> int:
        """The last step with metrics."""
        return int(self.rows[-1][names.STEP]) if self.rows else 0

    @property
    def max_steps(self) -> int | None:
        """Steps of the whole run, if the config sets them."""
        steps = (self.config.get("training") or {}).get("max_steps")
        return steps if isinstance(steps, int) and steps > 0 else None

    @property
    def metric(self) -> str | None:
        """The held-out metric that decides the best evaluation, by its name after `eval/`; None without one."""
        best_by = (self.config.get("evaluation") or {}).get("best_by")
        return names.best_of(self.rows, best_by)

    @property
    def grader(self) -> str | None:
        """See `grader_of`."""
        return grader_of(self.config, self.rows)

    @property
    def title(self) -> str:
        """See `title_of`."""
        return title_of(self.config) or self.name


def grader_of(config: Mapping[str, Any], rows: Sequence[Row]) -> str | None:
    """The grader of a run that has an accuracy, from its config; None if unknown.

    Where neither a grader nor a reward implies one, an older version graded by `accuracy`. An environment that rewards
    takes the grader's place: its class is among the held-out rewards, and no function.
    """
    funcs = (config.get("rewards") or {}).get("funcs")
    if (config.get("environment") or {}).get("factory"):
        functions = {name.rpartition(":")[2] if ":" in name else canonical_name(name) for name in map(str, funcs or ())}
        prefix = f"{names.MEAN_REWARD}/"
        found = {name.partition("/")[2] for row in rows for name in row if name.startswith("eval")}
        if any(name.startswith(prefix) and name.removeprefix(prefix) not in functions for name in found):
            return ENVIRONMENT
    grader = (config.get("evaluation") or {}).get("grader")
    return grader or ((grader_of_rewards(map(str, funcs)) or "accuracy") if funcs else None)


def title_of(config: Mapping[str, Any]) -> str:
    """`MODEL on DATA`, from a config, both without their folders; empty if it names neither."""
    model = model_of(config)
    return " on ".join(filter(None, (Path(model).name if model.startswith("/") else model, data_of(config))))


def model_of(config: Mapping[str, Any]) -> str:
    """The name of the model in a config; empty without one."""
    return str((config.get("model") or {}).get("name") or "")


def data_of(config: Mapping[str, Any]) -> str:
    """What a config trains on: a file or run without its folders, a dataset, a built-in task, or environments."""
    dataset = config.get("dataset") or {}
    if (dataset.get("mixture") or {}).get("datasets"):
        return "mixture"
    path = (config.get("sft") or {}).get("rows") or dataset.get("path")
    named = Path(path).name if path else dataset.get("id") or dataset.get("task") or environment_text(config)
    rows = dataset.get("rows")  # of a script, whose data may come from anywhere
    return str(named or (f"{rows:,} rows" if isinstance(rows, int) else ""))


def objective_of(config: Mapping[str, Any]) -> str:
    """The objective of a run's config, `sft` of supervised training; empty where it is not known."""
    if (config.get("sft") or {}).get("rows"):
        return "sft"
    return str((config.get("objective") or {}).get("name") or "")


def environment_text(config: Mapping[str, Any]) -> str:
    """The environments of a config, without the folders of files; empty without any."""
    factory = (config.get("environment") or {}).get("factory")
    several = factory.values() if isinstance(factory, Mapping) else [factory] if factory else []
    return ", ".join(short_name(one["factory"] if isinstance(one, Mapping) else one) for one in several)


def short_name(name: str) -> str:
    """`file.py:Class` without the folders of the file; addresses and other names as they are."""
    return name if "://" in name else name.rpartition("/")[2]


def load_run(root: Path) -> RunRecord:
    """Read a run directory. Raises a `RunDirectoryError` if it is not a run directory, has no metrics yet, is damaged,
    or was written by a newer version."""
    run = RunDirectory(root)
    if not root.exists():
        raise RunDirectoryError(
            f"{root} does not exist. Name a run directory: output_dir/run_name, such as out/my-run."
        )
    if not run.metrics.is_file():
        _refuse_failed(run)
        if run.config.is_file():
            raise RunDirectoryError(
                f"{root} holds a run that has not begun to train: there is no {run.metrics.name} yet. Make the report "
                "once the first step is done."
            )
        raise RunDirectoryError(
            f"{root} is not a run directory: it has neither config.yaml nor metrics.jsonl. Name the folder that a run "
            "was written to: output_dir/run_name, such as out/my-run."
        )
    record = read_run(root)
    if not record.rows:
        _refuse_failed(run)
        raise RunDirectoryError(f"{run.metrics} holds no rows yet. Make the report once the first step is done.")
    return record


def read_run(root: Path) -> RunRecord:
    """Read a run directory whose run may not have begun to train: then it has no rows. Raises a `RunDirectoryError` if
    it is damaged, or was written by a newer version."""
    run = RunDirectory(root)
    run.refuse_newer()
    rows = read_metrics(run.metrics) if run.metrics.is_file() else []
    return RunRecord(
        run,
        root.absolute().name,
        with_held_out_seed(read_mapping(run.config)),
        read_mapping(run.environment),
        rows,
        read_mapping(run.summary),
    )


def _refuse_failed(run: RunDirectory) -> None:
    """Say of a run without metrics that it failed, not that its first step is still to come."""
    if has_failed(run):
        message = read_mapping(run.summary).get("message")
        raise RunDirectoryError(f"{run.root} holds a run that failed before its first metrics: {message}")


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML or JSON file with a mapping; empty if it is missing, or, with a warning, if it is damaged. Raises a
    `RunDirectoryError` if the config is damaged."""
    if not path.is_file():
        return {}
    content = None
    try:
        content = read_json(path) if path.suffix == ".json" else _yaml(path)
        problem = "it should hold a mapping of keys to values"
    except (ValueError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
    if isinstance(content, dict):
        return content
    complaint = RunDirectoryError(
        f"{path} cannot be read ({problem}): it was cut short or changed. Restore it, or delete it."
    )
    if path.suffix == ".yaml":
        raise complaint
    logger.warning("%s", complaint)
    return {}


def _yaml(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    check_yaml(text, path)
    try:
        return yaml.load(text, Loader=FAST_LOADER)  # a folder may hold hundreds of runs
    except yaml.YAMLError:
        return yaml.safe_load(text)


def read_fold_gap(run: Path) -> dict[str, Any]:
    """What `covey vocab --fold-gap` has measured of a run; empty if nothing."""
    try:
        found: dict[str, Any] = read_json(run / VOCABULARY_FILE).get("fold_gap") or {}
    except (OSError, ValueError, AttributeError):
        return {}
    return found
