"""The first pretrained model, measured: SmolLM2-135M-Instruct with several seeds, one after the other.

    python benchmarks/first_real_model.py [--seeds 0 1 2] [--model FOLDER] [--output out/first_real_model]

Writes `benchmarks/first_real_model.md`, a table of held-out accuracy before and after with its 95% interval, accuracy
at every evaluation, and what the model says before and after, and `docs/images/first_real_model.png`, the curves of the
first seed. A run that is there already is not trained again. Needs 5 GB of memory; run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from first_run import HEADING, ROOT, accuracy, evaluations, row

from covey.runlog import RunDirectory, names

TABLE = ROOT / "benchmarks" / "first_real_model.md"
PICTURE = ROOT / "docs" / "images" / "first_real_model.png"
RECIPE = "recipes/smollm2_135m_instruct/grpo/arithmetic.yaml"
SAID = 3
"""Held-out problems whose answers the page shows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--model", help="a folder, in place of the one that scripts/real_model.sh makes")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "first_real_model")
    parser.add_argument("--note", help="a sentence for the page on how these were run")
    arguments = parser.parse_args()
    model = arguments.model or subprocess.check_output([ROOT / "scripts" / "real_model.sh"], text=True).strip()
    runs = {seed: train(seed, model, arguments.output) for seed in arguments.seeds}
    TABLE.write_text(page(runs, arguments.note), encoding="utf-8")
    shutil.copyfile(next(iter(runs.values())).curves, PICTURE)
    print(f"Written: {TABLE} and {PICTURE}")


def train(seed: int, model: str, output: Path) -> RunDirectory:
    """Run `covey train` once, in a process of its own; it goes on with a run that was stopped."""
    run = RunDirectory(output / f"seed-{seed}")
    if not run.summary.exists():
        command = [sys.executable, "-m", "covey.cli.main", "train", str(ROOT / RECIPE), f"model.name={model}"]
        subprocess.run([*command, f"seed={seed}", f"output_dir={output}", f"run_name={run.root.name}"], check=True)
    return run


def page(runs: dict[int, RunDirectory], note: str | None) -> str:
    seed, first = next(iter(runs.items()))
    environment = json.loads(first.environment.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items() if version)
    at = {seed: evaluations(run) for seed, run in runs.items()}
    steps = [metrics[names.STEP] for metrics in at[seed]]
    curves = [
        f"| {seed} | " + " | ".join(accuracy(metrics) for metrics in evaluated) + " |" for seed, evaluated in at.items()
    ]
    return "\n".join(
        [
            "# The first real model, measured",
            "",
            f"Made by `python benchmarks/first_real_model.py` on {os.cpu_count()} cores, no GPU; {versions}.",
            "SmolLM2-135M-Instruct, as `scripts/real_model.sh` makes it (weights rounded to 4 bits, so figures differ",
            f"from those of the hub's), learns by `covey train {RECIPE}`: sums and differences of one and two",
            "digits, right or wrong as the only reward. 128 held-out problems, four completions each at temperature 1,",
            "95% intervals.",
            "",
            *HEADING,
            *(row(seed, run) for seed, run in runs.items()),
            "",
            *([note, ""] if note else []),
            "## The curve",
            "",
            f"![Accuracy, reward, completion length and entropy of seed {seed}](../docs/images/{PICTURE.name})",
            "",
            "| seed | " + " | ".join(f"step {step}" for step in steps) + " |",
            "|---|" + "---|" * len(steps),
            *curves,
            "",
            "## What the model says",
            "",
            f"Its four completions (seed {seed}) for the first {SAID} held-out problems.",
            "",
            "| problem | right | before | after |",
            "|---|---|---|---|",
            *said(first, steps[0], steps[-1]),
            "",
        ]
    )


def said(run: RunDirectory, *steps: int) -> list[str]:
    """A line for each of the first problems: the question, its answer, and what was said at each of the steps."""
    files = [run.evaluation / f"{names.TEST_SET}-step-{step:06d}.jsonl" for step in steps]
    found = [[json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    lines = []
    for problem in range(SAID):
        of_problem = [[one for one in rows if one["problem"] == problem] for rows in found]
        texts = ["<br>".join(f"`{shown(one['completion'])}`" for one in rows) for rows in of_problem]
        lines.append(f"| {of_problem[0][0]['prompt']} | {of_problem[0][0]['answer']} | {' | '.join(texts)} |")
    return lines


def shown(text: str) -> str:
    """A completion within a cell, in one line."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("`", "'").replace("|", "\\|")


if __name__ == "__main__":
    main()
