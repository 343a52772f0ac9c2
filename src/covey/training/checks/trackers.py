"""Experiment trackers: early checks, their project, group and mode, and what happens when one fails.

Trackers are TRL's and transformers' own (`training.report_to`). What they read only from the environment is set during
the run. W&B without a login, or without its server, keeps its logs in files; no tracker ends a run.
"""

from __future__ import annotations

import configparser
import logging
import math
import netrc
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from covey.advice import install
from covey.config import Config
from covey.errors import ConfigError, one_line
from covey.runlog import names
from covey.training.processes import environment_kept

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from covey.runlog.evaluations import StoredEvaluation


logger = logging.getLogger(__name__)

_NEEDS = {
    "wandb": ("wandb", ""),
    "tensorboard": ("tensorboard", ""),
    "trackio": ("trackio", ""),
    "mlflow": ("mlflow", "mlflow"),
    "comet_ml": ("comet_ml", "comet-ml"),
    "clearml": ("clearml", "clearml"),
    "swanlab": ("swanlab", "swanlab"),
}
"""Per tracker the package that it needs, and its name for pip; empty for an extra of Covey of the tracker's name."""

_OFFLINE = ("tensorboard", "wandb", "trackio")
"""Trackers that are known to log to local files only."""
_SPACE = "TRACKIO_SPACE_ID"
_CLOSED_AT_END = ("TensorBoardCallback", "TrackioCallback")
"""Trackers that only close their files at the end of training; others may upload the model then."""
_LEFT_OUT, _OFFLINE_RUN = "_covey_left_out", "_covey_offline"
"""Attributes of a tracker's callback."""


def trackers(config: Config) -> list[str]:
    """The trackers that the run reports to; none when `logging.mode=disabled`. Raises a `ConfigError` if one of them is
    not installed, or would upload logs in offline mode."""
    setting = config.training.report_to
    names = [setting] if isinstance(setting, str) else list(setting or [])
    names = [name for name in names if name != "none"]
    if config.logging.mode == "disabled":
        return []
    if os.environ.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on"):
        names = [name for name in names if name != "wandb"]
    if config.logging.mode == "offline":
        _check_offline(config, names)
    for name in names:
        package, for_pip = _NEEDS.get(name, (name, name))
        if name in _NEEDS and find_spec(package) is None:
            how = f"pip install {for_pip}" if for_pip else install(name)
            raise ConfigError(
                f"training.report_to={name} needs the package {package}, which is not installed: {how}, or set "
                "training.report_to=none."
            )
    return names


def tracker_notes(config: Config) -> list[str]:
    """What the user is told about trackers before the run starts."""
    trackers(config)
    if not _lacks_login(config):
        return []
    return [
        "W&B: nobody is logged in on this machine, so it keeps its logs in files (offline); `wandb sync` uploads them. "
        "To upload while training: `wandb login`, or set WANDB_API_KEY."
    ]


def _lacks_login(config: Config) -> bool:
    """Whether W&B would upload its logs, and nobody is logged in."""
    uploads = config.logging.mode == "online" and os.environ.get("WANDB_MODE", "online") == "online"
    return uploads and "wandb" in trackers(config) and not _logged_in()


def _logged_in() -> bool:
    """Whether W&B finds a key, a token, or settings with a key or another mode; asks no server."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if getattr(sys.modules.get("wandb"), "run", None) is not None:  # started by the user, in a notebook
        return True
    settings = configparser.ConfigParser(interpolation=None)
    folder = os.environ.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb"
    try:
        settings.read([Path(folder) / "settings", Path(os.environ.get("WANDB_DIR") or ".") / "wandb" / "settings"])
    except (configparser.Error, UnicodeDecodeError):
        logger.warning("W&B's settings cannot be read.", exc_info=True)
    own = dict(settings["default"]) if settings.has_section("default") else {}
    if own.get("api_key") or own.get("mode", "online") != "online":
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or own.get("base_url") or "https://api.wandb.ai").netloc
    named = os.environ.get("NETRC")
    for file in [Path(named).expanduser()] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            login = netrc.netrc(file).authenticators(host)
        except (OSError, netrc.NetrcParseError):
            continue
        if login is not None and login[2]:
            return True
    return False


def guard_trackers(trainer: Trainer) -> None:
    """Let no tracker end the training: W&B that cannot start goes on offline, and a tracker that fails is left out."""
    for callback in _callbacks(trainer):
        for event in [name for name in dir(callback) if name.startswith("on_")]:
            setattr(callback, event, _Guarded(callback, getattr(callback, event)))


class _Guarded:
    """One event of a tracker, which does not raise."""

    def __init__(self, callback: Any, method: Callable[..., Any]) -> None:
        self.callback, self.method = callback, method

    def __call__(self, args: Any, *others: Any, **named: Any) -> Any:
        if getattr(self.callback, _LEFT_OUT, False):
            return None
        try:
            return self.method(args, *others, **named)
        except Exception as error:  # each tracker has errors of its own
            if self._goes_on_offline(args, error):
                return self(args, *others, **named)
            name = type(self.callback).__name__.removesuffix("Callback")
            logger.warning(
                "The tracker %s failed and is left out from here on: %s", name, one_line(error), exc_info=True
            )
            setattr(self.callback, _LEFT_OUT, True)
            args.report_to = [tracker for tracker in args.report_to if tracker != name.lower()]  # TRL logs to these too
            return None

    def _goes_on_offline(self, args: Any, error: Exception) -> bool:
        """Start W&B offline, if it is W&B, and could not start."""
        wandb = getattr(self.callback, "_wandb", None)
        if wandb is None or wandb.run is not None or getattr(self.callback, _OFFLINE_RUN, False):
            return False
        setattr(self.callback, _OFFLINE_RUN, True)
        try:  # its session has begun, so that it reads no environment variable any more
            wandb.init(project=os.environ.get("WANDB_PROJECT", "huggingface"), name=args.run_name, mode="offline")
        except Exception:
            logger.warning("W&B could not start offline either.", exc_info=True)
            return False
        self.callback._initialized = False
        logger.warning(
            "W&B cannot be reached, so it keeps its logs in files; `wandb sync` uploads them: %s",
            one_line(error),
            exc_info=error,
        )
        return True


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
    `eval/accuracy`, which they make of `eval_accuracy`, and `train/` before all others."""
    logs = {re.sub("^eval/", "eval_", name): value for name, value in row.items() if value is not None}
    for callback in _callbacks(trainer):
        callback.on_log(trainer.args, trainer.state, trainer.control, model=trainer.model, logs=dict(logs))


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


@contextmanager
def tracker_environment(config: Config) -> Iterator[None]:
    """Context manager: sets the environment variables of trackers, but none that the user has set."""
    settings = config.logging
    wanted = {
        "WANDB_PROJECT": settings.project,
        "WANDB_ENTITY": settings.entity,
        "WANDB_RUN_GROUP": settings.group,
        "WANDB_TAGS": ",".join(settings.tags) or None,
        "WANDB_NOTES": settings.notes,
        "WANDB_MODE": None if settings.mode == "online" else settings.mode,
    }
    missing = {name: value for name, value in wanted.items() if value is not None and name not in os.environ}
    with environment_kept(*wanted, _SPACE):
        if settings.mode == "offline":
            os.environ.pop(_SPACE, None)
        os.environ.update(missing)
        if _lacks_login(config):
            os.environ["WANDB_MODE"] = "offline"
        yield
