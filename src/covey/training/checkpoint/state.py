"""What checkpoints hold besides what transformers and TRL save: the progress within a step, and a reference that moves.

A checkpoint's optimiser and schedule bring back their own hyperparameters; `Hyperparameters` sets the config's again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers.integrations import is_fsdp_managed_module

from covey.errors import RunDirectoryError
from covey.training.advantages import restore_state, state_of
from covey.training.chunks import PLAN, ChunkPlan
from covey.training.prompt_order import replay_permutations

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """The state between two optimiser steps; one per process, as each has its own rows."""

    micro_step: int
    """Micro-batches (forward and backward passes) since the start of the run: the position in the generation cycle."""
    passes_done: int
    """Complete passes over the data: the number of permutations used."""
    buffered_inputs: list[dict[str, Any]] | None
    """The scored generation batch, split into micro-batches, if some are still to be trained on; else None."""
    pending_metrics: Mapping[str, list[float]]
    """Metrics since the last logged step."""
    completion_log: Mapping[str, Any]
    """Prompts, completions, rewards and advantages of the newest generation batch, for logging."""
    step_time: float
    """Seconds spent so far on the current optimiser step."""
    loss_since_log: float
    """Sum of the losses since the last logged step."""
    loss_total: float
    """Sum of all losses logged so far."""
    last_logged_step: int
    """The optimiser step that was logged last."""
    beta: float | None = None
    """Weight of the KL divergence for the next step: the state of a KL controller. None in older checkpoints."""
    prompt_cursor: tuple[int, int] | None = None
    """The position in the data after the prompts drawn so far; None without resampling, which needs none."""
    objective_columns: Mapping[str, list[Any]] = field(default_factory=dict)
    """What the objective recorded of the completions in the log."""
    objective_state: Any = None
    """The state of an objective that has one."""
    rollouts: Any = None
    """Completions that were written ahead, in the main process of an asynchronous run."""
    sampler_gap: Mapping[str, float] = field(default_factory=dict)
    """The newest gap between sampler and trainer by metric, which is logged until the next generation."""
    tokens: int = 0
    """Trained on so far, in supervised training."""


def save_progress(checkpoint: Path, process_index: int, progress: TrainingProgress) -> None:
    """Write `progress` into the checkpoint folder. Tensors and plain containers only, so it loads without pickle."""
    state = {item.name: getattr(progress, item.name) for item in fields(progress)}
    state["buffered_inputs"] = _plans(progress.buffered_inputs, ChunkPlan.state)
    torch.save(state, _file(checkpoint, process_index))


def load_progress(checkpoint: Path, process_index: int, device: torch.device) -> TrainingProgress | None:
    """Read back what `save_progress` wrote, with the buffered inputs on `device`.

    Returns:
        None for a checkpoint of stock TRL or of another number of processes; a warning is logged that the resume is not
        exact.
    """
    file = _file(checkpoint, process_index)
    written, now = len(list(checkpoint.glob("progress_*.pt"))), _processes()
    if not file.is_file() or written != now:
        logger.warning(
            "%s was not written by Covey with %d processes, as there are now. Training resumes from its weights and "
            "optimiser, but not exactly as if it had never stopped.",
            checkpoint,
            now,
        )
        return None
    stored = torch.load(file, map_location="cpu", weights_only=True)
    stored["buffered_inputs"] = _plans(send_to_device(stored["buffered_inputs"], device), ChunkPlan.of)
    return TrainingProgress(**stored)


def copy_log(log: Mapping[str, Any]) -> dict[str, Any]:
    """The prompts, completions, rewards and advantages in the trainer's log, as plain lists."""
    copied: dict[str, Any] = {name: list(log[name]) for name in ("prompt", "completion", "advantages")}
    for name in ("rewards", "extra"):
        copied[name] = {column: list(values) for column, values in log[name].items()}
    return copied


class MovedReference:
    """A trainer's reference model, if any: checkpoints hold its weights once training moves it (`sync_ref_model`), in a
    file of each process where it is sharded. `process` is the index of this one, and how many there are."""

    def __init__(self, model: Any, moves: bool, process: tuple[int, int]) -> None:
        self._weights: dict[str, torch.Tensor] = {} if model is None else dict(model.named_parameters())
        self._moves = moves and model is not None
        self._index, processes = process
        shards = any(isinstance(one, DTensor) or hasattr(one, "ds_tensor") for one in self._weights.values())
        self._files = processes if shards or is_fsdp_managed_module(model) else 1

    def save(self, checkpoint: Path) -> None:
        """Write its weights into a checkpoint, if they are no longer those that training started from."""
        if self._moves and self._index < self._files:
            held = {name: local_part(one).cpu() for name, one in self._weights.items()}
            torch.save(held, checkpoint / f"reference_{self._index}.pt")

    def load(self, checkpoint: Path) -> None:
        """Take the weights that a checkpoint holds. Raises a `RunDirectoryError` if it has them in other parts."""
        written = len(list(checkpoint.glob("reference_*.pt")))
        if written and self._weights and written != self._files:
            raise RunDirectoryError(
                f"The reference model in {checkpoint} is in {written} parts, and this run needs {self._files}: resume "
                "it with as many processes, and the same sharding, as then."
            )
        if written and self._weights:
            self._moves, file = True, checkpoint / f"reference_{self._index if self._files > 1 else 0}.pt"
            for name, one in torch.load(file, map_location="cpu", mmap=True, weights_only=True).items():
                local_part(self._weights[name]).copy_(one)
        elif self._moves:
            text = "%s holds no reference model that has moved: training.sync_ref_model=true begins anew with it."
            logger.warning(text, checkpoint)


