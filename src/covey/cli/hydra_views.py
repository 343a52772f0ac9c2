"""Hydra's own looks at a config: `--cfg` prints it, `--info` how it was composed. Nothing runs, nothing heavy loads."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from covey.cli.composing import Request, print_notes
from covey.cli.hydra_app import hydra_app
from covey.cli.sweep.expand import Variant, expand
from covey.config import Composed, to_yaml
from covey.config.groups import Roots
from covey.config.recipe import read_recipe


def show(request: Request, cfg: str | None, info: str | None, *, sweep: bool = False) -> int:
    """Print what `--cfg` or `--info` asks for, of every job when it is a sweep; returns the exit code."""
    variants = expand(request.overrides, Roots.of(request.config_dirs)) if sweep else [Variant(request.overrides, {})]
    for number, variant in enumerate(variants):
        one = Request(request.recipe, variant.overrides, (), request.config_dirs)
        composed = one.compose()
        print_notes(composed)
        if sweep:
            print(f"---\n# job {number}: {variant.text}")
        if cfg is not None:
            show_cfg(cfg, request, composed)
        if info is not None:
            show_info(info, request, composed)
    return 0


def show_cfg(what: str, request: Request, composed: Composed) -> None:
    """Print the config of the run (`job`), of Hydra (`hydra`), or both (`all`)."""
    if what in ("job", "all"):
        print(to_yaml(composed.config), end="")
    if what in ("hydra", "all"):
        with _hydra(request) as hydra:
            hydra.show_cfg("config", [*_choices(request, composed), *request.hydra], cfg_type="hydra", package=None)


def show_info(what: str, request: Request, composed: Composed) -> None:
    """Print the tree of the chosen groups, the defaults list, the folders that are searched, or the plug-ins."""
    overrides = [*_choices(request, composed), *request.hydra]
    if what in ("config", "all"):  # the rest of these two, and then the config as Covey resolves it
        for part in ("plugins", "searchpath", "defaults-tree", "defaults")[what == "config" :]:
            show_info(part, request, composed)
        print(f"\nConfig\n******\n{to_yaml(composed.config)}", end="")
        return
    if (
        what.startswith("defaults")
        and not composed.choices
        and composed.recipe
        and read_recipe(composed.recipe).complete
    ):
        print(f"{composed.recipe} is a whole config (`defaults: []`): nothing is composed from groups.")
        return
    with _hydra(request) as hydra:
        hydra.show_info(what, "config", overrides)


@contextmanager
def _hydra(request: Request) -> Iterator[Any]:
    """Hydra. What it prints, in part through a handler of its own on the root logger, is printed at the end."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    text = io.StringIO()
    try:
        with redirect_stdout(text), hydra_app(request.hydra) as hydra:
            yield hydra
    finally:
        root.handlers = handlers
        root.setLevel(level)
    print(text.getvalue(), end="")


def _choices(request: Request, composed: Composed) -> list[str]:
    """The groups that were chosen, in Hydra's words."""
    return Roots.of(request.config_dirs).spell(composed.choices)
