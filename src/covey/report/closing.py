"""What is written when an invocation of a run ends: its figures for programs, its page and its curves."""

from __future__ import annotations

from covey.report.curves import draw_curves
from covey.report.model_card import write_model_card
from covey.report.page import write_report
from covey.report.summary import Triple, before_and_after, write_summary
from covey.runlog.directory import RunDirectory

Row = tuple[str, Triple, Triple]


def write_closing(run: RunDirectory, *, finished: bool, spent: tuple[float, int] | None) -> list[Row]:
    """Write the report of a run, and of a finished one `summary.json`, the curves and the model card too.

    Args:
        finished: whether the run reached its last step.
        spent: seconds of training and bytes of memory at most, of this invocation; None when it trained nothing.

    Returns:
        Held-out accuracy before and after, one row per held-out set; empty for a run that is not finished.
    """
    rows = before_and_after(run) if finished else []
    if finished and spent is not None:
        write_summary(run, rows, *spent)
    if run.metrics.is_file() and run.metrics.stat().st_size:
        write_report(run.root)
        if finished:
            draw_curves(run.root)
        if finished and run.final_model.is_dir():
            write_model_card(run.root, run.final_model)
    return rows
