"""What commands that compose a config share: their options, and reading recipe, overrides and flags.

Every other word is a recipe, an override or a flag, which `config.compose.flags` reads. Options are recognised by exact
name, not by argparse, since a value such as `-1.0` or `"- be brief"` is not an option.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from covey.config import Composed, Config
from covey.config import compose as compose_config
from covey.config.compose import flags
from covey.config.compose.flags import Flag
from covey.config.groups.rewards import RewardsConfig
from covey.config.live import notes_without_effect
from covey.config.secrets import from_launcher, redact
from covey.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


_VIEWS = {"cfg": "job", "info": "defaults-tree"}
"""The options that print the configuration of a run instead of running it, and the one value that each takes."""
_WIDE = 200
"""Width of a table in a file or a pipe."""
OVERRIDES = """\
the recipe and its overrides:
  RECIPE             a YAML file, or a run directory
  key=value          sets a key; `covey config --doc KEY` explains it
  group=option       chooses an option of a config group: model=qwen3_0.6b dataset=gsm8k
  +group=option      adds one that is not there by default: +experiment=quick_test
  --flag value       a key by its name in TRL or another tool: --num_generations 8
They are read from left to right; the later one wins. Put words with brackets in quotes.
"""
"""The words that are no options, for `--help` and the reference of commands."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a command line requests, not yet composed."""

    recipe: str | Path | None
    overrides: tuple[str | Flag, ...]
    hydra: tuple[str, ...]
    """Overrides of Hydra's own settings (`hydra/launcher=…`), not part of a run's config."""
    config_dirs: tuple[str, ...]
    config_name: str | None = None
    """The primary config in one of the folders."""

    @property
    def is_sweep(self) -> bool:
        """Whether the words hold Hydra's own form of `--multirun`."""
        return any(word.lstrip("+") == "hydra.mode=MULTIRUN" for word in self.hydra)

    @property
    def source(self) -> str | Path | None:
        """The recipe, or else the primary config's name."""
        return self.recipe if self.recipe is not None else self.config_name

    def with_recipe(self, recipe: str) -> Request:
        """The same, with a recipe."""
        return replace(self, recipe=recipe)

    def compose(self, world_size: Callable[[Config], int] | None = None) -> Composed:
        """Compose the config of one run.

        Args:
            world_size: gives the number of training processes; None takes it from the environment.

        Raises:
            ConfigError: unknown keys, wrong values, Hydra settings that only sweeps have.
        """
        if self.hydra:
            raise ConfigError(
                f"{self.hydra[0]} is a Hydra setting for sweeps: add --multirun, or leave it out. A run's folder "
                "is output_dir/run_name."
            )
        secrets = [
            Flag(key, (value if isinstance(value, str) else json.dumps(value),))
            for key, value in from_launcher().items()
        ]
        return compose_config(
            *((*self.overrides, *secrets), self.recipe, self.config_dirs),
            config_name=self.config_name,
            world_size=world_size,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that takes a recipe and overrides, which go to `words`."""
    parser.usage = f"{parser.prog} [options] [RECIPE] [key=value | group=option | --flag value] …"
    parser.set_defaults(words=[])
    parser.epilog = OVERRIDES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", metavar="RECIPE", help="the recipe, instead of giving it first")
    parser.add_argument(
        *("--config-dir", "-cd"),
        metavar="DIR",
        action="append",
        default=[],
        help="a folder with recipes and config groups of your own; may be repeated",
    )
    parser.add_argument("--config-name", "-cn", metavar="NAME", help="a primary config by its name in such a folder")
    parser.add_argument("--cfg", "-c", metavar="job", help="print the resolved config, and run nothing")
    parser.add_argument("--resolve", action="store_true", help="no effect: --cfg always prints resolved values")
    parser.add_argument(
        *("--info", "-i"),
        nargs="?",
        const="defaults-tree",
        metavar="defaults-tree",
        help="print the chosen config groups, and run nothing",
    )


def split_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the command's own options, each as one word for argparse, from all other words, in order."""
    options: list[str] = []
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        option = parser._option_string_actions.get(name)
        if option is None:
            rest.append(word)
        elif equals or not left or option.nargs == 0 or (option.nargs == "?" and not _looks_like_recipe(left[0])):
            options.append(word)
        else:
            options.append(f"{word}={left.pop(0)}")
    return options, rest


def read_request(arguments: argparse.Namespace) -> Request:
    """Read the words of a command line. Raises a `ConfigError` for two recipes, an invalid flag, a recipe in none of
    the folders, an unsupported Hydra view."""
    for option, view in _VIEWS.items():
        if getattr(arguments, option) not in (None, view):
            raise ConfigError(
                f"--{option} {getattr(arguments, option)} is not supported: `--cfg job` prints the resolved "
                "config, `--info defaults-tree` the chosen config groups."
            )
    hydra = tuple(word for word in arguments.words if word.lstrip("+~").startswith(("hydra.", "hydra/")))
    words = flags.split([word for word in arguments.words if word not in hydra])
    recipes: dict[str, str | Path] = {}
    if words.recipe is not None:
        recipes[words.recipe] = words.recipe
    if arguments.config is not None:
        recipes[f"--config {arguments.config}"] = arguments.config
    if len(recipes) > 1:
        raise ConfigError(f"{len(recipes)} recipes were given, {' and '.join(recipes)}: give one.")
    return Request(
        recipe=next(iter(recipes.values()), None),
        overrides=words.overrides,
        hydra=hydra,
        config_dirs=tuple(arguments.config_dir),
        config_name=arguments.config_name,
    )


def processes_of(config: Config) -> int:
    """The training processes that the config asks of `covey launch`, else those of the launcher that started this."""
    if config.launch.num_processes is None and config.launch.gpus is None:
        return int(os.environ.get("WORLD_SIZE", "1"))
    from covey.launch.machine import this_machine
    from covey.launch.plan import training_processes

    return training_processes(config, this_machine())


def print_notes(composed: Composed) -> None:
    """Print the notes to stderr, apart from the command's output."""
    for note in composed.notes:
        print(f"· {note}", file=sys.stderr)


def print_without_effect(*composed: Composed) -> None:
    """Print to stderr which of the user's keys have no effect, and what would give them one: each line once, also for
    the jobs of a sweep."""
    for line in dict.fromkeys(line for one in composed for line in lines_without_effect(one)):
        print(f"· {redact(line)}", file=sys.stderr)


def lines_without_effect(composed: Composed) -> list[str]:
    """See `covey.config.live.notes_without_effect`."""
    return notes_without_effect(composed.config, composed.given, _FACTS)


def _rewards(config: Config) -> list[str]:
    from covey.rewards.registry import canonical_name

    return [name if ":" in name else canonical_name(name) for name in config.rewards.funcs]


def _grader(config: Config) -> str:
    from covey.evaluation.grading import grader_name

    return grader_name(config) or ""


def _graders(config: Config) -> list[str]:
    from covey.rewards.registry import IMPLIED_GRADERS

    return [_grader(config), *(IMPLIED_GRADERS[name] for name in _rewards(config) if name in IMPLIED_GRADERS)]


_FACTS = MappingProxyType({"rewards": _rewards, "grader": _grader, "graders": _graders})


def check_registered(config: Config) -> None:
    """Raise a `CoveyError` for a reward, grader or benchmark that the config names and that no installation has."""
    if config.rewards.funcs != RewardsConfig().funcs or config.evaluation.grader is not None:
        from covey.rewards.registry import canonical_grader, canonical_name

        for name in config.rewards.funcs:
            if ":" not in name:
                canonical_name(name)
        if config.evaluation.grader is not None and ":" not in config.evaluation.grader:
            canonical_grader(config.evaluation.grader)
    if config.evaluation.benchmarks:
        from covey.evaluation.job import check_benchmarks

        check_benchmarks(config.evaluation.benchmarks, "evaluation.benchmarks")


def check_names(config: Config) -> None:
    """Raise a `CoveyError` for a reward, grader, benchmark, tracker, data file or model folder that the config names
    and that is not there, without loading PyTorch."""
    from covey.model.load import check_name
    from covey.training.checks.trackers import trackers

    check_registered(config)
    trackers(config)
    check_paths(data_paths(config) | benchmark_paths(config))
    try:
        check_name(config.model.name)
    except OSError as error:  # no permission for a folder
        raise ConfigError(f"model.name={config.model.name} cannot be read: {error.strerror}.") from None


def data_paths(config: Config) -> dict[str, str | None]:
    """The local files and folders of the data, by their keys."""
    paths: dict[str, str | None] = {"dataset.path": config.dataset.path, "dataset.test_path": config.dataset.test_path}
    paths["sft.rows"] = None if config.sft.from_hub else config.sft.rows
    for number, source in enumerate(config.dataset.mixture.sources):
        paths[f"dataset.mixture.datasets[{number}].path"] = source.path
    return paths


def benchmark_paths(config: Config, more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str | None]:
    """The local files and folders of the benchmarks that are evaluated, by their keys.

    Args:
        config: names the benchmarks, and paths.
        more: further paths, by the names of benchmarks.

    Raises:
        ConfigError: there is no such benchmark.
    """
    from covey.evaluation.job import check_benchmarks, named

    settings = config.evaluation
    check_benchmarks(settings.benchmarks, "evaluation.benchmarks")
    check_benchmarks(settings.benchmark_paths, "evaluation.benchmark_paths")
    check_benchmarks(more, "--path")
    paths = {named(name): path for name, path in {**settings.benchmark_paths, **more}.items()}
    return {f"evaluation.benchmark_paths.{one}": paths.get(one) for one in map(named, settings.benchmarks)}


def check_paths(paths: Mapping[str, str | None]) -> None:
    """Check that local files and folders exist.

    Args:
        paths: by their keys; None for one that is not given.

    Raises:
        CoveyError: one does not exist, or may not be read.
    """
    from covey.data.files import find_path
    from covey.hub import KAGGLE

    for key, path in paths.items():
        try:
            if path is not None and not path.startswith(KAGGLE):
                find_path(path, key)
        except OSError as error:  # no permission for a folder
            raise ConfigError(f"{key}={path} cannot be read: {error.strerror}.") from None


def check_run(config: Config) -> None:
    """Check that the run is not in use and has the checkpoint that `resume` asks for, without loading PyTorch.

    What it starts from is decided later, under its lock.

    Raises:
        CoveyError: it is, or has not.
    """
    from covey.runlog.directory import RunDirectory
    from covey.training.checkpoint.resume import plan_resume

    if config.run_name is not None:
        run = RunDirectory(Path(config.output_dir) / config.run_name)
        run.refuse_locked()
        if config.resume not in ("auto", False):
            plan_resume(config, run, verify=False)


def value_of(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


def agreed(question: str) -> bool:
    """Ask at the terminal."""
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def default_name(recipe: str | Path | None, configs: Sequence[Config]) -> str:
    """A run's or sweep's name: timestamp and recipe, or without one model and data, where all configs agree."""
    models = {Path(config.model.name).name for config in configs}
    data = {config.dataset.label for config in configs}
    what = "-".join(name for names in (models, data) if len(names) == 1 for name in names) or "sweep"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{what if recipe is None else Path(recipe).stem}"


def make_console(*, stderr: bool = False) -> Console:
    """A console that wraps no tables unless the output is a terminal; on stderr where stdout is for JSON."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_WIDE)


@contextmanager
def sampling_progress(console: Console, before: str = "Loading") -> Iterator[Callable[[str, int, int], None]]:
    """Context manager: shows how many completions of each set are sampled, as an `evaluation.job.Progress`: in bars on
    a terminal, else in a line for each twentieth.

    Args:
        before: what is said until the first set begins.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from covey.runlog import names

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks, printed = dict[str, Any](), set[tuple[str, int]]()
        loading = bar.add_task(before, total=None)

        def show(name: str, done: int, total: int) -> None:
            bar.update(loading, visible=False)
            if name not in tasks:
                tasks[name] = bar.add_task(names.set_label(name), total=total)
            bar.update(tasks[name], completed=done)
            twentieth = names.set_label(name), 20 * done // total
            if bar.disable and twentieth not in printed:
                printed.add(twentieth)
                console.print(f"{twentieth[0]}: {done:,} of {total:,} completions", highlight=False)

        yield show


def _looks_like_recipe(word: str) -> bool:
    """Whether a word of the command line is a file name, rather than an option or an override."""
    return "=" not in word and not word.startswith(("-", "+", "~"))
