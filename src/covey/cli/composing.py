"""What `covey train` and `covey config` share: `[RECIPE] [key=value …] [--config RECIPE] [--config-dir DIR]`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from covey.config import Config, load
from covey.errors import ConfigError

RECIPE_HELP = "a recipe (YAML file), then any number of key=value overrides, read left to right"


@dataclass(frozen=True, slots=True)
class Composed:
    """A composed config and where it came from."""

    config: Config
    recipe: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="[RECIPE] key=value", help=RECIPE_HELP)
    parser.add_argument("--config", metavar="RECIPE", help="the same as giving the recipe first")
    parser.add_argument(
        "--config-dir", metavar="DIR", action="append", default=[], help="a folder with config groups of your own"
    )


def compose(arguments: argparse.Namespace) -> Composed:
    """Compose the config that the command line asks for.

    Raises:
        ConfigError: unknown keys, wrong values, two recipes, a recipe that is not there.
    """
    recipe, overrides = split_words(arguments.words)
    if recipe is not None and arguments.config is not None:
        raise ConfigError(f"two recipes were given, {recipe} and --config {arguments.config}: give one.")
    recipe = recipe or arguments.config
    return Composed(load(overrides, recipe=recipe, config_dirs=arguments.config_dir), recipe)


def split_words(words: list[str]) -> tuple[str | None, list[str]]:
    """Part the recipe (a word without `=`, which can only come first) from the overrides."""
    if words and "=" not in words[0] and not words[0].startswith(("+", "~")):
        return words[0], words[1:]
    return None, words
