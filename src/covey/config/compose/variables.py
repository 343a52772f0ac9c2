"""Which environment variables a config may read by `${oc.env:NAME}`.

A recipe may come from a stranger, and what it reads ends up in the run's files. So it may read harmless variables, and
those that the user names on the command line (`key='${oc.env:NAME}'`) or in COVEY_ALLOW_ENV.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from covey.config.secrets import is_secret_key
from covey.errors import ConfigError

ALLOW = "COVEY_ALLOW_ENV"
"""Names further allowed variables, separated by commas or spaces."""

HARMLESS = (
    *("HOME", "USER", "LOGNAME", "HOSTNAME", "PWD", "TMPDIR", "TMP", "TEMP", "LANG", "TZ"),
    *("SCRATCH", "WORK", "DATA_DIR", "OUTPUT_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "CONDA_PREFIX", "VIRTUAL_ENV"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_CACHE"),
    *("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_MODE", "WANDB_DIR", "CONFIG", "RUN_NAME", "SEED", "JOB_ID", "JOB_NAME"),
)
"""What every config may read, besides `SLURM_*`, `PBS_*` and `LSB_*` without those that hold secrets."""
_SCHEDULERS = ("SLURM_", "PBS_", "LSB_")
_TYPED = re.compile(r"oc\.env:\s*[\"']?([A-Za-z_]\w*)")


@contextmanager
def guarded_variables(words: Iterable[str]) -> Iterator[None]:
    """Context manager: `${oc.env:…}` resolves for allowed variables only.

    Args:
        words: what the user typed; the variables named there are allowed.

    Raises:
        ConfigError: a config reads another one.
    """
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    typed = {name for word in words for name in _TYPED.findall(word)}
    allowed = {*HARMLESS, *typed, *re.split(r"[\s,]+", os.environ.get(ALLOW, ""))}
    refused: list[str] = []

    def read(key: Any, *default: Any) -> str | None:
        name = str(key)
        if default and name not in os.environ:  # discloses nothing
            return oc.env(name, *default)
        if name not in allowed and (not name.startswith(_SCHEDULERS) or is_secret_key(name)):
            refused.append(name)
            raise PermissionError(name)
        return oc.env(name, *default)

    OmegaConf.register_new_resolver("oc.env", read, replace=True)
    try:
        yield
    except Exception as error:  # OmegaConf and Hydra wrap it in errors of their own
        if not refused:
            raise
        raise ConfigError(_refusal(refused[0], error)) from None
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _refusal(name: str, error: Exception) -> str:
    place = re.search(r"\(Set in [^)]*\)", str(error))
    key = str(getattr(error, "full_key", "") or "") or str(error).partition(" ")[0]
    where = f"{key} " if re.fullmatch(r"[a-z][\w.\[\]]*", key) else "The config "
    return (
        f"{where}reads the environment variable {name}, and a recipe may read harmless ones only (listed in "
        f"docs/security.md), since what it reads ends up in the run's files. To allow it, put {ALLOW}={name} before "
        f"the command.{f' {place[0]}' if place else ''}"
    )
