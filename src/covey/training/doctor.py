"""`covey doctor`: every check before a run, and three trial steps."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from covey import data
from covey.config import Config, TrainingConfig
from covey.errors import CoveyError
from covey.evaluation.grading import answer_asked_by, check_evaluation
from covey.model.loading import check_model, load_tokenizer
from covey.model.prompts import render
from covey.training.advantages import objectives
from covey.training.checkpoint.vocab_expansion import check_reasoning
from covey.training.preflight.checks import (
    check_batch,
    check_lengths,
    check_memory,
    check_prompt_prefix,
    check_rows,
    check_tokens,
)
from covey.training.preflight.findings import Mark, PreflightFinding
from covey.training.preflight.gold_answer_check import check_answers
from covey.training.preflight.requirements import check_rewards, check_supported
from covey.training.preflight.trackers import tracker_notes

_TRIAL_STEPS = 3


def examine(
    config: Config,
    *,
    show_prompt: Callable[[str], None] | None = None,
    naming_places: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[PreflightFinding]:
    """Run every check that needs no training; yields findings as they are made.

    Args:
        config: the run to check.
        show_prompt: called once with a rendered prompt.
        naming_places: adds to an error about a key where the user set it, as `Composed.naming_places` does.
    """
    yield from _examine_settings(config, naming_places)
    try:
        source = check_model(config.model)
        tokenizer = load_tokenizer(config.model)
    except CoveyError as error:
        yield PreflightFinding(Mark.WRONG, "model", str(error))
        return
    yield PreflightFinding(Mark.FINE, "model", f"{config.model.name}: config and tokenizer load")
    try:
        for note in check_reasoning(config, source, tokenizer):
            yield PreflightFinding(Mark.FINE, "reasoning", note)
    except CoveyError as error:
        yield PreflightFinding(Mark.WRONG, "reasoning", str(error))
    yield from check_tokens(config, tokenizer)
    try:
        for note in check_evaluation(config):
            yield PreflightFinding(Mark.WARNING, "evaluation", note)
        asked = answer_asked_by(config)
    except CoveyError as error:
        yield PreflightFinding(Mark.WRONG, "rewards", str(error))
        return
    try:
        loaded = data.load(config.dataset, config.seed, answer_for=asked)
        unrewarded = check_rewards(config, loaded)
    except CoveyError as error:
        yield PreflightFinding(Mark.WRONG, "data", str(error))
        return
    held_out = ", ".join(f"{name} {len(rows)}" for name, rows in loaded.evaluation.items()) or "none"
    yield PreflightFinding(Mark.FINE, "data", f"{len(loaded.train)} training rows; held out: {held_out}")
    for note in (*loaded.notes, *unrewarded.values()):
        yield PreflightFinding(Mark.WARNING, "data", note)
    if show_prompt is not None:
        show_prompt(render(tokenizer, loaded.train[0]["prompt"], config.training.chat_template_kwargs))
    yield from check_prompt_prefix(config, tokenizer, loaded)
    yield from check_rows(config, loaded)
    longest = yield from check_lengths(config, source, tokenizer, loaded.train)
    yield from check_answers(config, loaded)
    yield check_batch(config, loaded)
    yield from check_memory(config, source, longest)


def _examine_settings(
    config: Config, naming_places: Callable[[], AbstractContextManager[None]]
) -> Iterator[PreflightFinding]:
    try:
        notes = [*check_supported(config), *tracker_notes(config)]
    except CoveyError as error:
        yield PreflightFinding(Mark.WRONG, "settings", str(error))
        return
    for note in notes:
        yield PreflightFinding(Mark.WARNING, "settings", note)
    yield PreflightFinding(Mark.FINE, "settings", "every key is known, every value in range")
    try:
        with naming_places():
            objectives.build(config)
    except CoveyError as error:
        yield PreflightFinding(Mark.WRONG, "objective", str(error))
    else:
        loss = f"training.loss_type={config.training.loss_type}"
        yield PreflightFinding(Mark.FINE, "objective", f"{config.objective.name} works with {loss}")


def try_steps(config: Config, console: Any) -> PreflightFinding:
    """Run three steps into a temporary folder, and time them."""
    from covey.runlog import names
    from covey.runlog.metrics import read_metrics
    from covey.training.run import run_training

    with tempfile.TemporaryDirectory(prefix="covey-doctor-") as folder:
        training = TrainingConfig({**config.training.values, "save_strategy": "no", "logging_steps": 1})
        trial = dataclasses.replace(
            config,
            output_dir=folder,
            run_name="trial",
            resume=False,
            stop_after_steps=_TRIAL_STEPS,
            training=training,
            evaluation=dataclasses.replace(config.evaluation, every_steps=0),
        )
        try:
            result = run_training(trial, "trial", console)
        except CoveyError as error:
            return PreflightFinding(Mark.WRONG, "three steps", str(error))
        times = [row[names.STEP_TIME] for row in read_metrics(result.run.metrics) if names.STEP_TIME in row]
    later = times[1:] or times  # the first step also warms up
    seconds = sum(later) / len(later)
    summary = f"{seconds:.2f} s a step (the first took {times[0]:.2f} s)"
    if config.training.max_steps > 0:
        summary += (
            f"; {config.training.max_steps} steps would take about {seconds * config.training.max_steps / 60:.0f} min"
        )
    return PreflightFinding(Mark.FINE, "three steps", summary)
