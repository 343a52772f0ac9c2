"""On a CPU a run does not depend on thread scheduling: no sum is in the order in which threads finish."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from covey import GRPOTrainer
from covey.config import SpeedConfig
from covey.runlog.metrics import read_metrics
from forked import run
from trainers import build_trainer


class _Accumulations(TorchDispatchMode):
    """Counts atomic accumulations of CPU threads (`index_put`), and backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.unordered = self.backward = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        accumulate = args[3] if len(args) > 3 else (kwargs or {}).get("accumulate", False)
        self.unordered += "index_put" in name and bool(accumulate) and args[0].is_floating_point()
        self.backward += name == "embedding_dense_backward"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({}, {}),
        ({}, {"speed": SpeedConfig(shared_prefill=False, shared_scoring=False)}),
        ({"beta": 0.05, "gradient_checkpointing": True}, {}),
        ({"top_entropy_quantile": 0.5}, {}),
        ({}, {"peft_config": LoraConfig(target_modules="all-linear")}),
    ],
    ids=["default", "speed-off", "kl-checkpointing", "entropy-quantile", "lora"],
)
def test_no_gradient_is_summed_in_the_order_of_threads(
    tiny_model: str, tmp_path: Path, settings: dict[str, Any], more: dict[str, Any]
) -> None:
    trainer = build_trainer(GRPOTrainer, tiny_model, tmp_path, prompts=2, max_steps=1, more=more, **settings)
    with _Accumulations() as seen:
        trainer.train()
    assert seen.backward
    assert not seen.unordered


@contextmanager
def _busy_cores() -> Iterator[None]:
    """Context manager: one endless loop per core competes with the run."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.slow
@pytest.mark.long
def test_a_resumed_run_is_exact_while_other_processes_keep_the_cores_busy(tmp_path: Path) -> None:
    """The starter as it is: a tiny model's tensors are too small for torch to split over threads."""

    def train(name: str, *more: str) -> Path:
        words = ["training.max_steps=3", "training.gradient_accumulation_steps=1", "evaluation.every_steps=0"]
        words += ["dataset.test_size=8", f"output_dir={tmp_path}"]
        log = tmp_path / f"{name}.log"
        assert run(["covey", "train", *words, f"run_name={name}", *more], log, threads=2) == 0, log.read_text()[-3000:]
        return tmp_path / name

    with _busy_cores():
        straight = train("straight")
        train("stopped", "stop_after_steps=2")
        stopped = train("stopped")
    ours, theirs = (load_file(run / "final_model" / "model.safetensors") for run in (stopped, straight))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    rows = [
        [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in read_metrics(run)]
        for run in (straight / "metrics.jsonl", stopped / "metrics.jsonl")
    ]
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[0]][-1] == 3
