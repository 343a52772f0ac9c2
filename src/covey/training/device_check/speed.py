"""A training step on this device, next to stock TRL's: seconds, peak memory, and waits for the device."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from datasets import Dataset

from covey.model.starter import STARTER_PATH
from covey.runlog import names
from covey.runlog.directory import temporary_folder
from covey.training.device_check.models import HALF_BILLION, TINY, Size, make_model
from covey.training.replaced import replaced

STEPS = 3
"""Timed after a first one, which is not."""

PARTS = {
    "generation": (names.GENERATION_TIME,),
    "scoring": (names.SCORING_TIME, names.FORWARD_TIME, names.REWARDS_TIME),
    "backward": (names.BACKWARD_TIME,),
}
"""Parts of a step, and the stages that they are."""


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
        `seconds` of a step and `parts` of them (medians), peak memory in GiB and waits per step on a GPU; or `error`.
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

    from covey.training.trl.step_timer import StepTimer
    from covey.training.trl.trainer import GRPOConfig, GRPOTrainer, TRLGRPOTrainer

    gpu = device.type == "cuda"
    tokenizer = AutoTokenizer.from_pretrained(STARTER_PATH, padding_side="left")
    word = tokenizer.encode("1", add_special_tokens=False)
    texts = ["1" * (shape.prompt // len(word) - number % 3) for number in range(4 * shape.prompts * STEPS)]
    with temporary_folder("covey-device-") as folder:
        arguments = GRPOConfig(
            output_dir=str(folder),
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
        kind: Any = partial(GRPOTrainer, run_directory=False) if rival is None else TRLGRPOTrainer
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
        timer = StepTimer(_clock(device))
        steps: list[dict[str, float]] = []
        with _waits(device) as waits, timer.timing(trainer):
            step = trainer.training_step

            def timed(*args: Any, **kwargs: Any) -> Any:
                loss = step(*args, **kwargs)
                steps.append(timer.take())
                return loss

            with replaced(trainer, training_step=timed):
                trainer.train()
    found = medians(steps[1:])
    if gpu:
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found["waits_per_step"] = len(waits) / (STEPS + 1)
        torch.cuda.empty_cache()
    return found


def medians(steps: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Seconds of a step and of its parts."""
    parts = {part: median(sum(one.get(s, 0.0) for s in stages) for one in steps) for part, stages in PARTS.items()}
    return {"seconds": median(sum(one.values()) for one in steps), "parts": parts}


def _clock(device: torch.device) -> Callable[[], float]:
    """Seconds, with all work that the device has been given done."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    return now


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
