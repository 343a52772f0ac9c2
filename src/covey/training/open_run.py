"""Preparing a run directory for the start of a run."""

from __future__ import annotations

import dataclasses
import shutil

from covey.config import Config, to_yaml
from covey.config.named_code import own_code
from covey.runlog.checkpoint import unmark
from covey.runlog.directory import RunDirectory
from covey.runlog.files import write_atomically
from covey.runlog.own_code import record_environment
from covey.training.checkpoint.resume import ResumePlan


def open_run_directory(config: Config, run: RunDirectory, plan: ResumePlan) -> None:
    """Prepare the folder for the start of the run. A kill in between must not lose the run: the config is written
    first, but after the marks of a finished run are removed."""
    if plan.clear:
        run.clear(keep_first=config.model.reasoning_vocab_size != 0, keep_config=True)
    run.summary.unlink(missing_ok=True)
    # Without the settings of this invocation only: run again, the file makes a complete new run.
    stored = dataclasses.replace(config, run_name=None, resume="auto", overwrite=False, stop_after_steps=None)
    write_atomically(run.config, to_yaml(stored))
    for step, checkpoint in run.complete_checkpoints():
        if step > plan.step:  # it was skipped: damaged in a way that file sizes do not show
            unmark(checkpoint)
    for folder in (run.completions, run.evaluation):
        folder.mkdir(parents=True, exist_ok=True)
    for leftover in run.root.glob("*/.*.tmp"):  # of a killed process
        leftover.unlink()
    shutil.rmtree(run.rollouts, ignore_errors=True)  # likewise
    record_environment(run, own_code(config))
