"""Experiment trackers: checked before anything heavy, and told the project, the group and the mode.

Trackers are TRL's and transformers' own (`training.report_to`). What they take only from the environment is set for the
time of the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from covey.config import Config
from covey.errors import ConfigError

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


def trackers(config: Config) -> list[str]:
    """The trackers that the run reports to; none when `logging.mode=disabled`.

    Raises:
        ConfigError: one of them is not installed.
    """
    asked = config.training.report_to
    names = [asked] if isinstance(asked, str) else list(asked or [])
    names = [name for name in names if name != "none"]
    if config.logging.mode == "disabled":
        return []
    for name in names:
        package, install = _NEEDS.get(name, (name, name))
        if name in _NEEDS and find_spec(package) is None:
            raise ConfigError(
                f"training.report_to={name} needs the package {package}, which is not installed: pip install "
                f"'{install}', or choose logging=none."
            )
    return names


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
    added = {name: value for name, value in wanted.items() if value is not None and name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
