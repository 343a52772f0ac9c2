"""A package `wandb` with what transformers' callback uses, for machines without it; it records what it is asked."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

_SOURCE = """
import os
from types import SimpleNamespace

__version__ = "0"
run, calls, logged = None, [], []
errors = []  # raised by the next calls of init
broken = False  # whether log fails


class Config(dict):
    def update(self, values, allow_val_change=False):
        super().update(values)


config = Config()


def init(project=None, name=None, mode=None, **settings):
    global run
    mode = mode or os.environ.get("WANDB_MODE", "online")
    calls.append({"project": project, "name": name, "mode": mode, "tags": os.environ.get("WANDB_TAGS")})
    if errors and mode != "disabled":
        raise errors.pop(0)
    run = SimpleNamespace(_label=lambda **named: None, name=name, id="1", url=None, settings=SimpleNamespace(mode=mode))
    return run


def log(values, **named):
    if broken:
        raise OSError("disk gone")
    logged.append(values)


def define_metric(*names, **named):
    pass


def termwarn(*texts, **named):
    pass
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Make the package in a folder, and import it from there until the end of the test."""
    lib = folder / "wandb" / "sdk" / "lib"
    lib.mkdir(parents=True)
    for part in (folder / "wandb", folder / "wandb" / "sdk", lib):
        (part / "__init__.py").write_text("")
    (folder / "wandb" / "__init__.py").write_text(_SOURCE)
    (lib / "config_util.py").write_text("class ConfigError(Exception):\n    pass\n")
    names = ("wandb", "wandb.sdk", "wandb.sdk.lib", "wandb.sdk.lib.config_util")
    for name in names:  # so that the end of the test removes them
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    for name in names:
        importlib.import_module(name)
    return sys.modules["wandb"]
