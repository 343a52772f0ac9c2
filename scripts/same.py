"""Whether this working tree trains the same runs as another commit, bit for bit: `python scripts/same.py REF`.

    make same REF=HEAD
    make same REF=v0.1 ARGS="--steps 5 --only grpo,calculator"

Each case of `CASES` is trained by both, with one thread and the same seed. Metrics, completions, evaluations,
schedules, configs, weights and the state of optimiser, scheduler and random numbers must be equal. Only times, memory,
paths and what tells of the machine may differ (`OF_A_RUN`, `MASKED`). The sources of REF are unpacked into a temporary
folder, and of either side only the command line is used, so that modules may have any names. The exit code is 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import pyarrow.parquet
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
COMMON = (
    *("output_dir=out", "seed=3", "training.per_device_train_batch_size=16", "training.gradient_accumulation_steps=2"),
    *("training.num_generations=8", "training.max_completion_length=48", "training.warmup_steps=0"),
    *("dataset.train_size=256", "dataset.test_size=24", "dataset.hard_size=8", "evaluation.batch_size=32"),
)
CASES: dict[str, tuple[str, ...]] = {
    "grpo": ("objective=grpo",),
    "maxent": ("objective=maxent", "objective.kl.controller=adaptive", "objective.kl.kl_target=0.01"),
    "calculator": ("environment=calculator",),
    "staleness": ("training.staleness=1",),
    "reasoning": ("+experiment=reasoning_vocab_starter", "model.lora.enabled=true", "model.lora.rank=4"),
    "resampling": ("objective=dapo", "objective.resample_groups=16"),
}
OF_A_RUN = {
    *("environment.json", "trainer_state.json", "training_args.bin", "complete.json"),
    *("train.log", "report.html", "curves.png", "README.md"),
}
"""Files that hold the time, the machine, or modules' names."""
MASKED = re.compile(r"(^|\W)(time|memory)/|seconds|_time\b|peak_memory")
"""Names of times and of memory."""


def main() -> int:
    """Train and compare all cases, print a line of each; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compare the runs of this working tree with those of another commit.")
    parser.add_argument("ref", help="the commit to compare with")
    parser.add_argument("--steps", type=int, default=20, help="of each run (default: %(default)s)")
    parser.add_argument("--only", default=",".join(CASES), metavar="NAMES", help=f"some of {', '.join(CASES)}")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"there is no case called {', '.join(unknown)}; there are {', '.join(CASES)}")
    with tempfile.TemporaryDirectory(prefix="covey-same-") as made:
        folder = Path(made)
        there, sides = unpacked(arguments.ref, folder / "ref"), (folder / "here-runs", folder / "ref-runs")
        equal = True
        for name in names:
            with ThreadPoolExecutor(2) as both:
                list(both.map(train, (ROOT, there), sides, (name, name), (arguments.steps,) * 2))
            count, differences = compare(*(side / "out" / name for side in sides))
            equal = equal and not differences
            told = "same" if not differences else f"{len(differences)} DIFFERENCES"
            print(f"{name:12} {count:6} values and files: {told}", *differences[:6], sep="\n    ", flush=True)
    return 0 if equal else 1


def unpacked(ref: str, folder: Path) -> Path:
    """The package at a commit, in a folder."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", ref, "src"], capture_output=True, check=False)
    if archive.returncode:
        sys.exit(f"There is no commit {ref} here: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def train(source: Path, folder: Path, name: str, steps: int) -> None:
    """A run of the package in `source` in `folder/out/name`. It evaluates and saves in its middle and at its end."""
    folder.mkdir(exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("COVEY_", "SLURM_"))}
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {
        **kept | one | {"PYTHONPATH": str(source / "src"), "PYTHONHASHSEED": "0"},
        **{"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    }
    half = max(steps // 2, 1)
    every = (f"training.max_steps={steps}", f"training.save_steps={half}", f"evaluation.every_steps={half}")
    loaded = "import covey; print(covey.__file__)"
    for command in (["-c", loaded], ["-m", "covey", "train", *CASES[name], *COMMON, *every, f"run_name={name}"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{name} failed with the sources in {source}:\n{done.stderr[-3000:]}")
        if "-c" in command and not Path(done.stdout.strip()).is_relative_to(source):
            sys.exit(f"Python imports covey from {done.stdout.strip()}, not from {source}.")


def compare(here: Path, there: Path) -> tuple[int, list[str]]:
    """How many values two runs have, and where they differ."""
    found = [
        {str(path.relative_to(run)): path for path in sorted(run.rglob("*")) if path.is_file()} for run in (here, there)
    ]
    count, differences = 0, []
    for name in sorted(found[0].keys() | found[1].keys(), key=lambda name: (name != "metrics.jsonl", name)):
        if Path(name).name in OF_A_RUN or name.startswith("."):
            continue
        sides = [dict(values(side[name])) if name in side else {} for side in found]
        keys = [key for key in dict.fromkeys([*sides[0], *sides[1]]) if not MASKED.search(key)]
        count += len(keys)
        for key in keys:
            ours, theirs = (side.get(key, "nothing") for side in sides)
            if not equal(ours, theirs):
                differences.append(f"{name} {key}: {shown(ours)} here, {shown(theirs)} there")
    return count, differences


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"norm {value.double().norm().item():.17g}"
    return " ".join(str(value).split())[:60]


def values(path: Path) -> Iterator[tuple[str, Any]]:
    """The content of a file, piece by piece by its name."""
    if path.suffix == ".json":
        yield from flat(json.loads(path.read_text()))
    elif path.suffix == ".jsonl":
        for number, line in enumerate(path.read_text().splitlines(), 1):
            row = json.loads(line)
            # How two processes take turns in writing a schedule is chance, so its lines go by what they record.
            what = " ".join(map(str, next(iter(row.items())))) if path.name == "schedule.jsonl" else f"line {number}"
            yield from flat(row, what)
    elif path.suffix == ".parquet":
        yield from flat(pyarrow.parquet.read_table(path).to_pydict())
    elif path.suffix == ".safetensors":
        yield from load_file(path).items()
    elif path.suffix in (".pt", ".pth"):  # our own: the state of random numbers holds arrays of NumPy
        yield from flat(torch.load(path, map_location="cpu", weights_only=False))
    else:
        yield "bytes", path.read_bytes()


def flat(data: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What nested lists and mappings hold."""
    if isinstance(data, Mapping | list | tuple):
        yield f"{name} size".strip(), len(data)
        for key, value in data.items() if isinstance(data, Mapping) else enumerate(data):
            yield from flat(value, f"{name} {key}".strip())
    else:
        yield name, re.sub(r"/\S*/src/covey/", "/src/covey/", data) if isinstance(data, str) else data


def equal(ours: Any, theirs: Any) -> bool:
    """Bit for bit."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        bits = [one.reshape(-1).contiguous().view(torch.uint8) for one in (ours, theirs)]
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and bits[0].equal(bits[1])
    if isinstance(ours, numpy.ndarray):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    return repr(ours) == repr(theirs)


if __name__ == "__main__":
    sys.exit(main())
