"""Experiment trackers: checked before anything heavy, and told the project, the group and the mode.

Trackers are TRL's and transformers' own (`training.report_to`). What they take only from the environment is set for the
time of the run.
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
    from transformers import TrainerCallback

    from covey.runlog.evaluations import StoredEvaluation
    from covey.training.trainer import GRPOTrainer

_NEEDS = {
    "wandb": ("wandb", "covey[wandb]"),
    "tensorboard": ("tensorboard", "covey[tensorboard]"),
    "trackio": ("trackio", "covey[trackio]"),
    "mlflow": ("mlflow", "mlflow"),
    "comet_ml": ("comet_ml", "comet-ml"),
    "clearml": ("clearml", "clearml"),
    "swanlab": ("swanlab", "swanlab"),
}
"""By tracker: the package that it needs, and what pip calls it."""


_OFFLINE = ("tensorboard", "wandb", "trackio")
"""Trackers that are known to keep what they log in files alone."""
_SPACE = "TRACKIO_SPACE_ID"
_CLOSED_AGAIN = ("TensorBoardCallback", "TrackioCallback")
"""Trackers whose files are closed at the end of training, and nothing else: others may send the model off there."""


def trackers(config: Config) -> list[str]:
    """The trackers that the run reports to; none when `logging.mode=disabled`.

    Raises:
        ConfigError: one of them is not installed, or would send what it logs although it is to stay offline.
    """
    asked = config.training.report_to
    names = [asked] if isinstance(asked, str) else list(asked or [])
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
            f"logging.mode=offline: Covey does not know how {unknown[0]} is kept from sending what it logs. Choose "
            f"among {', '.join(_OFFLINE)}, or set {unknown[0]} up in its own way with logging.mode=online."
        )
    for key in ("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"):
        if "trackio" in names and config.training.values.get(key):
            raise ConfigError(
                f"training.{key}={config.training.values[key]} has Trackio send what it logs to the hub, and "
                "logging.mode=offline keeps it here: set one of them only."
            )


def tell_trackers(trainer: GRPOTrainer, row: Mapping[str, Any]) -> None:
    """Hand figures that are not in the trainer's own log to the trackers, under the names they give those of the log:
    `eval/accuracy`, and `train/` before all that is neither training's nor an evaluation's."""
    named = {_for_tracker(name): value for name, value in row.items() if value is not None}
    for callback in _callbacks(trainer):
        callback.on_log(trainer.args, trainer.state, trainer.control, model=trainer.model, logs=dict(named))


def tell_benchmarks(trainer: GRPOTrainer, evaluations: Iterable[StoredEvaluation]) -> None:
    """Hand the figures of benchmarks to the trackers once training is over: `eval/gsm8k/accuracy`, with its bounds as
    `…_low` and `…_high`. Not every tracker takes an `@`: `pass@4` is `eval/gsm8k/pass_at_4` to all of them."""
    row: dict[str, float] = {}
    for evaluation in evaluations:
        for metric, figure in evaluation.summary.items():
            name = names.eval_name(evaluation.settings["name"], metric.replace("@", "_at_"))
            triple = {name: figure["value"], f"{name}_low": figure["low"], f"{name}_high": figure["high"]}
            row |= {key: value for key, value in triple.items() if math.isfinite(value)}
    # Some closed their files at the end of training; where nothing was left to train, none has begun.
    around = (trainer.args, trainer.state, trainer.control)
    for callback in _callbacks(trainer):
        callback.on_train_begin(*around, model=trainer.model)
    tell_trackers(trainer, row)
    for callback in _callbacks(trainer):
        if type(callback).__name__ in _CLOSED_AGAIN:
            callback.on_train_end(*around, model=trainer.model)


def _callbacks(trainer: GRPOTrainer) -> list[TrainerCallback]:
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    kinds = tuple(set(INTEGRATION_TO_CALLBACK.values()))
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, kinds)]


def _for_tracker(name: str) -> str:
    """Trackers put `train/` before every name, except that a beginning `eval_` becomes `eval/`."""
    return "eval_" + name.removeprefix("eval/") if name.startswith("eval/") else name


@contextmanager
def tracker_environment(config: Config) -> Iterator[None]:
    """Within, the environment says what trackers read from there; what the user has set there himself stays."""
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
