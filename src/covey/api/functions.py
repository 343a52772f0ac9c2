"""What the commands do, as functions: the same config, the same run directory, the same errors.

What a command names, such as a reward, can be given as an object. PyTorch is imported when one of them is called.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from covey.api.arguments import ROWS, ArgumentError, Overrides, Part, Parts, Words, is_rows
from covey.config import Config, Flag, compose
from covey.launch.machine import keep_one_gpu

if TYPE_CHECKING:
    from rich.console import Console

    from covey.evaluation.job import Progress
    from covey.objective import Objective
    from covey.report.results import Comparisons, Evaluations, GeneratedText, GeneratedTexts
    from covey.runlog.evaluations import StoredEvaluation
    from covey.training.run import RunResult


def train(
    recipe: str | Path | Overrides | None = None,
    overrides: Overrides = (),
    *,
    model: str | Path | None = None,
    data: Any = None,
    rewards: Parts | None = None,
    environment_factory: Part | Mapping[str, Any] | None = None,
    tools: Sequence[Part] | None = None,
    objective: Objective | type[Objective] | None = None,
    config_dirs: Sequence[str | Path] = (),
    console: Console | None = None,
    show: bool | None = None,
    **keys: Any,
) -> RunResult:
    """Train as `covey train RECIPE key=value …` does, with the same run directory.

    Args:
        recipe: a YAML file, or a run directory; None means Covey's defaults. A mapping or list is taken as `overrides`.
        overrides: keys to set after the recipe. A function or class is a value too, where the key names one.
        model: a model on the hub, its folder, or an option of the group `model`.
        data: rows (a list of mappings, a mapping of columns to lists, a `datasets.Dataset`, a `pandas.DataFrame`),
            `{"train": rows, "test": rows}`, a file, a dataset on the hub (`owner/name`) or an option of the group
            `dataset`. Rows are written to `output_dir/_data`, by whose files the run's config names them.
        rewards: functions of TRL's signature or names of rewards; a mapping gives functions their names. Functions run
            in this process, without deadlines.
        environment_factory: makes an environment, as TRL's argument does: a class or function, the name of one, or
            several by the names that rows choose them with. Environments run in processes of their own, to which what
            is given here is copied.
        tools: functions that the model may call, or names of tools; they run there too.
        objective: what computes the advantages: an object, or a class, which `objective.settings` are given to. The
            run's config records its name and settings, so that the same call resumes the run.
        config_dirs: folders with recipes and config groups of your own.
        console: where progress and the result are shown; None: the cell of a notebook, else the standard output.
        show: whether they are shown; None: in a notebook, in a terminal and where a console is given.
        keys: further keys by names without dots, such as `run_name="first"`, `max_steps=50`, `learning_rate=1e-5`.

    Returns:
        How it ended. `result.run` has the paths: `result.run.final_model`, `result.run.metrics`, …

    Raises:
        CoveyError: what is wrong with the input or the machine, in one paragraph.
    """
    words = Words("covey.train")
    first = words.sources(model, data, config_dirs)
    if recipe is not None and not isinstance(recipe, str | os.PathLike):
        first += words.of(recipe, "recipe")
        recipe = None
    chosen = [*first, *words.of(overrides), *words.keys(keys, train, config_dirs)]
    last, settings, notes = words.parts(rewards, environment_factory, tools), None, list[str]()
    if objective is not None:
        from covey.objective.registry import record

        named = [word for word in chosen if word.partition("=")[0].strip() in ("objective", "objective.name")]
        notes += [f"covey.train(objective=…) takes the place of {word}" for word in named]
        found, settings = record(objective)
        last += words.of(found)
    composed = compose([*chosen, *last], recipe, config_dirs)
    config = composed.config
    if settings is not None:
        config = dataclasses.replace(config, objective=dataclasses.replace(config.objective, settings=settings))
    if is_rows(data):
        config = _with_rows(config, data)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    console = _console(console, show)
    if notes := [f"· {note}" for note in (*composed.notes, *notes, *filter(None, [keep_one_gpu()]))]:
        console.print("\n".join(notes), markup=False, highlight=False, soft_wrap=True)
    with console.status("Loading PyTorch …"), _without_widgets():
        from covey.training.end import end_run
        from covey.training.run import run_training

    label = "python" if recipe is None else Path(recipe).stem
    with composed.naming_places():
        result = run_training(config, f"{time.strftime('%Y%m%d-%H%M%S')}-{label}", console, objective)
    with console if console.is_jupyter else nullcontext():  # a notebook shows it as one output of the cell
        end_run(result, config, console)
    return result


def evaluate(
    target: str | Path | RunResult,
    overrides: Overrides = (),
    *,
    checkpoint: str | int | None = None,
    benchmarks: Mapping[str, str | Path | None] | Sequence[str] = (),
    out: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
    progress: Progress | None = None,
    show: bool | None = None,
    **keys: Any,
) -> Evaluations:
    """Evaluate as `covey eval MODEL key=value …` does.

    Args:
        target: a model on the hub or in a folder, a run (its folder, or what `covey.train` returned), or a checkpoint
            of a run. A run brings its own settings.
        overrides: keys to set, such as `{"evaluation.num_samples": 8, "dataset": "gsm8k"}`.
        checkpoint: of a run: `final`, `best`, or the number of a step; None takes the final model.
        benchmarks: names of benchmarks; in a mapping, each with its local file, or None for the hub's. Without any, the
            held-out problems of the data are used.
        out: folder for the results, in place of the usual one.
        config_dirs: folders with recipes and config groups of your own.
        progress: called with the name of the set, the completions done, and their total.
        show: whether progress is shown; None: in a notebook or a terminal, without `progress`.
        keys: see `train`.

    Returns:
        A list with one evaluation per set: `.summary["accuracy"]` has `value`, `low` and `high` (a 95% interval),
        without a grader `.summary["reward"]`; `.completions()` has every completion with its grade and rewards,
        `.folder` the path.

    Raises:
        CoveyError: what is wrong with the input or the machine, in one paragraph.
    """
    from covey.evaluation.job import check_benchmarks
    from covey.evaluation.stored import find_target

    words = Words("covey.evaluate")
    found = find_target(str(_path(target, "covey.evaluate")), None if checkpoint is None else str(checkpoint))
    paths = dict(benchmarks) if isinstance(benchmarks, Mapping) else dict.fromkeys(benchmarks)
    chosen: list[str | Flag] = [*words.of(overrides), *words.keys(keys, evaluate, config_dirs)]
    if paths:
        chosen += words.of({"evaluation.benchmarks": list(paths)})
    composed = compose(found.words(*chosen), found.recipe, config_dirs)
    found.check_data(composed.config, [*composed.origins, *chosen])
    check_benchmarks(composed.config.evaluation.benchmarks, "evaluation.benchmarks")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    files = {name: str(path) for name, path in paths.items() if path is not None}
    with _console(None, show if progress is None else False).status("Loading PyTorch …") as status, _without_widgets():
        from covey.evaluation.job import run_evaluations
        from covey.report.results import Evaluation, Evaluations
        from covey.runlog import names

        def count(name: str, done: int, total: int) -> None:
            status.update(f"{names.set_label(name)}: {done} of {total} completions")

        stored = run_evaluations(composed.config, found, files, None if out is None else Path(out), progress or count)
    return Evaluations(Evaluation(one.folder, one.settings, one.summary) for one in stored)


def compare(
    first: str | Path | RunResult | StoredEvaluation,
    *others: str | Path | RunResult | StoredEvaluation,
    metric: str | None = None,
    any_sampling: bool = False,
) -> Comparisons:
    """Compare evaluations on the same problems, as `covey compare` does.

    Args:
        first: an evaluation, its folder, or a run, of which the newest evaluation that all of them have is taken.
        others: one or more of the same, each of which is compared with the first.
        metric: compare this figure, such as `pass@8`, `reward` or `format`; None takes the accuracy, or without a
            grader the mean reward.
        any_sampling: compare also where the sampling settings differ.

    Returns:
        `.results` has for each of the others the difference, its 95% interval and the p-value of a paired test.

    Raises:
        CoveyError: they cannot be compared, or there are none.
    """
    from covey.report.results import compare_all, find_evaluations

    if not others:
        raise ArgumentError("covey.compare needs two or more evaluations or runs: covey.compare('out/a', 'out/b').")
    folders = [Path(_path(one, "covey.compare")) for one in (first, *others)]
    return compare_all(find_evaluations(folders), metric, any_sampling=any_sampling)


@overload
def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts, but not meant as one
    model: str | Path | RunResult,
    prompts: str,
    *,
    system: str | None = None,
    temperature: float = 0.0,
    max_tokens: int | None = None,
    seed: int = 0,
    show: bool | None = None,
) -> GeneratedText: ...


@overload
def generate(
    model: str | Path | RunResult,
    prompts: Sequence[str | Sequence[Mapping[str, Any]] | Mapping[str, Any]],
    *,
    system: str | None = None,
    temperature: float = 0.0,
    max_tokens: int | None = None,
    seed: int = 0,
    show: bool | None = None,
) -> GeneratedTexts: ...


def generate(
    model: str | Path | RunResult,
    prompts: Any,
    *,
    system: str | None = None,
    temperature: float = 0.0,
    max_tokens: int | None = None,
    seed: int = 0,
    show: bool | None = None,
) -> GeneratedText | GeneratedTexts:
    """Complete prompts, as `covey generate` does.

    Args:
        model: a model on the hub or in a folder, a run (its folder, or what `covey.train` returned), or a checkpoint.
        prompts: one prompt, or a list. Each is text, a conversation as a list of messages, or a row: a mapping with
            `prompt` and what the run's environment reads.
        system: the system prompt; None takes the run's.
        temperature: 0 is greedy decoding.
        max_tokens: the longest completion; None takes 256, with tools the run's if that is longer.
        seed: of the sampling, and of environments.
        show: whether progress is shown; None: in a notebook or a terminal.

    Returns:
        The completion of a prompt that is text: itself a text, whose `episode` has the messages and calls of a model
        with tools. Of a list, a list of these.

    Raises:
        CoveyError: the model cannot be found or loaded, or a prompt cannot be read.
    """
    name = str(_path(model, "covey.generate"))
    rows = _prompt_rows([prompts] if isinstance(prompts, str) else prompts)
    _check_sampling(system, temperature, max_tokens, seed)
    console = _console(None, show)
    with console.status("Loading the model …") as status, _without_widgets():
        from covey.evaluation.chat import ChatModel
        from covey.report.results import GeneratedText, GeneratedTexts

        with ChatModel.of(name, system, temperature, max_tokens) as chat:
            status.update("Generating …")
            answers = chat.answer([{**row, "prompt": chat.conversation(row["prompt"])} for row in rows], seed)
    texts = [GeneratedText.of(a.text, row["prompt"], a.episode) for row, a in zip(rows, answers, strict=True)]
    return texts[0] if isinstance(prompts, str) else GeneratedTexts(texts)


def _prompt_rows(prompts: Any) -> list[dict[str, Any]]:
    """Each prompt as a row."""
    if not isinstance(prompts, Sequence) or not prompts:
        what = "has no prompt" if isinstance(prompts, Sequence) else "is neither text nor a list"
        raise ArgumentError(f"covey.generate: prompts={prompts!r} {what}: give a prompt, or a list of prompts.")
    rows = [dict(one) if isinstance(one, Mapping) else {"prompt": one} for one in prompts]
    for place, row in enumerate(rows):
        prompt = row.get("prompt")
        messages = isinstance(prompt, Sequence) and not isinstance(prompt, str) and len(prompt) > 0
        if isinstance(prompt, str) and prompt.strip():
            continue
        if not messages or not all(isinstance(m, Mapping) and {"role", "content"} <= m.keys() for m in prompt or ()):
            hint = " A single conversation goes into a list of its own." if "role" in row else ""
            raise ArgumentError(
                f"covey.generate: prompts[{place}] has no prompt: give text, a list of "
                f"{{'role': …, 'content': …}} messages, or a mapping with prompt.{hint}"
            )
    return rows


def _check_sampling(system: Any, temperature: Any, max_tokens: Any, seed: Any) -> None:
    """Check the settings of `generate`, before anything is loaded."""
    hot = isinstance(temperature, Real) and 0 <= float(temperature) < math.inf
    whole = max_tokens is None or (isinstance(max_tokens, Integral) and int(max_tokens) >= 1)
    for name, value, fits, right in (
        ("system", system, system is None or isinstance(system, str), "text, or None for that of the run"),
        ("temperature", temperature, hot, "0, for greedy decoding, or a number above it"),
        ("max_tokens", max_tokens, whole, "a whole number above 0, or None"),
        ("seed", seed, isinstance(seed, Integral), "a whole number"),
    ):
        if not fits:
            raise ArgumentError(f"covey.generate: {name}={value!r} is not possible: give {right}.")


def _path(thing: Any, function: str) -> str | Path:
    """The path or name of a model, run or evaluation."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, os.PathLike):
        return Path(thing)
    for place in (getattr(getattr(thing, "run", None), "root", None), getattr(thing, "folder", None)):
        if isinstance(place, Path):
            return place
    raise ArgumentError(
        f"{function}: {thing!r} is of type {type(thing).__name__}: give a path, or what covey.train returned."
    )


def _with_rows(config: Config, data: Any) -> Config:
    """The config with rows that were given as objects as its data, in files."""
    from covey.data.load import write_rows

    files = write_rows(data, Path(config.output_dir) / ROWS)
    own: dict[str, Any] = {key.removeprefix("dataset."): file for key, file in files.items()}
    return dataclasses.replace(config, dataset=dataclasses.replace(config.dataset, **own))


def _console(console: Console | None, show: bool | None) -> Console:
    """Where to show something: what was given, else the cell of a notebook or the standard output."""
    from rich.console import Console

    there = console or Console()
    if show is None:
        show = console is not None or there.is_jupyter or there.is_terminal
    if not show or there.quiet:
        return Console(quiet=True, force_jupyter=False)
    if there.is_jupyter:
        from covey.training.terminal import NotebookConsole

        return NotebookConsole()
    return there


@contextmanager
def _without_widgets() -> Iterator[None]:
    """Context manager: libraries that are imported do not ask for widgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        yield
