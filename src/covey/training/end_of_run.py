"""The end of an invocation: the report is written, the figures are shown, the model is pushed."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from covey.advice import command
from covey.config import Config
from covey.errors import CoveyError
from covey.evaluation.comparison import compare_evaluations, newest_in_common
from covey.report.end_of_run import conclusions, write_end_of_run
from covey.report.evaluations import evaluation_rows
from covey.report.evidence import Finding
from covey.report.load import read_mapping
from covey.report.summary import Change, summary_line
from covey.runlog.directory import RunDirectory
from covey.runlog.ending import has_failed
from covey.runlog.locks import DeletedError
from covey.training.display.final import Command, before_after_table, print_commands, print_findings, print_summary
from covey.training.publish.hub import push_finished
from covey.training.run import RunResult


def end_run(result: RunResult, config: Config, console: Any, *, resume: str | None = None) -> None:
    """Write the report and show how the run ended; push a finished model if the config says so. Main process only.

    Args:
        result: from `run_training`.
        resume: the command that resumes the run, if a launcher started it.

    Raises:
        CoveyError: the model cannot be pushed, or the run was deleted meanwhile.
    """
    if not result.main:
        return
    try:
        _end_run(result, config, console, resume)
    except FileNotFoundError as error:
        if result.run.config.exists():
            raise
        raise DeletedError(result.run.root, "the report") from error


def _end_run(result: RunResult, config: Config, console: Any, resume: str | None) -> None:
    run = result.run
    if result.trained or not run.report.exists():  # a run finished earlier is left as it is
        for problem in write_end_of_run(run, finished=result.finished):
            _print(console, f"· {problem}")
    if result.finished:
        _show_finished(result, console)
        if result.trained:
            push_finished(config, run, console)
            line = summary_line(result.step, result.training_seconds, result.peak_memory_bytes, result.reason)
            _print(console, line)
    else:
        hint = "The same command resumes from it."
        # With a new timestamp for a name, say, the same command would not resume.
        if resume or config.run_name is None or config.resume not in ("auto", True) or config.overwrite:
            hint = f"To resume from it: {resume or _resume(config, run)}"
        _print(console, f"Stopped after step {result.step}, with a checkpoint. Reason: {result.reason}. {hint}")
    if not console.quiet:
        print_commands(console, _next(result, config, resume))


def _show_finished(result: RunResult, console: Any) -> None:
    if console.quiet:
        return
    run = result.run
    rows: list[Change] = []
    found: list[Finding] = []
    try:
        rows, found = conclusions(run)
    except CoveyError as error:  # the model does not depend on it
        _print(console, f"· {error}")
    if rows:
        console.print(before_after_table(rows, console.width))
    for row in evaluation_rows(run):
        _print(console, f"  {row.label} ({row.state}, {row.problems} problems, {row.sampling}): {row.main_text}")
    print_findings(console, found, rows)
    paths = [("report", run.report), ("curves", run.curves)] if run.report.exists() else []
    paths += [("model", run.final_model), ("metrics", run.metrics), ("completions", run.completions), ("log", run.log)]
    console.print()
    print_summary(console, None, paths)


def _resume(config: Config, run: RunDirectory) -> str:
    places = {"config": run.config, "folder": config.output_dir, "name": run.root.name}
    again = command("train --config {config} output_dir={folder} run_name={name}", **places)
    return f"accelerate launch … -m {again}" if os.environ.get("WORLD_SIZE", "1") != "1" else again


def _next(result: RunResult, config: Config, resume: str | None) -> list[Command]:
    """Three commands to go on with."""
    run = result.run
    view = "see every run", command("view {folder}", folder=run.root.parent)
    if not result.finished:
        newest = command("eval {run} --checkpoint {step}", run=run.root, step=result.step)
        return [("resume", resume or _resume(config, run)), view, ("evaluate it so far", newest)]
    other = _comparable(run)
    third = (
        ("evaluate, greedily", command("eval {run} evaluation=greedy", run=run.root))
        if other is None
        else ("compare with the run before", command("compare {first} {run}", first=other.root, run=run.root))
    )
    return [view, ("talk to the model", command("chat {run}", run=run.root)), third]


def _comparable(run: RunDirectory) -> RunDirectory | None:
    """The newest other finished run in the same folder on the same data with which `covey compare` compares it."""
    try:
        finished = run.root.parent.glob("*/summary.json")
        summaries = sorted(finished, key=lambda path: path.stat().st_mtime, reverse=True)
        mine = read_mapping(run.config).get("dataset")
        others = [RunDirectory(summary.parent) for summary in summaries if summary.parent != run.root][:_LOOKED_AT]
        for other in others:
            if not has_failed(other) and read_mapping(other.config).get("dataset") == mine:
                with suppress(CoveyError):  # such as other graders
                    compare_evaluations(*newest_in_common([other.root, run.root], None))
                    return other
    except (OSError, CoveyError):  # it is only an advice
        pass
    return None


_LOOKED_AT = 5
"""Runs whose configs are read."""


def _print(console: Any, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
