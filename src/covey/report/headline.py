"""The top of the report: the run's status and its key settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.evaluation.figures import value_text
from covey.report.charts.chart_data import axes
from covey.report.charts.series import format_value
from covey.report.load import RunRecord, environment_text, short_name
from covey.report.summary import best_row, figure_name, figure_of
from covey.runlog import names
from covey.runlog.ending import FAILED, FINISHED
from covey.runlog.metrics import series


def how_it_ended(record: RunRecord) -> tuple[str, str]:
    """The status (`finished`, `running`, `failed` or `stopped`), and a sentence or two about it."""
    of = f" of {record.max_steps}" if record.max_steps else ""
    if record.summary.get("status") == FAILED:
        message = str(record.summary.get("message") or "").rstrip(".")
        return FAILED, f"Failed after step {record.step}{of}: {message}. {_resumes(record)}"
    if record.run.is_locked():
        return "running", f"At step {record.step}{of} when this page was written."
    if record.summary or record.run.final_model.is_dir() or (record.max_steps and record.step >= record.max_steps):
        took, reason = training_time(record), record.summary.get("reason")
        took = f" in {took}" if took else ""
        return FINISHED, f"Finished after {record.step} steps{took}{f': {reason}' if reason else ''}."
    return "stopped", f"Stopped after step {record.step}{of}. {_resumes(record)}"


def training_time(record: RunRecord) -> str | None:
    """The time of all steps and evaluations, over all starts of the run; of the last start if that is all there is."""
    spent = axes(record.rows)["seconds"]
    seconds = spent[-1] if spent else record.summary.get("training_seconds")
    return _duration(seconds) if isinstance(seconds, int | float) else None


def _resumes(record: RunRecord) -> str:
    newest, name = record.run.newest_checkpoint(), record.run.root.name
    if newest is None:
        return "There is no checkpoint to resume from."
    return f"The same command with run_name={name} resumes from {newest.name}."


def key_settings(record: RunRecord) -> list[tuple[str, str]]:
    """The key settings and totals of the run, as name and value; unknown ones are left out."""
    config, training = record.config, record.config.get("training") or {}
    rewards, objective = config.get("rewards") or {}, config.get("objective") or {}
    weights, environment = training.get("reward_weights"), config.get("environment") or {}
    functions = [str(name) for name in rewards.get("funcs") or ()]
    if weights and len(weights) == len(functions):
        functions = [f"{name} × {weight:g}" for name, weight in zip(functions, weights, strict=True)]
    packages = record.environment.get("packages") or {}
    memory = [max((v for _, v in series(record.rows, key)), default=0.0) for key in _MEMORY]
    listed = {
        "objective": objective.get("name"),
        "rewards": ", ".join(functions),
        "environment": environment_text(config),
        "tools": ", ".join(map(short_name, environment.get("tools") or ())),
        "most turns": environment.get("max_turns") if environment.get("factory") or environment.get("tools") else None,
        "completions per prompt": training.get("num_generations"),
        "learning rate": training.get("learning_rate"),
        "β": training.get("beta"),
        "grader": record.grader if record.metric == names.ACCURACY else None,
        "best checkpoint": _best(record),
        "seed": config.get("seed"),
        "training time": training_time(record),
        "peak memory": " + ".join(format_value(value, "bytes") for value in memory if value) or None,
        "Covey, TRL, PyTorch": ", ".join(str(packages.get(name) or "–") for name in ("covey", "trl", "torch"))
        if packages
        else None,
        "commit": _commit(record.environment),
    }
    return [
        (name, f"{value:g}" if isinstance(value, float) else str(value))
        for name, value in listed.items()
        if value not in (None, "")
    ]


_MEMORY = (names.PROCESS_MEMORY, names.DEVICE_MEMORY)


def _best(record: RunRecord) -> str | None:
    row = best_row(record)
    if row is None or record.metric is None:
        return None
    found = value_text(figure_of(row, names.held_out_sets(record.rows)[0], record.metric).value, record.metric)
    figure = "" if record.metric == names.ACCURACY else f" {figure_name(record.metric)}"
    return f"step {row[names.STEP]}: {found} held-out{figure}"


def _commit(environment: Mapping[str, Any]) -> str | None:
    commit = environment.get("git_commit")
    return (
        f"{commit[:10]}{' + changes' if environment.get('git_modified') else ''}" if isinstance(commit, str) else None
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
