"""`covey.train` and `covey.evaluate`: what the commands do, as functions.

They compose the same config, write the same run directory and raise the same errors as `covey train` and `covey eval`.
PyTorch is imported when one of them is called.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config import Flag, compose

if TYPE_CHECKING:
    from rich.console import Console

    from covey.evaluation.job import Progress
    from covey.runlog.evaluations import StoredEvaluation
    from covey.training.run import RunResult

Overrides = Sequence[str] | Mapping[str, Any]
"""Keys to set: words as on a command line, `["model=starter", "training.max_steps=50"]`, or a mapping from keys (or
groups) to values, `{"model": "starter", "training.max_steps": 50}`."""


def train(
    recipe: str | Path | None = None,
    overrides: Overrides = (),
    *,
    config_dirs: Sequence[str | Path] = (),
    console: Console | None = None,
) -> RunResult:
    """Train as `covey train RECIPE key=value …` does, and leave the same run directory behind.

    Args:
        recipe: a YAML file, or the directory of a run; None takes Covey's defaults.
        overrides: keys to set after the recipe.
        config_dirs: folders with recipes and config groups of your own.
        console: where progress is shown; None shows nothing.

    Returns:
        How it ended. `result.run` has the paths: `result.run.final_model`, `result.run.metrics`, …

    Raises:
        CoveyError: what is wrong with the input or the machine, in one paragraph.
    """
    composed = compose(_words(overrides), recipe, config_dirs)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = console or _silent()
    for note in composed.notes:
        console.print(f"· {note}", markup=False, highlight=False, soft_wrap=True)
    from covey.report.closing import write_closing
    from covey.training.hub import push_finished
    from covey.training.run import run_training

    label = "python" if recipe is None else Path(recipe).stem
    result = run_training(composed.config, f"{time.strftime('%Y%m%d-%H%M%S')}-{label}", console)
    if result.main:
        spent = (result.training_seconds, result.peak_memory_bytes) if result.trained else None
        write_closing(result.run, finished=result.finished, spent=spent)
        if result.finished and result.trained:
            push_finished(composed.config, result.run, console)
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
        target: a model on the hub, a folder with one, a run, or a checkpoint of a run. A run brings its own settings.
        overrides: keys to set, such as `{"evaluation.num_samples": 8, "dataset": "gsm8k"}`.
        checkpoint: of a run: `final`, `best`, or the number of a step; None takes the final model.
        benchmarks: names of benchmarks; as a mapping, with the local file of each, or None for the hub's. Without
            any, the held-out problems of the data are taken.
        out: folder for the results, in place of the usual one.
        config_dirs: folders with recipes and config groups of your own.
        progress: told the set, the completions that are done, and how many there will be.

    Returns:
        One evaluation per set: `.summary["accuracy"]` has `value`, `low` and `high` (a 95% interval), `.completions()`
        every completion with how it was graded, `.folder` where it lies.

    Raises:
        CoveyError: what is wrong with the input or the machine, in one paragraph.
    """
    from covey.evaluation.benchmarks import check_benchmarks
    from covey.evaluation.target import find_target

    found = find_target(str(target), checkpoint)
    paths = dict(benchmarks) if isinstance(benchmarks, Mapping) else dict.fromkeys(benchmarks)
    words: list[str | Flag] = [*_words(overrides)]
    if paths:
        words.append(f"evaluation.benchmarks={_written(list(paths))}")
    composed = compose([*words, Flag("model.name", (found.source,))], found.run, config_dirs)
    check_benchmarks(composed.config.evaluation.benchmarks, "evaluation.benchmarks")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from covey.evaluation.job import run_evaluations

    files = {name: str(path) for name, path in paths.items() if path is not None}
    return run_evaluations(composed.config, found, files, None if out is None else Path(out), progress or _ignore)


def _words(overrides: Overrides) -> list[str]:
    if isinstance(overrides, str):
        raise TypeError(f"overrides={overrides!r} is one text: give a list of them, or a mapping from keys to values")
    if isinstance(overrides, Mapping):
        return [f"{key}={_written(value)}" for key, value in overrides.items()]
    return list(overrides)


def _written(value: Any) -> str:
    """A value in the grammar of Hydra's overrides, texts quoted so that they stay texts."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_written(inner) for inner in value) + "]"
    text = str(value).replace("\\'", "\\\\'")  # within quotes a backslash means itself, but not before a quote
    text = text + "\\" if text.endswith("\\") else text
    return "'" + text.replace("'", "\\'") + "'"


def _ignore(name: str, done: int, total: int) -> None:
    """Progress that nobody wants to see."""


def _silent() -> Console:
    from rich.console import Console

    return Console(quiet=True)
