"""A training step on this device, next to stock TRL's: seconds, peak memory, and waits for the device."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset

from covey.model.starter import STARTER_PATH
from covey.training.device_check.models import HALF_BILLION, TINY, Size, make_model

STEPS = 3
"""Timed after a first one, which is not."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step is made of."""

    size: Size
    prompt: int
    """Tokens, as of the completions; random weights hardly ever end one."""
    completion: int
    generations: int = 8
    prompts: int = 8


QUICK = Shape(TINY, 24, 16, generations=4, prompts=2)
SHAPES = (Shape(HALF_BILLION, 256, 512), Shape(HALF_BILLION, 1024, 1024))


def measure(shape: Shape, rival: str | None, device: torch.device) -> dict[str, Any]:
    """Train some steps with random weights.

    Args:
        shape: of the step.
        rival: None for Covey; for stock TRL its `attn_implementation`.
        device: of the training.

    Returns:
        Seconds of a step (median), of which generation where known, peak memory in GiB and waits per step on a GPU; or
        `error`.
    """
    named = {
        "name": "covey" if rival is None else f"trl, {rival}",
        "prompt": shape.prompt,
        "completion": shape.completion,
    }
    try:
        return {**named, **_measure(shape, rival, device)}
    except (ImportError, RuntimeError, ValueError) as error:  # no flash attention here, not enough memory
        return {**named, "error": " ".join(str(error).split())[:300]}


def _measure(shape: Shape, rival: str | None, device: torch.device) -> dict[str, Any]:
    from transformers import AutoTokenizer, PrinterCallback

    from covey.training.trl.trainer import GRPOConfig, GRPOTrainer

    gpu = device.type == "cuda"
    tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH, padding_side="left")
    word = tokenizer.encode("1", add_special_tokens=False)
    texts = ["1" * (shape.prompt // len(word) - number % 3) for number in range(4 * shape.prompts * STEPS)]
    with tempfile.TemporaryDirectory(prefix="covey-device-") as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=shape.generations * shape.prompts,
            num_generations=shape.generations,
            max_completion_length=shape.completion,
            max_steps=STEPS + 1,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=not gpu,
            bf16=gpu and torch.cuda.is_bf16_supported(),
            dataloader_pin_memory=False,
        )
        longest = shape.prompt + shape.completion
        kind: Any = GRPOTrainer if rival is None else GRPOTrainer.__base__
        trainer = kind(
            model=make_model(shape.size, attention=rival, longest=longest),
            reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        clock = _Clock(device)
        trainer.training_step = clock.around(trainer.training_step)
        with _waits(device) as waits:
            trainer.train()
    seconds = sorted(clock.seconds[1:])
    found: dict[str, Any] = {"seconds": seconds[len(seconds) // 2]}
    if gpu:
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found["waits_per_step"] = len(waits) / (STEPS + 1)
        torch.cuda.empty_cache()
    return found


class _Clock:
    def __init__(self, device: torch.device) -> None:
        self.seconds: list[float] = []
        self._device = device

    def around(self, step: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            found = step(*args, **kwargs)
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - start)
            return found

        return timed


@contextmanager
def _waits(device: torch.device) -> Iterator[list[Any]]:
    """Context manager: the places where the host waits for the device, as CUDA's debug mode reports them."""
    if device.type != "cuda":
        yield []
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found: list[Any] = []
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
            found += [one for one in caught if "synchroniz" in str(one.message)]
