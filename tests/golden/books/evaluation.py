"""Figures of fixed evaluations: accuracies, intervals, pass@k, majorities, coverage, and comparisons, to ten digits.

One run was evaluated by an older Covey; three evaluations with eight answers a problem are made here, some of which
name the modes of right answers.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from covey.cli.main import main
from covey.evaluation.metrics import compute_metrics
from covey.runlog.evaluations import append_completions, begin_evaluation, finish_evaluation, read_completions
from old_run import OLD, copied
from rounding import rounded

PROBLEMS, SAMPLES = 30, 8
SKILLS = {"a": 0.3, "b": 0.45, "c": 0.3}
"""Of the evaluations that are made."""
COMPARED = ("a b", "a c", "a b c", "a b --metric pass@4", "a b --metric coverage@8", "a b --metric reward")


def completions(name: str) -> list[dict[str, Any]]:
    draw, found = random.Random(name), []
    for problem in range(PROBLEMS):
        skill, modes = min(SKILLS[name] * 2 * random.Random(problem).random(), 1.0), problem % 4 + 1
        for sample in range(SAMPLES):
            right, mode = draw.random() < skill, f"mode {draw.randrange(modes)}"
            outcome = "right" if right else draw.choice(("wrong", "wrong", "unparsable_prediction", "wrong_form"))
            found.append(
                {
                    **{"problem": problem, "prompt": f"Problem {problem}", "answer": str(problem), "sample": sample},
                    **{"completion": f"<answer>{mode if right else outcome}</answer>", "outcome": outcome},
                    **{"well_formed": outcome != "wrong_form", "length": draw.randint(1, 40)},
                    **{"truncated": draw.random() < 0.1, "extracted": mode if right else draw.choice((None, "x", "y"))},
                    **{"partial": right or draw.random() < 0.2, "reward": right + 0.25 * draw.random()},
                    **{"rewards": {"countdown": float(right), "format": 1.0}, "num_modes": modes},
                    **({"mode": mode} if right else {}),
                }
            )
    return found


def compare(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, mock.patch.dict(os.environ, {"COLUMNS": "120"}):
        assert main(["compare", *words]) == 0
    return out.getvalue()


def cases(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    settings = json.loads((OLD / "evaluation" / "test-final-greedy" / "settings.json").read_text())
    settings |= {"num_samples": SAMPLES, "grader": "countdown"}
    settings["data"]["problems"] = PROBLEMS
    for name in SKILLS:
        rows = completions(name)
        metrics = {key: asdict(one) for key, one in compute_metrics(rows, grader="countdown").items()}
        begin_evaluation(folder / name, {**settings, "name": name})
        append_completions(folder / name, rows)
        finish_evaluation(folder / name, {key: (one["value"], one["low"], one["high"]) for key, one in metrics.items()})
        found |= {f"{name}: {key}": rounded(list(one.values()), 10) for key, one in metrics.items()}
    for words in COMPARED:
        shown = json.loads(compare(*words.split(), "--json"))
        for one in shown["differences"]:
            found[f"compare {words}: {one.pop('metric')} of {one.pop('of')} to {one.pop('to')}"] = rounded(one, 10)
        found[f"compare {words}"] = compare(*words.split()).splitlines()
    run = copied(Path("run"))
    files = [f"run/evaluation/{name}.jsonl" for name in ("test-step-000000", "test-step-000002")]
    found["compare two steps of a run"] = compare(*files).splitlines()
    found["compare two steps of a run: JSON"] = rounded(json.loads(compare(*files, "--json")), 10)
    found["compare one run"] = compare("run").splitlines()
    for path in sorted((run / "evaluation").iterdir()):
        metrics = {
            key: asdict(one) for key, one in compute_metrics(read_completions(path), grader="exact_match").items()
        }
        found[f"run: {path.name}"] = rounded({key: list(one.values()) for key, one in metrics.items()}, 10)
    return found
