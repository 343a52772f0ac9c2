"""Experiment trackers: early checks, and their project, group and mode.

Trackers are TRL's and transformers' own (`training.report_to`). What they read only from the environment is set during
the run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from covey.config import Config
from covey.errors import ConfigError
from covey.runlog import names

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from covey.runlog.evaluations import StoredEvaluation

_NEEDS = {
    "wandb": ("wandb", "covey[wandb]"),
    "tensorboard": ("tensorboard", "covey[tensorboard]"),
    "trackio": ("trackio", "covey[trackio]"),
    "mlflow": ("mlflow", "mlflow"),
    "comet_ml": ("comet_ml", "comet-ml"),
    "clearml": ("clearml", "clearml"),
    "swanlab": ("swanlab", "swanlab"),
}
"""Per tracker the package that it needs, and its name for pip."""

_OFFLINE = ("tensorboard", "wandb", "trackio")
"""Trackers that are known to log to local files only."""
_SPACE = "TRACKIO_SPACE_ID"
_CLOSED_AT_END = ("TensorBoardCallback", "TrackioCallback")
"""Trackers that only close their files at the end of training; others may upload the model then."""


def trackers(config: Config) -> list[str]:
    """The trackers that the run reports to; none when `logging.mode=disabled`.

    Raises:
        ConfigError: one of them is not installed, or would upload logs in offline mode.
    """
    setting = config.training.report_to
    names = [setting] if isinstance(setting, str) else list(setting or [])
    names = [name for name in names if name != "none"]
    if config.logging.mode == "disabled":
        return []
    if config.logging.mode == "offline":
        _check_offline(config, names)
    for name in names:
        package, install = _NEEDS.get(name, (name, name))
        if name in _NEEDS and find_spec(package) is None:
            raise ConfigError(
                f"training.report_to={name} needs the package {package}, which is not installed: pip install "
                f"'{install}', or choose logging=none."
            )
    return names


def _check_offline(config: Config, names: list[str]) -> None:
    unknown = [name for name in names if name not in _OFFLINE]
    if unknown:
        raise ConfigError(
            f"logging.mode=offline: Covey does not know how to keep {unknown[0]} from uploading its logs. Choose "
            f"among {', '.join(_OFFLINE)}, or configure {unknown[0]} itself, with logging.mode=online."
        )
    for key in ("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"):
        if "trackio" in names and config.training.values.get(key):
            raise ConfigError(
                f"training.{key}={config.training.values[key]} makes Trackio upload its logs to the hub, but "
                "logging.mode=offline keeps them local: set only one of them."
            )


def log_to_trackers(trainer: Trainer, row: Mapping[str, Any]) -> None:
    """Log metrics that are not in the trainer's own log to the trackers, under the names they use for the log:
    `eval/accuracy`, and `train/` before all others."""
    named = {_for_tracker(name): value for name, value in row.items() if value is not None}
    for callback in _callbacks(trainer):
        callback.on_log(trainer.args, trainer.state, trainer.control, model=trainer.model, logs=dict(named))


def log_benchmarks(trainer: Trainer, evaluations: Iterable[StoredEvaluation]) -> None:
    """Log benchmark results to the trackers after training: `eval/gsm8k/accuracy`, with its bounds as `…_low` and
    `…_high`. Not every tracker accepts an `@`: `pass@4` is `eval/gsm8k/pass_at_4` in all of them."""
    row: dict[str, float] = {}
    for evaluation in evaluations:
        for metric, figure in evaluation.summary.items():
            name = names.eval_name(evaluation.settings["name"], metric.replace("@", "_at_"))
            triple = {name: figure["value"], f"{name}_low": figure["low"], f"{name}_high": figure["high"]}
            row |= {key: value for key, value in triple.items() if math.isfinite(value)}
    # Some closed their files at the end of training; without steps left to train, none has started.
    state = (trainer.args, trainer.state, trainer.control)
    for callback in _callbacks(trainer):
        callback.on_train_begin(*state, model=trainer.model)
    log_to_trackers(trainer, row)
    for callback in _callbacks(trainer):
        if type(callback).__name__ in _CLOSED_AT_END:
            callback.on_train_end(*state, model=trainer.model)


def _callbacks(trainer: Trainer) -> list[TrainerCallback]:
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    kinds = tuple(set(INTEGRATION_TO_CALLBACK.values()))
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, kinds)]


def _for_tracker(name: str) -> str:
    """Trackers put `train/` before every name, except that a leading `eval_` becomes `eval/`."""
    return "eval_" + name.removeprefix("eval/") if name.startswith("eval/") else name


@contextmanager
def tracker_environment(config: Config) -> Iterator[None]:
    """Context manager: sets the environment variables of trackers, but none that the user has set."""
    logging = config.logging
    wanted = {
        "WANDB_PROJECT": logging.project,
        "WANDB_ENTITY": logging.entity,
        "WANDB_RUN_GROUP": logging.group,
        "WANDB_TAGS": ",".join(logging.tags) or None,
        "WANDB_NOTES": logging.notes,
        "WANDB_MODE": None if logging.mode == "online" else logging.mode,
    }
    hidden = {_SPACE: os.environ.pop(_SPACE)} if logging.mode == "offline" and _SPACE in os.environ else {}
    added = {name: value for name, value in wanted.items() if value is not None and name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        os.environ.update(hidden)
