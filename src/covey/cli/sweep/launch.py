"""Launching jobs: with Hydra one after the other here, or wherever a launcher plug-in runs them; or on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode

from covey.advice import install
from covey.config import Config
from covey.config.compose.group_files import CONF
from covey.errors import ConfigError, CoveyError, one_line
from covey.launch.machine import LaunchError

_ALLOWED = ("hydra/launcher", "hydra.launcher.", "hydra.job.env_set.", "hydra.job.env_copy")
_ELSEWHERE = {
    "hydra/sweeper": "Covey tries every combination of the values given, so other sweepers are not supported",
    "hydra.sweeper.": "write what is to be swept as key=a,b on the command line",
    "hydra.sweep.": "the sweep's folder is output_dir/run_name",
    "hydra.run.": "the sweep's folder is output_dir/run_name",
}


class SweepLaunchError(CoveyError):
    """A launcher that could not start the jobs, or lost one."""


def check_hydra(words: Sequence[str]) -> None:
    """Raise a `ConfigError` for settings of Hydra that Covey's sweeps do not support, naming those that they do."""
    for word in words:
        name = word.lstrip("+~").partition("=")[0]
        if name == "hydra.mode" or name.startswith(_ALLOWED):
            continue
        why = next((why for start, why in _ELSEWHERE.items() if name.startswith(start)), "Covey does not support it")
        raise ConfigError(
            f"`{word}`: {why}. Of Hydra's own settings hydra/launcher, hydra.launcher.* and hydra.job.env_set.* are "
            "supported."
        )


def is_default_launcher(words: Sequence[str]) -> bool:
    """Whether the jobs run here, one after the other."""
    chosen = [word.partition("=")[2] for word in words if word.lstrip("+").startswith("hydra/launcher=")]
    return not chosen or chosen[-1] == "basic"


def check_launcher(hydra_words: Sequence[str], config_dirs: Sequence[str]) -> None:
    """Raise a `ConfigError` unless the launcher is installed and knows its settings."""
    with _hydra_app(hydra_words) as hydra:
        hydra.compose_config(None, _overrides(hydra_words, config_dirs), run_mode=RunMode.MULTIRUN)


def launch_on_ray(task: Callable[[Any], Any], config: Config, numbers: Sequence[int], hydra: Sequence[str]) -> None:
    """Call `task` as `launch` does, in a task of a Ray cluster for every number."""
    from covey.launch.on_ray import run_jobs

    if not is_default_launcher(hydra):
        raise ConfigError("launch.backend=ray and hydra/launcher=… both say where the sweep's jobs run: leave one out.")
    try:
        run_jobs(task, numbers, config)
    except LaunchError as error:
        raise SweepLaunchError(str(error)) from error


def launch(
    task: Callable[[Any], Any],
    numbers: Sequence[int],
    folder: Path,
    hydra_words: Sequence[str],
    config_dirs: Sequence[str],
) -> None:
    """Call `task` with a config that holds `job`, once for every number, through Hydra's launcher; wait for all.

    Args:
        task: runs a job; plug-ins pickle it.
        folder: where Hydra and the launcher may write.
        hydra_words: `hydra/launcher=…`, `hydra.launcher.…=…`.
        config_dirs: folders in which more launchers may be described (`hydra/launcher/NAME.yaml`).

    Raises:
        CoveyError: the launcher is not installed, or could not start or follow the jobs.
    """
    swept = [f"+job={','.join(map(str, numbers))}", f"hydra.sweep.dir={_quoted(str(folder.absolute()))}"]
    with _hydra_app(hydra_words) as hydra:
        try:
            hydra.multirun(None, task, [*_overrides(hydra_words, config_dirs), *swept], with_log_configuration=False)
        except (HydraException, ImportError):
            raise
        except Exception as error:  # anything a plug-in raises; with Hydra's own launcher it is a bug
            if is_default_launcher(hydra_words):
                raise
            raise SweepLaunchError(
                f"The launcher ended with an error: {type(error).__name__}: {one_line(error)}"
            ) from error


def _overrides(words: Sequence[str], config_dirs: Sequence[str]) -> list[str]:
    found = [
        *(word for word in words if not word.lstrip("+").startswith("hydra.mode=")),
        "hydra.sweep.subdir=.",
        "hydra.output_subdir=null",
        "hydra.job.chdir=false",
        "hydra/hydra_logging=none",
        "hydra/job_logging=none",
    ]
    if config_dirs:
        places = ",".join(_quoted(f"file://{Path(name).expanduser().absolute()}") for name in config_dirs)
        found.append(f"hydra.searchpath=[{places}]")
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"


@contextmanager
def _hydra_app(words: Sequence[str]) -> Iterator[Any]:
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
