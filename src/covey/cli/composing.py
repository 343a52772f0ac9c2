"""What `covey train` and `covey config` share: their own options, the words between them, and what those compose to.

Everything that is none of the options below is a recipe, an override or a flag, and `config.flags` reads it. The two
are told apart by exact names, not by argparse, since a value such as `-1.0` or `"- be brief"` is no option.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config import Composed, Config, flags
from covey.config import compose as compose_config
from covey.config.flags import Flag
from covey.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

CFG = ("job", "hydra", "all")
INFO = ("all", "config", "defaults", "defaults-tree", "searchpath", "plugins")

_NOTHING, _VALUE, _INFO, _RECIPE = "nothing", "value", "info", "recipe"
"""What may follow an option: nothing, a value, one of INFO or nothing, a recipe or nothing."""

_OPTIONS = {
    **dict.fromkeys(("-h", "--help", "--resolve"), _NOTHING),
    **dict.fromkeys(("--config", "--config-dir", "-cd", "--config-name", "-cn", "--cfg", "-c"), _VALUE),
    **dict.fromkeys(("--info", "-i"), _INFO),
}
OPTIONS = {
    "train": {**_OPTIONS, "--multirun": _NOTHING, "-m": _NOTHING},
    "launch": {**_OPTIONS, **dict.fromkeys(("--multirun", "-m", "--slurm", "--dry-run"), _NOTHING)},
    "doctor": {**_OPTIONS, "--try": _NOTHING},
    "eval": {**_OPTIONS, "--all": _NOTHING, "--checkpoint": _VALUE, "--out": _VALUE, "--path": _VALUE},
    "config": {**_OPTIONS, "--doc": _VALUE, "--diff": _RECIPE},
}
"""The commands that take overrides, and the options of each."""

USAGE = "covey {command} [options] [RECIPE] [key=value | group=option | --flag value] …"
_WIDE = 200
"""Columns of a table in a file or a pipe, where nothing says how wide it may be."""
_EPILOGUE = """\
the recipe and its overrides:
  RECIPE             a YAML file, or the directory of a run
  key=value          sets a key; `covey config --doc KEY` explains it
  group=option       chooses an option of a config group: model=qwen3_0.6b dataset=gsm8k +experiment=quick_test
  --flag value       a key under the name that TRL or another tool gives it: --num_generations 8
They are read from left to right; the later one wins.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """What a command line asks for, not yet composed."""

    recipe: str | Path | None
    overrides: tuple[str | Flag, ...]
    hydra: tuple[str, ...]
    """Overrides of Hydra's own settings (`hydra/launcher=…`), which no run sees."""
    config_dirs: tuple[str, ...]

    @property
    def asks_for_sweep(self) -> bool:
        """Whether Hydra's own way of saying `--multirun` is among the words."""
        return any(word.lstrip("+") == "hydra.mode=MULTIRUN" for word in self.hydra)

    def with_recipe(self, recipe: str) -> Request:
        """The same, with a recipe."""
        return replace(self, recipe=recipe)

    def compose(self, world_size: Callable[[Config], int] | None = None) -> Composed:
        """Compose the config of one run.

        Args:
            world_size: finds the number of training processes; None takes what the environment says.

        Raises:
            ConfigError: unknown keys, wrong values, settings of Hydra that mean nothing to one run.
        """
        if self.hydra:
            raise ConfigError(
                f"{self.hydra[0]} is a setting of Hydra's for sweeps: add --multirun, or leave it out. A run's folder "
                "is output_dir/run_name."
            )
        return compose_config(self.overrides, self.recipe, self.config_dirs, world_size=world_size)


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options that both commands have."""
    parser.usage = USAGE.format(command=command)
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", metavar="RECIPE", help="the same as giving the recipe first")
    parser.add_argument(
        *("--config-dir", "-cd"),
        metavar="DIR",
        action="append",
        default=[],
        help="a folder with recipes and config groups of your own; may be repeated",
    )
    parser.add_argument("--config-name", "-cn", metavar="NAME", help="a recipe by its name in such a folder")
    parser.add_argument("--cfg", "-c", choices=CFG, help="print the resolved config, or Hydra's own, and run nothing")
    parser.add_argument("--resolve", action="store_true", help="taken for granted: what --cfg prints is resolved")
    parser.add_argument(
        *("--info", "-i"),
        nargs="?",
        const="all",
        choices=INFO,
        help="print how Hydra composes the config (defaults-tree: the groups that were chosen), and run nothing",
    )


def part(command: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the command's own options, each as one word for argparse, from all other words in their order."""
    kinds = OPTIONS[command]
    own: list[str] = []
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        kind = kinds.get(name)
        if kind is None:
            rest.append(word)
        elif not equals and left and _follows(kind, left[0]):
            own.append(f"{word}={left.pop(0)}")
        else:
            own.append(word)
    return own, rest


