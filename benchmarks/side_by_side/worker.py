"""One engine in its own process: runs a step on command, and reports what it took.

    python -m side_by_side.worker '{"engine": …, "rollout": …, "setting": …}'

It reads commands, one per line: `step`, `matmul` (this machine's rate) and `try` (how fast each way to sample is); it
answers with one line of JSON each. The process ends when its input does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

import torch
import transformers
from transformers import TrainerCallback

from side_by_side.clock import forget_peak, memory_now, peak_memory
from side_by_side.engines import Measured, build
from side_by_side.settings import ROLLOUTS, SHORTEST, Setting

ON_GPU = torch.cuda.is_available()


class Channel:
    """What goes between this process and the one that started it."""

    def __init__(self) -> None:
        # Other output must not mix with the answers: it goes to stderr.
        self._out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def send(self, answer: dict[str, Any]) -> None:
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()

    def receive(self) -> str:
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        return line.strip()


class StepByStep(TrainerCallback):  # type: ignore[misc]
    """Holds the training loop before every step until the next command.

    A step lasts until the next one could begin, so logging and fetching the next prompts are part of it.
    """

    def __init__(self, trainer: Measured, channel: Channel, dtype: torch.dtype) -> None:
        self._trainer = trainer
        self._channel = channel
        self._dtype = dtype
        self._running = False

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._running:
            seconds = self._trainer.clock.stop()
            peak = torch.cuda.max_memory_allocated() if ON_GPU else peak_memory()
            self._channel.send({"seconds": seconds, "peak": peak, **self._trainer.counts()})
        while (command := self._channel.receive()) != "step":
            if command != "matmul":
                raise ValueError(f"no command {command!r}")
            self._channel.send({"flops_per_s": matmul_rate(self._dtype)})
        self._running = True
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        else:
            forget_peak()
        self._trainer.clock.start()


def matmul_rate(dtype: torch.dtype) -> float:
    """Floating-point operations per second of this machine's matrix product, the best of a few runs."""
    n = 8192 if ON_GPU else 1536
    a, b = torch.rand(2, n, n, dtype=dtype, device="cuda" if ON_GPU else "cpu").unbind()
    best = 0.0
    until = time.perf_counter() + 1.5
    while time.perf_counter() < until:
        start = time.perf_counter()
        torch.mm(a, b)
        if ON_GPU:
            torch.cuda.synchronize()
        best = max(best, 2 * n**3 / (time.perf_counter() - start))
    return best


def try_rollouts(setting: Setting, folder: Path) -> dict[str, Any]:
    """Seconds of one generation batch for each way that stock TRL has to sample, or why it is left out.

    Completions of a quarter of the length come first; a way that takes them more than twice as long as the fastest is
    left there, because continuous batching would take minutes on a CPU.
    """
    shorter = min(setting.completion_length, max(setting.completion_length // 4, 4 * SHORTEST))
    quarter = dataclasses.replace(setting, completion_length=shorter)
    trainers: dict[str, Any] = {}
    quick: dict[str, float] = {}
    found: dict[str, Any] = {}
    for name in ROLLOUTS:
        try:
            trainers[name] = build("trl", setting, folder, setting.choosing(name))
            quick[name] = min(time_batch(trainers[name], quarter) for _ in range(2))  # the first one warms up
        except Exception as error:  # a way that cannot run here is reported, and left out
            found[name] = f"does not work here: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    fastest = min(quick.values(), default=0.0)
    for way, seconds in quick.items():
        if seconds > 2 * fastest:
            found[way] = f"{seconds / fastest:.1f} times slower than the fastest, at a quarter of the length"
        else:
            found[way] = min(time_batch(trainers[way], setting) for _ in range(2))
    return found


def time_batch(trainer: Any, setting: Setting) -> float:
    """Seconds to sample the completions of the first prompts."""
    trainer.setting = setting
    prompts = trainer.processing_class(list(trainer.train_dataset["prompt"][: setting.prompts]))["input_ids"]
    repeated = [prompt for prompt in prompts for _ in range(setting.generations)]
    trainer.clock.start()
    trainer._generate_single_turn(repeated, None, {}, setting.generations)
    return float(trainer.clock.stop()["generation"])


def about() -> dict[str, Any]:
    """The machine that this process runs on."""
    from importlib.metadata import version

    return {
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if ON_GPU else "cpu",
        "versions": {name: version(name) for name in ("torch", "transformers", "trl")},
    }


def main() -> None:
    channel = Channel()
    job = json.loads(sys.argv[1])
    setting = Setting.from_json(job["setting"])
    transformers.utils.logging.disable_progress_bar()
    if setting.threads is not None:
        torch.set_num_threads(setting.threads)
    with tempfile.TemporaryDirectory() as folder:
        if job["rollout"] == "try":
            channel.send({**about(), "memory": memory_now()})
            assert channel.receive() == "try"
            channel.send(try_rollouts(setting, Path(folder)))
            return
        trainer: Any = build(job["engine"], setting, Path(folder), setting.choosing(job["rollout"]))
        trainer.add_callback(StepByStep(trainer, channel, torch.bfloat16 if setting.bf16 else torch.float32))
        embeddings = trainer.model.get_input_embeddings().weight.numel()
        bodies = sum(p.numel() for p in trainer.model.parameters()) - embeddings
        memory = torch.cuda.memory_allocated() if ON_GPU else memory_now()
        channel.send({**about(), "memory": memory, "parameters": bodies})
        trainer.train()


if __name__ == "__main__":
    main()
