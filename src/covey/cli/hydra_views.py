"""`--cfg job` and `--info defaults-tree`: the resolved config, and the groups it is composed of."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stdout

from covey.cli.config_arguments import Request, print_notes
from covey.cli.hydra_app import hydra_app
from covey.cli.sweep.expand import Variant, expand
from covey.config import Composed, to_yaml
from covey.config.compose.group_files import Roots
from covey.config.compose.recipe import read_recipe
from covey.config.secrets import redact


def show(request: Request, cfg: str | None, info: str | None, *, sweep: bool = False) -> int:
    """Print the view of `--cfg` or `--info`, for every job of a sweep; returns the exit code."""
    variants = expand(request.overrides, Roots.of(request.config_dirs)) if sweep else [Variant(request.overrides, {})]
    for number, variant in enumerate(variants):
        one = Request(request.recipe, variant.overrides, (), request.config_dirs)
        composed = one.compose()
        print_notes(composed)
        if sweep:
            print(f"---\n# job {number}: {variant.text}")
        if cfg is not None:
            print(to_yaml(composed.config), end="")
        if info is not None:
            _show_tree(request, composed)
    return 0


def _show_tree(request: Request, composed: Composed) -> None:
    """Print the tree of the chosen groups, which Hydra logs through a handler on the root logger."""
    if not composed.choices and composed.recipe and read_recipe(composed.recipe).complete:
        print(f"{composed.recipe} is a complete config (`defaults: []`): nothing is composed from groups.")
        return
    overrides = [*Roots.of(request.config_dirs).as_overrides(composed.choices), *request.hydra]
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    text = io.StringIO()
    try:
        with redirect_stdout(text), hydra_app(request.hydra) as hydra:
            hydra.show_info("defaults-tree", "config", overrides)
    finally:
        root.handlers = handlers
        root.setLevel(level)
    print(redact(text.getvalue()), end="")
