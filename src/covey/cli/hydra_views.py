"""`--cfg job` and `--info defaults-tree`: the resolved config, and the groups it is composed of."""

from __future__ import annotations

from dataclasses import replace

from covey.cli.config_arguments import Request, print_notes, print_without_effect
from covey.cli.sweep.expand import Variant, expand
from covey.cli.sweep.launch import check_launcher
from covey.config import to_yaml
from covey.config.compose.group_files import Roots
from covey.config.secrets import redact


def show(request: Request, cfg: str | None, info: str | None, *, sweep: bool = False) -> int:
    """Print the view of `--cfg` or `--info`, for every job of a sweep; returns the exit code."""
    variants = expand(request.overrides, Roots.of(request.config_dirs)) if sweep else [Variant(request.overrides, {})]
    if info is not None and request.hydra:
        check_launcher(request.hydra, request.config_dirs)
    for number, variant in enumerate(variants):
        composed = replace(request, overrides=variant.overrides, hydra=()).compose()
        print_notes(composed)
        print_without_effect(composed)
        if sweep:
            print(f"---\n# job {number}: {variant.text}")
        if cfg is not None:
            print(to_yaml(composed.config), end="")
        if info is not None and composed.defaults_tree:
            print(redact("\n".join(["", "Defaults Tree", "*" * len("Defaults Tree"), *composed.defaults_tree])))
        elif info is not None:
            print(f"{composed.recipe} is a complete config (`defaults: []`): nothing is composed from groups.")
    return 0
