"""`covey eval`: a model on held-out problems or benchmarks, with intervals."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli import config_arguments
from covey.cli.json_output import add_json, print_json
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.runlog.evaluations import StoredEvaluation


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "eval",
        help="evaluate a model, a run or a checkpoint",
        description=(
            "Sample answers to held-out problems (dataset=…) or benchmarks ('benchmarks=[gsm8k,math500]'; also aime24, "
            "amc23, minerva, olympiadbench), grade them, and report every figure with its 95% interval. A run brings "
            "its own settings. evaluation=greedy, standard or liberal sets the sampling. A stopped evaluation resumes; "
            "one on fewer of the same problems (evaluation.max_problems) is extended."
        ),
    )
    config_arguments.add_arguments(parser)
    parser.usage = "covey eval [options] MODEL|RUN|CHECKPOINT [key=value | group=option | --flag value] …"
    parser.add_argument(
        "--checkpoint", metavar="WHICH", help="of a run: best (on held-out problems), a step, or final (the default)"
    )
    parser.add_argument(
        "--all",
        dest="every_row",
        action="store_true",
        help="evaluate on every row of dataset.path or dataset.id, not only on held-out ones",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the results, in place of the usual one")
    parser.add_argument("--overwrite", action="store_true", help="replace an evaluation with other settings there")
    parser.add_argument(
        "--path",
        metavar="NAME=FILE",
        action="append",
        default=[],
        help="read a benchmark from a local file; may be repeated",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    request = config_arguments.read_request(arguments)
    if request.recipe is None:
        raise ConfigError("covey eval needs what to evaluate first: a model, a run directory or a checkpoint.")
    from covey.evaluation.grading import grader_name
    from covey.evaluation.stored import find_target

    target = find_target(str(request.recipe), arguments.checkpoint)
    words = target.words(*request.overrides)
    composed = dataclasses.replace(request, recipe=target.recipe, overrides=words).compose()
    config = composed.config
    target.check_data(config, [*composed.origins, *request.overrides])
    if target.script is not None and not any("evaluation.grader" in one.keys for one in composed.given):
        note = f"Graded by {grader_name(config) or 'nothing'}, as the rewards of a script are not Covey's"
        print(f"covey: {note}; evaluation.grader=NAME takes another.", file=sys.stderr)
    paths = dict(word.split("=", 1) for word in arguments.path if word.partition("=")[2])
    if wrong := next((word for word in arguments.path if not word.partition("=")[2]), None):
        raise ConfigError(f"--path {wrong}: give the name of a benchmark and its file, as in --path gsm8k=FILE.")
    benchmarks = config_arguments.benchmark_paths(config, paths)
    config_arguments.check_paths(benchmarks or config_arguments.data_paths(config))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    config_arguments.print_notes(composed)
    console = config_arguments.make_console(stderr=arguments.as_json)
    from covey.evaluation.job import Selection, run_evaluations

    out = None if arguments.out is None else Path(arguments.out)
    how = {"selection": Selection("all") if arguments.every_row else None, "overwrite": arguments.overwrite}
    with config_arguments.sampling_progress(console) as show:
        found = run_evaluations(config, target, paths, out, show, **how)
    if arguments.as_json:
        print_json([{"path": one.folder, "settings": one.settings, "metrics": one.summary} for one in found])
    for evaluation in found if not arguments.as_json else ():
        _print(console, evaluation)
    own_file = config.dataset.path and target.run is None and not config.evaluation.benchmarks
    if own_file and not arguments.every_row:
        held_out = f"Only problems that a run with this data would hold out of {config.dataset.path} were taken"
        console.print(f"{held_out}; --all takes every row.", markup=False, highlight=False, soft_wrap=True)
    return 0


def _print(console: Any, evaluation: StoredEvaluation) -> None:
    from rich.table import Table

    from covey.evaluation.estimators import Estimate
    from covey.evaluation.figures import ends_text, value_text
    from covey.runlog import names

    problems, samples = evaluation.settings["data"]["problems"], evaluation.settings["num_samples"]
    name = names.set_label(evaluation.settings["name"])
    title = f"{name}: {problems:,} problem{'' if problems == 1 else 's'}, {samples} each"
    chances = {name: one["value"] for name, one in evaluation.summary.items() if name.startswith(names.CHANCE)}
    table = Table(title, "value", "95% interval", *(["random answers"] if chances else []))
    grader = evaluation.settings.get("grader")
    accuracy = evaluation.summary.get("accuracy")  # one row for what is the same by other names
    same = {name for name in ("pass@1", f"avg@{samples}") if accuracy and evaluation.summary.get(name) == accuracy}
    for name, figure in evaluation.summary.items():
        if name in same or name in chances or (name.startswith(("grader/", "episode/")) and figure["value"] == 0):
            continue
        label = f"{' = '.join([name, *sorted(same)])} (grader: {grader})" if name == "accuracy" else name
        found = Estimate(**figure)
        chance = chances.get(names.CHANCE + name)
        more = [] if not chances else ["" if chance is None else value_text(chance, name)]
        table.add_row(label, value_text(found.value, name), ends_text(found, name), *more)
    console.print(table)
    console.print(str(evaluation.folder), markup=False, highlight=False, soft_wrap=True)
