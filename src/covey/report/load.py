"""Reading a run directory for the report: also one of a run that is going on, was stopped, or was copied in part."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from covey.errors import ConfigError, RunDirectoryError
from covey.runlog import RunDirectory, names, read_metrics
from covey.runlog.metrics import Row


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run has written down, completions aside."""

    run: RunDirectory
    name: str
    config: dict[str, Any]
    """The resolved config; empty for a run that has none."""
    environment: dict[str, Any]
    rows: list[Row]
    summary: dict[str, Any]
    """Empty until the run has ended."""

    @property
    def step(self) -> int:
        """The newest step with metrics."""
        return int(self.rows[-1][names.STEP]) if self.rows else 0

    @property
    def max_steps(self) -> int | None:
        """Steps of the whole run, where the config says so."""
        steps = (self.config.get("training") or {}).get("max_steps")
        return steps if isinstance(steps, int) and steps > 0 else None

    @property
    def title(self) -> str:
        """Model and data as the config names them; the folder's own name without a config."""
        model, dataset = self.config.get("model") or {}, self.config.get("dataset") or {}
        path = dataset.get("path")
        data = Path(path).name if path else dataset.get("id") or dataset.get("task")
        return " on ".join(str(part) for part in (model.get("name"), data) if part) or self.name


def load_run(root: Path) -> RunRecord:
    """Read a run directory.

    Raises:
        ConfigError: it is no run directory, has no metrics yet, is damaged, or was written by a newer version.
    """
    run = RunDirectory(root)
    if not root.exists():
        raise ConfigError(f"{root} does not exist. Name a run directory: output_dir/run_name, such as out/my-run.")
    if not run.metrics.is_file():
        if run.config.is_file():
            raise ConfigError(
                f"{root} holds a run that has not begun to train: there is no {run.metrics.name} yet. Make the report "
                "once the first step is done."
            )
        raise ConfigError(
            f"{root} is no run directory: it has neither config.yaml nor metrics.jsonl. Name the folder that a run was "
            "written to: output_dir/run_name, such as out/my-run."
        )
    try:
        run.refuse_newer()
        rows = read_metrics(run.metrics)
    except RunDirectoryError as error:
        raise ConfigError(str(error)) from error
    if not rows:
        raise ConfigError(f"{run.metrics} holds no rows yet. Make the report once the first step is done.")
    return RunRecord(
        run, root.absolute().name, _mapping(run.config), _mapping(run.environment), rows, _mapping(run.summary)
    )


def _mapping(path: Path) -> dict[str, Any]:
    """A YAML or JSON file that holds a mapping; empty when it is not there."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(
            f"{path} cannot be read ({problem}): it was cut short or changed. Restore it, or delete it."
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} should hold a mapping of keys to values and does not. Restore it, or delete it.")
    return content
