"""Evaluations on the disk, wherever they come from: `covey eval`'s folders, and the files that training leaves behind.

Training writes `evaluation/<set>-step-<N>.jsonl` only: the completions. How they were sampled stands in the config of
the run, and the figures are counted again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covey.config import Config, load
from covey.errors import RunDirectoryError
from covey.evaluation.figures import figures
from covey.evaluation.fingerprint import digest
from covey.evaluation.grading import SEED_OFFSET, grader_name
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import StoredEvaluation, list_evaluations, read_completions

_NAMED = re.compile(r"(.+)-step-(\d+)")


def evaluations_of(run_dir: Path) -> list[StoredEvaluation]:
    """All evaluations of a run that are done: those of training by step, then those of `covey eval`, oldest first.

    Raises:
        RunDirectoryError: one of them cannot be read.
    """
    run = RunDirectory(run_dir)
    run.refuse_newer()
    root = run.evaluation
    files = sorted(root.glob("*-step-*.jsonl")) if root.is_dir() else []
    return [*(read_training_evaluation(file) for file in files), *list_evaluations(run_dir)]


def read_training_evaluation(file: Path) -> StoredEvaluation:
    """An evaluation that training made.

    Args:
        file: `<run>/evaluation/<set>-step-<N>.jsonl`.

    Raises:
        RunDirectoryError: it is none, it is damaged, or the run's config is missing.
    """
    named = _NAMED.fullmatch(file.stem)
    run = RunDirectory(file.absolute().parent.parent)
    if named is None or not file.is_file() or not run.config.is_file():
        raise RunDirectoryError(
            f"{file} is no evaluation of a training run: that would be <run>/evaluation/<set>-step-<N>.jsonl, beside "
            "the run's config.yaml."
        )
    run.refuse_newer()
    completions = list(read_completions(file))
    config = load(recipe=run.config)
    try:
        estimates = figures(completions, config.seed, config.evaluation.k)
        problems = problems_of(completions)
    except KeyError as missing:
        raise RunDirectoryError(f"{file} holds completions without {missing}: it was changed. Delete it.") from None
    settings = {
        "seed": config.seed + SEED_OFFSET,
        "name": named[1],
        "model": {"id": f"{run.root.name} at step {int(named[2])}"},
        "data": {"problems": len(problems), "problems_fingerprint": digest(problems), **asked(config)},
        "sampling": sampling_words(config),
        "num_samples": config.evaluation.num_samples,
        "grader": grader_name(config),
    }
    summary = {name: {"value": e.value, "low": e.low, "high": e.high} for name, e in estimates.items()}
    return StoredEvaluation(file, settings, summary)


def problems_of(completions: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What was asked (the user's last message) and the answer, for every problem in order."""
    found = {item["problem"]: (str(item["prompt"]), str(item["answer"])) for item in completions}
    return [found[problem] for problem in sorted(found)]


def asked(config: Config) -> dict[str, Any]:
    """What stands around every problem, besides the chat template of the model."""
    return {
        "system_prompt": config.dataset.system_prompt,
        "chat_template_kwargs": dict(config.training.chat_template_kwargs or {}),
    }


def sampling_words(config: Config) -> dict[str, Any]:
    """How evaluations of this config sample, as `settings.json` says it."""
    settings = config.evaluation
    return {
        "max_completion_length": settings.max_completion_length or config.training.max_completion_length or 256,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
    }
