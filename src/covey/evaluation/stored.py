"""Evaluations on disk: the folders of `covey eval`, and the files of training.

Training writes the completions only, as `evaluation/<set>-step-<N>.jsonl`. The sampling settings are in the config of
the run, and the metrics are computed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covey.config import Config, load
from covey.errors import RunDirectoryError
from covey.evaluation.fingerprint import digest
from covey.evaluation.grading import SEED_OFFSET, grader_name, grader_settings
from covey.evaluation.metrics import compute_metrics
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import StoredEvaluation, list_evaluations, read_completions

_NAMED = re.compile(r"(.+)-step-(\d+)")


def evaluations_of(run_dir: Path) -> list[StoredEvaluation]:
    """All complete evaluations of a run: those of training by step, then those of `covey eval`, oldest first.

    Raises:
        RunDirectoryError: one of them cannot be read.
    """
    run = RunDirectory(run_dir)
    run.refuse_newer()
    root = run.evaluation
    files = sorted(root.glob("*-step-*.jsonl")) if root.is_dir() else []
    return [*(read_training_evaluation(file) for file in files), *list_evaluations(run_dir)]


def read_training_evaluation(file: Path) -> StoredEvaluation:
    """An evaluation of training.

    Args:
        file: `<run>/evaluation/<set>-step-<N>.jsonl`.

    Raises:
        RunDirectoryError: it is not one, it is damaged, or the run's config is missing.
    """
    named = _NAMED.fullmatch(file.stem)
    run = RunDirectory(file.absolute().parent.parent)
    if named is None or not file.is_file() or not run.config.is_file():
        raise RunDirectoryError(
            f"{file} is not an evaluation of a training run, which is <run>/evaluation/<set>-step-<N>.jsonl in a "
            "run directory with a config.yaml."
        )
    run.refuse_newer()
    completions = list(read_completions(file))
    config = load(recipe=run.config)
    graded = any(item.get("outcome") is not None for item in completions)
    grader = (grader_name(config) or "accuracy") if graded else None  # older versions graded every run
    try:
        estimates = compute_metrics(completions, config.seed, config.evaluation.k)
        problems = problems_of(completions)
    except KeyError as missing:
        raise RunDirectoryError(
            f"{file} holds completions without {missing}: the file was changed. Delete it."
        ) from None
    settings = {
        "seed": config.seed + SEED_OFFSET,
        "name": named[1],
        "model": {"id": f"{run.root.name} at step {int(named[2])}"},
        "data": {"problems": len(problems), "problems_fingerprint": digest(problems), **prompt_settings(config)},
        "sampling": sampling_settings(config),
        "num_samples": config.evaluation.num_samples,
        **grader_settings(config, grader),
        **reward_settings(config),
    }
    summary = {name: {"value": e.value, "low": e.low, "high": e.high} for name, e in estimates.items()}
    return StoredEvaluation(file, settings, summary)


def problems_of(completions: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The question (the last user message) and the answer of every problem, in order."""
    found = {item["problem"]: (str(item["prompt"]), str(item["answer"])) for item in completions}
    return [found[problem] for problem in sorted(found)]


def prompt_settings(config: Config) -> dict[str, Any]:
    """The prompt settings of all problems, besides the model's chat template."""
    return {
        "system_prompt": config.dataset.system_prompt,
        "chat_template_kwargs": dict(config.training.chat_template_kwargs or {}),
    }


def reward_settings(config: Config) -> dict[str, Any]:
    """The reward functions of evaluations with this config, as in `settings.json`."""
    return {"rewards": {"funcs": list(config.rewards.funcs), "weights": list(config.training.reward_weights or ())}}


def sampling_settings(config: Config) -> dict[str, Any]:
    """The sampling settings of evaluations with this config, as in `settings.json`."""
    settings = config.evaluation
    return {
        "max_completion_length": settings.max_completion_length or config.training.max_completion_length or 256,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
    }
