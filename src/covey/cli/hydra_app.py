"""Hydra on Covey's groups, for what its compose API lacks: views and launchers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException

from covey.advice import install
from covey.config.compose.group_files import CONF
from covey.errors import ConfigError, one_line


@contextmanager
def hydra_app(words: Sequence[str]) -> Iterator[Any]:
    """Hydra's application object on Covey's primary config.

    Args:
        words: overrides of Hydra's own settings, for messages.

    Raises:
        ConfigError: a setting that Hydra does not know, or a plug-in that is not installed.
    """
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF), job_name="covey"):
        try:
            yield GlobalHydra.instance().hydra
        except (HydraException, ImportError) as error:
            raise ConfigError(_message(error, words)) from error


def _message(error: Exception, words: Sequence[str]) -> str:
    text = one_line(error).partition(" Config search path:")[0]
    name = next((word.partition("=")[2] for word in words if "hydra/launcher=" in word), "")
    if name.startswith("submitit") and name in text:
        return (
            f"hydra/launcher={name} needs the package hydra-submitit-launcher, which is not installed here. Install "
            f"Covey with the extra slurm: {install('slurm')}."
        )
    return f"Hydra rejects these settings: {text}"
