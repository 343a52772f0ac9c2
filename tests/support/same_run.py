"""The command line of a small run with every stateful feature, and whether two run directories hold the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from covey.runlog.metrics import read_metrics
from run_sizes import SMALL
from stopped_runs import contents

STEPS = 5

_REWARD = '''
def variety(completions, **columns):
    """The number of different characters."""
    return [float(len(set(c[-1]["content"]))) for c in completions]
'''


def words(model: str, folder: Path, name: str, *more: str) -> list[str]:
    """The arguments of `covey` for a run in `folder/name`: MaxEnt, an adaptive β, and every batch used twice."""
    reward = folder / "reward.py"
    reward.write_text(_REWARD, encoding="utf-8")
    return [
        *("train", "model=starter", f"model.name={model}", f"rewards.funcs=[{reward}:variety]", *SMALL),
        *("objective.name=maxent", "training.loss_type=grpo", "training.beta=0.05", "training.num_iterations=2"),
        *("objective.kl.controller=adaptive", "objective.kl.kl_target=0.001", "objective.kl.kl_horizon=50"),
        *("training.learning_rate=0.01", "training.lr_scheduler_type=constant", "training.warmup_steps=0"),
        *(f"training.max_steps={STEPS}", "training.save_steps=1", "evaluation.every_steps=2"),
        *("dataset.test_size=4", "dataset.hard_size=0", f"output_dir={folder}", f"run_name={name}", *more),
    ]


def assert_same_run(found: Path, expected: Path) -> None:
    """Metrics (except timings), completions, evaluations, weights, optimiser, scheduler and random state, bit for bit.

    Also checks that the run trained: otherwise the equality would mean nothing.
    """
    rows, others = (without_times(run) for run in (found, expected))
    assert rows == others
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert len({row["train/objective/beta"] for row in rows[1:]}) == STEPS
    assert len({row["train/grad_norm"] for row in rows[1:]}) == STEPS
    for folder in ("completions", "evaluation", "final_model"):
        files = _files(expected / folder)
        assert files
        assert _files(found / folder) == files
    ours, theirs = (contents(run / f"checkpoint-{STEPS}") for run in (found, expected))
    assert ours["scheduler"] == theirs["scheduler"]
    assert torch.equal(ours["random"], theirs["random"])
    assert ours["moments"].keys() == theirs["moments"].keys()
    assert all(torch.equal(ours["moments"][key], moment) for key, moment in theirs["moments"].items())


def without_times(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics, but for times and memory."""
    rows = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not name.startswith(("time/", "memory/"))} for row in rows]


def _files(folder: Path) -> dict[str, bytes]:
    """Contents by name. transformers' file of training arguments holds the run's path, so it is left out."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and path.name not in ("training_args.bin", "README.md")
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
