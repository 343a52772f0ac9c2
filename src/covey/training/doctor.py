"""`covey doctor`: every check before a run, and three trial steps."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from covey.config import Config, TrainingConfig
from covey.config.groups.mesh import check_mesh
from covey.config.named_code import SKIPPED, without
from covey.errors import CoveyError
from covey.runlog.directory import RunDirectory, temporary_folder
from covey.runlog.overlap import measured_rounds
from covey.training.checkpoint.resume import plan_resume
from covey.training.checks.findings import Mark, PreflightFinding
from covey.training.examination import Examination
from covey.training.processes import ACCELERATE, environment_kept
from covey.training.staleness_advice import Hardware, advise
from covey.training.terminal import logging_to

_TRIAL_STEPS = 3
_UNNAMED = "<run_name>"


def examine(
    config: Config,
    *,
    processes: int = 1,
    hardware: Hardware | None = None,
    show_prompt: Callable[[str], None] = lambda text: None,
    naming_places: Callable[[], AbstractContextManager[None]] = nullcontext,
    progress: Callable[[str], None] = lambda text: None,
    not_run: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Iterator[PreflightFinding]:
    """Run every check that needs no training; yields findings as they are made.

    Args:
        processes: its training processes.
        hardware: of this machine, for advice on `training.staleness`; None gives none.
        show_prompt: called once with a rendered prompt.
        naming_places: see `Examination`.
        progress: see `Examination`.
        not_run: code that the config names and that may not run, by key.
    """
    for key, names in not_run.items():
        what = SKIPPED[key if key in SKIPPED else "environment"]
        result = f"as {key} names {', '.join(names)}, which is not run without --yes: {what}"
        yield PreflightFinding(Mark.NOTE, "skipped", result)
    config = without(config, not_run)
    run = RunDirectory(Path(config.output_dir) / (config.run_name or _UNNAMED))
    yield from _examine_mesh(config, processes)
    if hardware is not None and (found := advise(config, hardware)) is not None:
        yield found
    if config.run_name is not None:
        yield from _examine_run(config, run)
    examination = Examination(
        config=config,
        run=run,
        processes=processes,
        naming_places=naming_places,
        quietly=partial(logging_to, Path(os.devnull)),
        progress=progress,
        show_prompt=show_prompt,
        plays=True,
        left_out=not_run,
    )
    with environment_kept(*ACCELERATE), closing(examination):
        for finding in examination:
            ignored = finding.mark is Mark.WRONG and finding.is_ignored(config.ignore_checks)
            yield dataclasses.replace(finding, mark=Mark.WARNING) if ignored else finding


def _examine_mesh(config: Config, processes: int) -> Iterator[PreflightFinding]:
    """A mesh of more processes than this is for `covey launch`."""
    try:
        check_mesh(config.model.mesh_shape, processes)
    except CoveyError as error:
        yield PreflightFinding(Mark.WARNING, "mesh", str(error), error=error)


def _examine_run(config: Config, run: RunDirectory) -> Iterator[PreflightFinding]:
    """What training finds in the run directory. (The checksums of a checkpoint are read when it is resumed from.)"""
    try:
        run.refuse_locked()
        plan = plan_resume(config, run, verify=False)
    except CoveyError as error:
        yield PreflightFinding(Mark.WRONG, "run directory", str(error), error=error)
        return
    yield from (PreflightFinding(Mark.NOTE, "run directory", note) for note in plan.notes)


def try_steps(config: Config, console: Any, hardware: Hardware) -> Iterator[PreflightFinding]:
    """Run three steps into a temporary folder, and time them; yields findings."""
    from covey.runlog import names
    from covey.runlog.metrics import read_metrics
    from covey.training.run import run_training

    with temporary_folder("covey-doctor-") as folder:
        training = TrainingConfig({**config.training.values, "save_strategy": "no", "logging_steps": 1})
        trial = dataclasses.replace(
            config,
            output_dir=str(folder),
            run_name="trial",
            resume=False,
            stop_after_steps=_TRIAL_STEPS,
            training=training,
            evaluation=dataclasses.replace(config.evaluation, every_steps=0),
        )
        try:
            result = run_training(trial, "trial", console)
        except CoveyError as error:
            yield PreflightFinding(Mark.WRONG, "three steps", str(error))
            return
        rows = [row for row in read_metrics(result.run.metrics) if names.STEP_TIME in row]
    times = [row[names.STEP_TIME] for row in rows]
    later = times[1:] or times  # the first step also warms up
    seconds = sum(later) / len(later)
    summary = f"{seconds:.2f} s a step (the first took {times[0]:.2f} s)"
    if config.training.max_steps > 0:
        summary += (
            f"; {config.training.max_steps} steps would take about {seconds * config.training.max_steps / 60:.0f} min"
        )
    yield PreflightFinding(Mark.FINE, "three steps", summary)
    if (rounds := measured_rounds(rows)) and (found := advise(config, hardware, rounds)) is not None:
        yield found