def local_part(weight: Any) -> torch.Tensor:
    """What this process holds of a weight, without its gradient."""
    held = getattr(weight, "ds_tensor", weight)  # of DeepSpeed's ZeRO-3
    return (held.to_local() if isinstance(held, DTensor) else held).detach()


def _plans(batches: list[dict[str, Any]] | None, convert: Callable[[Any], Any]) -> list[dict[str, Any]] | None:
    """The micro-batches with their plans converted."""
    if batches is None:
        return None
    return [{**batch, PLAN: convert(batch[PLAN])} if PLAN in batch else batch for batch in batches]


def _processes() -> int:
    initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if initialised else 1


def _file(checkpoint: Path, process_index: int) -> Path:
    return checkpoint / f"progress_{process_index}.pt"


def progress_of(trainer: Any) -> TrainingProgress:
    """The state of Covey's `GRPOTrainer` after the current step."""
    mid_batch = trainer._step % trainer._generate_every != 0
    return TrainingProgress(
        micro_step=trainer._step,
        passes_done=int(trainer.state.epoch or 0),
        buffered_inputs=trainer._buffered_inputs if mid_batch else None,
        pending_metrics={name: list(values) for name, values in trainer._metrics["train"].items()},
        completion_log=copy_log(trainer._logs),
        step_time=trainer._current_train_step_time,
        loss_since_log=float(trainer._tr_loss),
        loss_total=float(trainer._total_loss_scalar),
        last_logged_step=int(trainer._globalstep_last_logged),
        beta=float(trainer.beta),
        prompt_cursor=trainer._resampler.cursor if trainer._resampler is not None else None,
        objective_columns=trainer._objective_columns,
        objective_state=state_of(trainer._objective),
        rollouts=trainer.asynchronous.state() if trainer.asynchronous else None,
        sampler_gap=trainer.sampling.last_gap,
    )


def restore_progress(trainer: Any, progress: TrainingProgress, checkpoint: Path) -> None:
    """Restore what `progress_of` read."""
    if trainer.asynchronous:
        trainer.asynchronous.resumed_from = checkpoint.parent
    trainer._step = progress.micro_step
    trainer._buffered_inputs = progress.buffered_inputs
    trainer._current_train_step_time = progress.step_time
    trainer._metrics["train"].clear()
    trainer._metrics["train"].update(progress.pending_metrics)
    if trainer._kl_monitor.moves_beta and progress.beta is not None:
        trainer.beta = progress.beta
    for name in ("prompt", "completion", "advantages"):  # as `copy_log` returned them
        trainer._logs[name].extend(progress.completion_log[name])
    for name in ("rewards", "extra"):
        for column, values in progress.completion_log[name].items():
            trainer._logs[name][column].extend(values)
    trainer._objective_columns = dict(progress.objective_columns)
    restore_state(trainer._objective, progress.objective_state)
    trainer.sampling.last_gap = dict(progress.sampler_gap)
    replay_permutations(trainer._train_sampler, progress.passes_done)


class Hyperparameters:
    """What the constructor of an optimiser took, read once it has its schedule and before a checkpoint is loaded. Other
    values of its groups are state, such as the distance of Prodigy."""

    def __init__(self, optimizer: Any) -> None:
        inner = optimizer
        while hasattr(inner, "optimizer"):  # accelerate's and DeepSpeed's wrappers
            inner = inner.optimizer
        names = {*signature(type(inner)).parameters, "weight_decay", "initial_lr"} - {"params", "lr"}
        self._groups = [{name: group[name] for name in names & group.keys()} for group in optimizer.param_groups]

    def restore(self, optimizer: Any, scheduler: Any, step: int | None) -> None:
        """Set them again after a checkpoint was loaded, and the learning rate of the schedule at this point of the run,
        if it is a function of the step. `step` is that point, where the checkpoint has no schedule."""
        for group, own in zip(optimizer.param_groups, self._groups, strict=True):
            group |= own
        scheduler = getattr(scheduler, "scheduler", scheduler)  # DeepSpeed's wrapper
        if not isinstance(scheduler, LambdaLR):
            return
        scheduler.last_epoch = scheduler.last_epoch if step is None else step
        scheduler.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        steps = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        scheduler._last_lr = [rate * function(scheduler.last_epoch) for rate, function in steps]
        for group, rate in zip(optimizer.param_groups, scheduler._last_lr, strict=True):
            group["lr"] = rate
