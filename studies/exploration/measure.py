"""What is measured of a model: for each held-out problem the right completions, and those of each of its modes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from arms import CHECKPOINTS, HERE, PROBLEMS, STEPS, Run

from covey.config import Flag, compose
from covey.evaluation.metrics import by_mode
from covey.evaluation.stored import Target
from covey.runlog import names, write_atomically

SAMPLES, HELD_OUT, SEED = 16, 256, 20_000
HOTTER = 1.2
"""The temperature of the control: `dr_grpo` sampled hotter."""


def measured(output: Path, run: Run, step: int, temperature: float = 1.0) -> Path:
    """The file of a checkpoint's measurements."""
    return output / "measured" / f"{run.name}-step-{step}-t{temperature:g}.json"


def start_measured(output: Path, task: str, start: int) -> Path:
    """The file of a start's measurements."""
    return output / "measured" / f"start-{task}-{start}.json"


def measurements(output: Path, run: Run) -> list[tuple[int, float, Path]]:
    """What is measured of a run: checkpoint, temperature, and the file of the result."""
    found = [(step, 1.0) for step in CHECKPOINTS] + [(STEPS, 0.0)]
    if run.arm.name == "dr_grpo":
        found.append((STEPS, HOTTER))
    return [(step, temperature, measured(output, run, step, temperature)) for step, temperature in found]


def measure(task: str, model: Path, file: Path, temperature: float = 1.0) -> str:
    """Evaluate a checkpoint on the held-out problems, unless that was done, and return its accuracy in words.

    Writes `length_share`, the mean length of its completions as a share of the longest, `chance`, the figures of random
    well-formed answers by name, and for each problem
    `(right completions, completions, modes of the problem, right completions of each mode that was found)`.
    """
    if not file.is_file():
        write_atomically(file, json.dumps(_found(task, model, temperature)) + "\n")
    problems = json.loads(file.read_text(encoding="utf-8"))["problems"]
    right, of = (sum(one[place] for one in problems) for place in (0, 1))
    return f"{file.stem}: {right / of:.1%} right"


def _found(task: str, model: Path, temperature: float) -> dict[str, Any]:
    from covey.evaluation.job import run_evaluations

    settings = {
        "model.name": str(model),
        "seed": str(SEED),  # the problems and the completions' random numbers, the same for every model
        "dataset.test_size": str(HELD_OUT),
        "dataset.single_size": "0",
        "evaluation.temperature": f"{temperature:g}",
        "evaluation.top_p": "1",
        "evaluation.top_k": "0",
        "evaluation.num_samples": str(SAMPLES if temperature else 1),
    }
    settings |= dict(word.split("=", 1) for word in PROBLEMS[task])
    config = compose([Flag(key, (value,)) for key, value in settings.items()], HERE / f"{task}.yaml").config
    with tempfile.TemporaryDirectory(prefix="covey-study-") as folder:
        stored = run_evaluations(config, Target(str(model), str(model)), {}, Path(folder) / "found", lambda *_: None)
        main = next(one for one in stored if one.settings["name"] == "test")
        completions = list(main.completions())
        longest = config.training.max_completion_length
        return {
            "length_share": sum(item["length"] for item in completions) / len(completions) / longest,
            "problems": _counts(completions, task),
            "chance": {name: one["value"] for name, one in main.summary.items() if name.startswith(names.CHANCE)},
        }


def _counts(completions: list[dict[str, Any]], grader: str) -> list[tuple[int, int, int, list[int]]]:
    by_problem: dict[int, list[dict[str, Any]]] = {}
    for item in completions:
        by_problem.setdefault(item["problem"], []).append(item)
    found, _ = by_mode([by_problem[problem] for problem in sorted(by_problem)], grader)
    return [(one.right, one.samples, int(one.modes or 0), sorted(one.counts, reverse=True)) for one in found]
