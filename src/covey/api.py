"""`covey.train` and `covey.evaluate`: what the commands do, as functions.

They compose the same config, write the same run directory and raise the same errors as `covey train` and `covey eval`.
PyTorch is imported when one of them is called.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config import Flag, compose
from covey.launch.machine import keep_one_gpu

if TYPE_CHECKING:
    from rich.console import Console

    from covey.evaluation.job import Progress
    from covey.objective import Objective
    from covey.runlog.evaluations import StoredEvaluation
    from covey.training.run import RunResult

Overrides = Sequence[str] | Mapping[str, Any]
"""Keys to set: as on a command line, `["model=starter", "training.max_steps=50"]`, or a mapping from keys (or
groups) to values, `{"model": "starter", "training.max_steps": 50}`."""


def train(
    recipe: str | Path | None = None,
    overrides: Overrides = (),
    *,
    config_dirs: Sequence[str | Path] = (),
    objective: Objective | type[Objective] | None = None,
    console: Console | None = None,
) -> RunResult:
    """Train as `covey train RECIPE key=value …` does, with the same run directory.

    Args:
        recipe: a YAML file, or a run directory; None means Covey's defaults.
        overrides: keys to set after the recipe.
        config_dirs: folders with recipes and config groups of your own.
        objective: what computes the advantages: an object, or a class, which `objective.settings` are given to. The
            run's config records its name and settings, so that the same call resumes the run.
        console: where progress and the result are shown; None shows nothing.

    Returns:
        How it ended. `result.run` has the paths: `result.run.final_model`, `result.run.metrics`, …

    Raises:
        CoveyError: what is wrong with the input or the machine, in one paragraph.
    """
    words, settings, notes = _words(overrides), None, list[str]()
    if objective is not None:
        from covey.objective.own import record

        named = [word for word in words if word.partition("=")[0].strip() in ("objective", "objective.name")]
        notes += [f"covey.train(objective=…) takes the place of {word}" for word in named]
        chosen, settings = record(objective)
        words += _words(chosen)
    composed = compose(words, recipe, config_dirs)
    config = composed.config
    if settings is not None:
        config = dataclasses.replace(config, objective=dataclasses.replace(config.objective, settings=settings))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = console or _silent()
    for note in (*composed.notes, *notes, *filter(None, [keep_one_gpu()])):
        console.print(f"· {note}", markup=False, highlight=False, soft_wrap=True)
    from covey.training.end_of_run import end_run
    from covey.training.run import run_training

    label = "python" if recipe is None else Path(recipe).stem
    with composed.naming_places():
        result = run_training(config, f"{time.strftime('%Y%m%d-%H%M%S')}-{label}", console, objective)
    end_run(result, config, console)
    return result


def evaluate(
    target: str | Path,
    overrides: Overrides = (),
    *,
    checkpoint: str | None = None,
    benchmarks: Mapping[str, str | Path | None] | Sequence[str] = (),
    out: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> list[StoredEvaluation]:
    """Evaluate as `covey eval MODEL key=value …` does.

    Args:
        target: a model on the hub or in a folder, a run, or a checkpoint of a run. A run brings its own settings.
        overrides: keys to set, such as `{"evaluation.num_samples": 8, "dataset": "gsm8k"}`.
        checkpoint: of a run: `final`, `best`, or the number of a step; None takes the final model.
        benchmarks: names of benchmarks; in a mapping, each with its local file, or None for the hub's. Without any, the
            held-out problems of the data are used.
        out: folder for the results, in place of the usual one.
        config_dirs: folders with recipes and config groups of your own.
        progress: called with the name of the set, the completions done, and their total.

    Returns:
        One evaluation per set: `.summary["accuracy"]` has `value`, `low` and `high` (a 95% interval), without a grader
        `.summary["reward"]`; `.completions()` has every completion with its grade and rewards, `.folder` the path.

    Raises:
        CoveyError: what is wrong with the input or the machine, in one paragraph.
    """
    from covey.evaluation.benchmarks import check_benchmarks
    from covey.evaluation.target import find_target

    found = find_target(str(target), checkpoint)
    paths = dict(benchmarks) if isinstance(benchmarks, Mapping) else dict.fromkeys(benchmarks)
    words: list[str | Flag] = [*_words(overrides)]
    if paths:
        words.append(f"evaluation.benchmarks={_as_override(list(paths))}")
    composed = compose([*words, Flag("model.name", (found.source,))], found.run, config_dirs)
    check_benchmarks(composed.config.evaluation.benchmarks, "evaluation.benchmarks")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from covey.evaluation.job import run_evaluations

    files = {name: str(path) for name, path in paths.items() if path is not None}
    return run_evaluations(composed.config, found, files, None if out is None else Path(out), progress or _ignore)


def _words(overrides: Overrides) -> list[str]:
    if isinstance(overrides, str):
        raise TypeError(
            f"overrides={overrides!r} is a string: give a list of strings, or a mapping from keys to values"
        )
    if isinstance(overrides, Mapping):
        return [f"{key}={_as_override(value)}" for key, value in overrides.items()]
    return list(overrides)


def _as_override(value: Any) -> str:
    """A value in Hydra's override grammar, with texts quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_as_override(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_as_override(inner) for inner in value) + "]"
    text = str(value).replace("\\'", "\\\\'")  # within quotes a backslash means itself, but not before a quote
    text = text + "\\" if text.endswith("\\") else text
    return "'" + text.replace("'", "\\'") + "'"


def _ignore(name: str, done: int, total: int) -> None:
    """No progress display."""


def _silent() -> Console:
    from rich.console import Console

    return Console(quiet=True)
