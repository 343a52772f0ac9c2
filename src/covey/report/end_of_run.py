"""The report at the end of a run or part of one; for a finished run also the curves and the model card."""

from __future__ import annotations

from collections.abc import Callable

from covey.errors import CoveyError
from covey.report.charts.curves import draw_curves
from covey.report.evidence import Evidence, Finding
from covey.report.findings import findings
from covey.report.load import load_run
from covey.report.model_card import write_model_card
from covey.report.page import write_report
from covey.report.summary import Change, rows_of
from covey.runlog.directory import RunDirectory
from covey.runlog.metrics import read_metrics


def write_end_of_run(run: RunDirectory, *, finished: bool) -> list[str]:
    """Write the report; for a finished run also the curves and the model card.

    Args:
        finished: whether the run reached its last step.

    Returns:
        What could not be written, one sentence each.
    """
    if not run.metrics.is_file() or not run.metrics.stat().st_size:
        return []
    jobs: dict[str, Callable[[], object]] = {run.report.name: lambda: write_report(run.root)}
    if finished:
        jobs[run.curves.name] = lambda: draw_curves(run.root)
        if run.final_model.is_dir():
            jobs["the model card"] = lambda: write_model_card(run.root, run.final_model)
    problems = []
    for what, write in jobs.items():
        try:
            write()
        except CoveyError as error:
            problems.append(f"{what} was not written: {error}")
    return problems


def conclusions(run: RunDirectory) -> tuple[list[Change], list[Finding]]:
    """What a run changed, and what that means: the rows of the final table, and the findings. Raises a `CoveyError` if
    its files are damaged."""
    if not read_metrics(run.metrics):
        return [], []
    record = load_run(run.root)
    rows = rows_of(record)
    return rows, findings(Evidence.of(record, rows))