def request(arguments: argparse.Namespace) -> Request:
    """Read the words of a command line.

    Raises:
        ConfigError: two recipes, a flag that cannot be read, a recipe that is in none of the folders.
    """
    hydra = tuple(word for word in arguments.words if _is_hydras(word))
    words = flags.split([word for word in arguments.words if word not in hydra])
    recipes: dict[str, str | Path] = {}
    if words.recipe is not None:
        recipes[words.recipe] = words.recipe
    if arguments.config is not None:
        recipes[f"--config {arguments.config}"] = arguments.config
    if arguments.config_name is not None:
        recipes[f"--config-name {arguments.config_name}"] = _named(arguments.config_name, arguments.config_dir)
    if len(recipes) > 1:
        raise ConfigError(f"{len(recipes)} recipes were given, {' and '.join(recipes)}: give one.")
    return Request(
        recipe=next(iter(recipes.values()), None),
        overrides=words.overrides,
        hydra=hydra,
        config_dirs=tuple(arguments.config_dir),
    )


def print_notes(composed: Composed) -> None:
    """Say how the config came about, where it leaves what is printed alone: on the standard error."""
    for note in composed.notes:
        print(f"· {note}", file=sys.stderr)


def check_names(config: Config) -> None:
    """Check that what the config names is there, as far as that is known at once, before PyTorch is loaded.

    Raises:
        CoveyError: no such reward (functions of the user's own are loaded later), data file, or model folder.
    """
    from covey.data.files import find_path
    from covey.data.kaggle import PREFIX
    from covey.model.loading import check_name
    from covey.rewards.registry import canonical_name

    for name in config.rewards.funcs:
        if ":" not in name:
            canonical_name(name)
    paths = {"dataset.path": config.dataset.path, "dataset.test_path": config.dataset.test_path}
    for number, source in enumerate(config.dataset.mixture.sources):
        paths[f"dataset.mixture.datasets[{number}].path"] = source.path
    for key, path in paths.items():
        if path is not None and not path.startswith(PREFIX):
            find_path(path, key)
    check_name(config.model.name)


def value_of(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


def default_name(recipe: str | Path | None, configs: Sequence[Config]) -> str:
    """A run's or a sweep's name: timestamp and recipe, or model and data (where all configs agree) without a recipe."""
    models = {Path(config.model.name).name for config in configs}
    data = {config.dataset.label for config in configs}
    what = "-".join(name for names in (models, data) if len(names) == 1 for name in names) or "sweep"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{what if recipe is None else Path(recipe).stem}"


def make_console() -> Console:
    """A console that does not wrap tables where the output is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def looks_like_recipe(word: str) -> bool:
    """Whether a word of the command line names a file rather than being an option or an override."""
    return "=" not in word and not word.startswith(("-", "+", "~"))


def _follows(kind: str, word: str) -> bool:
    if kind == _INFO:
        return word in INFO
    if kind == _RECIPE:
        return looks_like_recipe(word)
    return kind == _VALUE


def _is_hydras(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))


def _named(name: str, folders: Sequence[str]) -> Path:
    if not folders:
        raise ConfigError(f"--config-name {name} is looked for in the folders of --config-dir, and none was given.")
    candidates = [Path(folder).expanduser() / spelled for folder in folders for spelled in (name, f"{name}.yaml")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ConfigError(f"There is no recipe {name}. Looked for: {', '.join(map(str, candidates))}.")
