"""The end of an invocation: the report is written, the figures are shown, the model is pushed."""

from __future__ import annotations

from typing import Any

from covey.config import Config
from covey.errors import CoveyError
from covey.report.end_of_run import write_end_of_run
from covey.report.evaluations import evaluation_rows
from covey.report.summary import before_and_after, summary_line
from covey.training.display.live_display import before_after_table, print_summary
from covey.training.publish.hub import push_finished
from covey.training.run import RunResult


def end_run(result: RunResult, config: Config, console: Any) -> None:
    """Write the report and show how the run ended; push a finished model if the config says so. Main process only.

    Args:
        result: from `run_training`.
        config: the run's config, as it was composed.
        console: a rich console.

    Raises:
        CoveyError: the model cannot be pushed.
    """
    run = result.run
    if not result.main:
        return
    if result.trained or not run.report.exists():  # a run finished earlier is left as it is
        for problem in write_end_of_run(run, finished=result.finished):
            _print(console, f"· {problem}")
    if not result.finished:
        hint = "The same command resumes from it."
        same = config.resume in ("auto", True) and not config.overwrite
        if config.run_name is None or not same:  # it would take a new timestamp for its name, delete, or be refused
            name = f"output_dir={config.output_dir} run_name={run.root.name}"
            hint = f"To resume from it: covey train --config {run.config} {name}"
        _print(console, f"Stopped after step {result.step}, with a checkpoint. {hint}")
        return
    rows = []
    try:
        rows = before_and_after(run)
    except CoveyError as error:  # the model does not depend on it
        _print(console, f"· {error}")
    paths = [("report", run.report), ("curves", run.curves)] if run.report.exists() else []
    paths += [("model", run.final_model), ("metrics", run.metrics), ("completions", run.completions), ("log", run.log)]
    after = evaluation_rows(run)
    print_summary(console, before_after_table(rows) if rows else None, paths)
    for row in after:
        _print(console, f"  {row.set_name} ({row.state}, {row.problems} problems, {row.sampling}): {row.main_text}")
    if result.trained:
        push_finished(config, run, console)
        console.print(summary_line(result.step, result.training_seconds, result.peak_memory_bytes), highlight=False)


def _print(console: Any, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
