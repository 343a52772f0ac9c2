"""Evaluations on disk: the folders of `covey eval`, and the files of training.

Training writes the completions only, as `evaluation/<set>-step-<N>.jsonl`. The sampling settings are in the config of
the run, and the metrics are computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covey.config import Config, load
from covey.config.groups.environment import EnvironmentConfig
from covey.config.secrets import without_secrets
from covey.errors import RunDirectoryError
from covey.evaluation.grading import SEED_OFFSET, grader_name, grader_settings
from covey.evaluation.metrics import compute_metrics
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import (
    StoredEvaluation,
    list_evaluations,
    read_completions,
    read_evaluation,
    training_file_names,
    training_files,
)


def evaluations_of(run_dir: Path) -> list[StoredEvaluation]:
    """All complete evaluations of a run: those of training by step, then those of `covey eval`, oldest first. Raises a
    `RunDirectoryError` if one of them cannot be read."""
    RunDirectory(run_dir).refuse_newer()
    of_training = [read_training_evaluation(file) for _, _, file in training_files(run_dir)]
    return [*of_training, *list_evaluations(run_dir)]


def read_stored(path: Path) -> StoredEvaluation:
    """The evaluation of `covey eval` in this folder, or of training in this file. Raises a `RunDirectoryError` if it is
    not one, is damaged, or not finished."""
    if path.suffix == ".jsonl":
        return read_training_evaluation(path)
    found = read_evaluation(path)
    if not found.done:
        raise RunDirectoryError(f"{path} is not finished: the same `covey eval` command resumes it.")
    return found


def read_training_evaluation(file: Path) -> StoredEvaluation:
    """An evaluation of training. Raises a `RunDirectoryError` if it is not one, it is damaged, or the run's config is
    missing."""
    named = training_file_names(file)
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
        estimates = compute_metrics(completions, config.seed, config.evaluation.k, grader)
        problems = problems_of(completions)
    except KeyError as missing:
        raise RunDirectoryError(
            f"{file} holds completions without {missing}: the file was changed. Delete it."
        ) from None
    except (AttributeError, TypeError, ValueError):
        raise RunDirectoryError(
            f"{file} holds completions with values of other types than Covey writes: the file was changed. Delete it."
        ) from None
    rewarding = any(item.get(names.SCORE) is not None for item in completions)
    measured = settings_of(config, grader, rewarding=rewarding)
    rows = {item["problem"]: item["row"] for item in completions if "row" in item}
    seed = environment_seed(config.dataset.seed, config.environment)
    fingerprint = problems_digest(problems, [rows[problem] for problem in sorted(rows)], seed)
    data = {"problems": len(problems), "problems_fingerprint": fingerprint, **measured["data"]}
    model = {"id": f"{run.root.name} at step {named[1]}"}
    settings = {**measured, "code": run.code_hashes(), "name": named[0], "step": named[1], "model": model, "data": data}
    summary = {name: {"value": e.value, "low": e.low, "high": e.high} for name, e in estimates.items()}
    return StoredEvaluation(file, settings, summary)


def problems_of(completions: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The question (the last user message) and the answer of every problem, in order."""
    found = {item["problem"]: (str(item["prompt"]), str(item["answer"])) for item in completions}
    return [found[problem] for problem in sorted(found)]


def digest(items: Iterable[Any]) -> str:
    """A hash of the items in their order; equal for lists and tuples."""
    found = hashlib.sha256()
    for item in items:
        found.update(json.dumps(item, ensure_ascii=True).encode() + b"\n")
    return found.hexdigest()


def problems_digest(
    problems: Iterable[tuple[str, str]], rows: Iterable[Mapping[str, Any]] = (), seed: int | None = None
) -> str:
    """A hash of the problems.

    Args:
        problems: question and answer of each.
        rows: of episodes, the other columns of each problem's row, which environments get.
        seed: see `environment_seed`.
    """
    return digest([*problems, *rows, *([] if seed is None else [("seed", seed)])])


def environment_seed(seed: int, environment: EnvironmentConfig) -> int | None:
    """The seed from which each problem's environment starts; None without one, as tools have no start."""
    return None if environment.factory is None else seed


def settings_of(config: Config, grader: str | None, *, rewarding: bool = False) -> dict[str, Any]:
    """How a run with this config measures held-out problems, as far as its config knows it, as in `settings.json`.

    Args:
        grader: of its evaluations.
        rewarding: see `grader_settings`.
    """
    return {
        "seed": config.seed + SEED_OFFSET,
        "data": {
            "seed": config.dataset.seed,
            "system_prompt": config.dataset.system_prompt,
            "chat_template_kwargs": dict(config.training.chat_template_kwargs or {}),
            "chat_template": config.model.chat_template,
        },
        "sampling": sampling_settings(config),
        "num_samples": config.evaluation.num_samples,
        **grader_settings(config, grader, rewarding=rewarding),
        **reward_settings(config),
        **episode_settings(config.environment),
    }


def reward_settings(config: Config) -> dict[str, Any]:
    """The reward functions of evaluations with this config, as in `settings.json`."""
    return {"rewards": {"funcs": list(config.rewards.funcs), "weights": list(config.training.reward_weights or ())}}


def episode_settings(settings: EnvironmentConfig) -> dict[str, Any]:
    """The environments and tools of an evaluation, as in `settings.json`; empty without any."""
    if not settings.used:
        return {}
    environments = [
        {"name": name, "factory": factory, "settings": without_secrets(own)}
        for name, (factory, own) in settings.factories.items()
    ]
    return {"episodes": {"environments": environments, "tools": list(settings.tools), "max_turns": settings.max_turns}}


def sampling_settings(config: Config) -> dict[str, Any]:
    """The sampling settings of evaluations with this config, as in `settings.json`."""
    settings = config.evaluation
    return {
        "max_completion_length": settings.max_completion_length or config.training.max_completion_length or 256,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
    }
