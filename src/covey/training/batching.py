"""Cutting a scored generation batch into micro-batches. Knows tensors and plain numbers, not TRL.

Rows of a group come into one micro-batch where the sizes allow it, a micro-batch is no wider than its own longest row,
and rows that cannot move the policy leave it. The gradient of an optimiser step stays what it was:

- *Which rows an optimiser step learns from is drawn at random, never by length.* Groups are put in a random order (by
  the one permutation that TRL draws, so that all later random numbers stay the same), the rows of a group in a random
  order too, and the optimiser steps take their rows from that list. Only within the rows of one optimiser step are they
  then sorted by length. TRL deals out single rows instead: the share of an optimiser step is drawn in another way, but
  is as random as before.
- Where the loss is not a sum over rows (`bnpo`, an entropy bonus, a router's loss, a threshold on the entropy), it
  depends on which rows share a micro-batch. There each micro-batch keeps the rows that TRL gives it.
- A row with no gradient adds nothing to a sum, so that it can be left out while denominators still count it.

Metrics (`piece_metrics`): means count every token of an optimiser step alike, and shares of clipped tokens still count
every row. The logged entropy, and `vespo/phi_seq_mean`, are those of the rows that were computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from covey.config import SpeedConfig
from covey.errors import ConfigError
from covey.training.piece_metrics import weigh
from covey.training.pieces import (
    COMPLETION_KEYS,
    PLAN,
    PROMPT_KEYS,
    WHOLE_KEYS,
    Row,
    cut_pieces,
    dress_stand_ins,
    narrow,
    plan_of,
)
from covey.training.row_order import deal, sort_within, window

logger = logging.getLogger(__name__)

Batch = dict[str, Any]
"""Tensors and lists with one entry per row, and scalars about all of them."""

_PICTURES = ("pixel_values", "image_grid_thw", "image_sizes", "num_images", "image_position_ids", "spatial_shapes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What there is to know of the loss before rows can be moved about or left out."""

    loss_type: str
    """TRL's name."""
    entropy_bonus: bool = False
    router_loss: bool = False
    """Whether a mixture of experts adds its load-balancing loss."""
    top_entropy_quantile: float = 1.0
    by_sequence: bool = False
    """Whether ratios, and shares of clipped ones, are one per sequence instead of one per token."""

    @property
    def coupling(self) -> str | None:
        """Why more than the denominators depends on which rows share a micro-batch; None when nothing does."""
        if self.entropy_bonus:
            return "the entropy bonus is a mean over the tokens of a micro-batch"
        if self.router_loss:
            return "the router's auxiliary loss is one of a whole micro-batch"
        if self.top_entropy_quantile < 1:
            return "top_entropy_quantile sets a threshold over the tokens of a micro-batch"
        return None

    @property
    def is_sum_over_rows(self) -> bool:
        """Whether the loss of an optimiser step is the same however its rows are spread over micro-batches."""
        return self.coupling is None and self.loss_type != "bnpo"

    def weight(self, rows: Sequence[Row], of: Sequence[Row]) -> float:
        """What the loss of some rows is multiplied by so that it is their part of the loss of all of them.

        Args:
            rows: those that are computed together.
            of: the whole micro-batch.
        """
        if self.loss_type in ("cispo", "dapo", "vespo"):  # the denominator is that of the generation batch
            return 1.0
        if self.loss_type == "bnpo":
            return sum(row.counted for row in rows) / max(sum(row.counted for row in of), 1)
        return len(rows) / len(of)


def check_token_budget(max_tokens: int | None, loss: Loss, optimizer: str) -> None:
    """Refuse a token budget where pieces of a micro-batch would not add up to its gradient.

    Args:
        max_tokens: the budget; None is none.
        loss: of the run.
        optimizer: transformers' name of it.

    Raises:
        ConfigError: naming what stands against it.
    """
    if max_tokens is None:
        return
    why = loss.coupling
    if loss.loss_type == "bnpo":
        why = "loss_type=bnpo divides by the tokens of a micro-batch"
    elif "lomo" in optimizer:
        why = f"optim={optimizer} updates the weights within every backward pass"
    if why is not None:
        raise ConfigError(
            f"speed.max_tokens={max_tokens} cuts a micro-batch into pieces, and {why}: set speed.max_tokens=null and "
            "take a smaller per_device_train_batch_size instead"
            + (", or another loss_type, such as dapo." if loss.loss_type == "bnpo" else ".")
        )


class Batching:
    """How the generation batches of a run become micro-batches."""

    def __init__(
        self,
        speed: SpeedConfig,
        loss: Loss,
        *,
        num_generations: int,
        micro_batches: int,
        accumulation: int,
        multiple_of: int | None = None,
        cuts_prompts: bool = True,
    ) -> None:
        """Settle what applies.

        Args:
            speed: what is asked for.
            loss: the run's.
            num_generations: rows of a group, G.
            micro_batches: how many a generation batch is cut into on each process.
            accumulation: how many make an optimiser step.
            multiple_of: what padded widths are a multiple of.
            cuts_prompts: whether padding on the left may go, see `positions_are_relative`.
        """
        self._speed, self._loss = speed, loss
        self._num_generations, self._micro_batches = num_generations, micro_batches
        self._window = window(micro_batches, accumulation)
        self._multiple = multiple_of or 1
        self._cuts_prompts = cuts_prompts
        self._said: set[str] = set()

    @property
    def is_plain(self) -> bool:
        """Whether nothing is asked for, so that TRL's own micro-batches will do."""
        return not (self._speed.trim or self._speed.skip_zero) and self._speed.max_tokens is None

    @property
    def _sorts(self) -> bool:
        return self._speed.trim and self._loss.is_sum_over_rows

    def cut(
        self,
        batch: Batch,
        *,
        beta: float,
        packed: bool = False,
        process: int = 0,
        gather: Callable[[Tensor], Tensor] | None = None,
        finish: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> list[Batch]:
        """The micro-batches of a scored generation batch, in the order in which they are learned from.

        Draws one permutation of all rows from torch's global generator, as TRL does.

        Args:
            batch: of this process; `prompt_mask` `[B, L]`, `completion_mask` `[B, T]`, `advantages` `[B]` and the rest.
            beta: weight of the KL term.
            packed: whether the model reads no padding, and the prompt of a group once: what `max_tokens` then counts.
            process: number of this process.
            gather: concatenates a tensor over all processes; None when there is one only.
            finish: puts into the model's form what `batch` keeps as one list entry per row.

        Returns:
            Micro-batches with the same keys, and a plan under `PLAN`: plain numbers that say into which pieces it goes
            through the model, and how they count.
        """
        if self._speed.max_tokens is not None and "pixel_values" in batch:
            raise ConfigError(
                "speed.max_tokens cuts a micro-batch by its tokens, and pictures cannot be cut that way: set "
                "speed.max_tokens=null and take a smaller per_device_train_batch_size instead."
            )
        rows = self._rows(batch, process)
        permutation = torch.randperm(len(rows)).tolist()
        size = len(rows) // self._micro_batches
        order = self._order(rows, permutation, size)
        skip = self._skips(beta)
        dealt = [rows[row] if skip else rows[row]._replace(live=True) for row in order]
        everyone = self._gathered(dealt, gather, batch["advantages"].device)
        process = process if len(everyone) > 1 else 0
        cut = []
        for start in range(0, size * self._micro_batches, size):
            here = [theirs[start : start + size] for theirs in everyone]
            places = self._pieces(here, packed)
            taken = [order[start + place] for piece in places[process] for place in piece or [0]]
            micro = self._planned(_take(batch, taken), here, places, process)
            cut.append({**finish(micro), PLAN: micro[PLAN]})
        plans = [micro[PLAN] for micro in cut]
        for start in range(0, len(plans), self._window):
            together = plans[start : start + self._window]
            weigh(together, by_rows=self._loss.by_sequence, sorted_rows=self._sorts)
        return cut

    def _rows(self, batch: Batch, process: int) -> list[Row]:
        """What must be known of each row, fetched from the device at one go."""
        prompt_mask, mask = batch["prompt_mask"], batch["completion_mask"]
        length = prompt_mask.shape[1]
        columns = torch.arange(1, max(length, mask.shape[1]) + 1, device=mask.device)
        prompt_B = (prompt_mask.bool() * columns[:length].flip(0)).amax(dim=1)
        completion_B = (mask.bool() * columns[: mask.shape[1]]).amax(dim=1)
        counted_B = (mask * batch["tool_mask"] if batch.get("tool_mask") is not None else mask).sum(dim=1)
        live_B = (batch["advantages"].reshape(len(mask), -1) != 0).any(dim=1) & (counted_B > 0)
        trims = self._speed.trim and not self._unknown(batch)
        if not (trims and self._cuts_prompts):
            prompt_B = torch.full_like(prompt_B, length)
        if not trims:
            completion_B = torch.full_like(completion_B, mask.shape[1])
        table = torch.stack([prompt_B, completion_B, counted_B, live_B.to(counted_B)], dim=1).tolist()
        first = process * len(table)
        return [
            Row(prompt, completion, counted, bool(live), (first + place) // self._num_generations)
            for place, (prompt, completion, counted, live) in enumerate(table)
        ]

    def _unknown(self, batch: Batch) -> bool:
        """Whether there is a tensor that could be as wide as prompts or completions, and nobody knows if it is."""
        length, width = batch["prompt_ids"].shape[1], batch["completion_ids"].shape[1]
        known = {*PROMPT_KEYS, *COMPLETION_KEYS, *WHOLE_KEYS, *_PICTURES}
        found = [
            key
            for key, value in batch.items()
            if key not in known
            and isinstance(value, Tensor)
            and value.ndim > 1
            and value.shape[1] in (length, width, length + width)
        ]
        if found:
            self._say("unknown", f"speed.trim cuts no padding off: what {', '.join(found)} holds is not known")
        return bool(found)

    def _order(self, rows: Sequence[Row], permutation: Sequence[int], size: int) -> list[int]:
        if not self._speed.trim:
            return list(permutation)
        if self._sorts:
            dealt = deal([row.group for row in rows], permutation)
            return sort_within(dealt, rows, size * self._window)
        why = self._loss.coupling or "loss_type=bnpo divides by the tokens of a micro-batch"
        self._say("trim", f"speed.trim does not move rows between micro-batches: {why}")
        return sort_within(permutation, rows, size)

    def _skips(self, beta: float) -> bool:
        if not self._speed.skip_zero:
            return False
        why = self._loss.coupling
        if beta != 0:
            why = "with a β (training.beta) other than 0, the KL term moves every completion"
        if why is not None:
            self._say("skip", f"speed.skip_zero does not apply: {why}")
        return why is None

    def _gathered(
        self, rows: list[Row], gather: Callable[[Tensor], Tensor] | None, device: torch.device
    ) -> list[list[Row]]:
        """The rows of every process, as all must agree on how many pieces a micro-batch goes through in."""
        if gather is None:
            return [rows]
        table = gather(torch.tensor(rows, device=device, dtype=torch.long)).tolist()
        found = [
            Row(prompt, completion, counted, bool(live), group) for prompt, completion, counted, live, group in table
        ]
        return [found[start : start + len(rows)] for start in range(0, len(found), len(rows))]

    def _pieces(self, here: Sequence[Sequence[Row]], packed: bool) -> list[list[list[int]]]:
        """For each process the places of the rows of each piece, as many pieces for all; none for a stand-in."""
        budget = self._speed.max_tokens

        def cut(rows: Sequence[Row], at_least: int) -> list[list[int]]:
            return cut_pieces(rows, budget, packed=packed, multiple_of=self._multiple, at_least=at_least)

        needed = max(1, *(len(cut(rows, 1)) for rows in here))
        found = [cut(rows, needed) for rows in here]
        if budget is not None and any(row.live and row.prompt + row.completion > budget for row in here[0]):
            self._say(
                "budget",
                f"speed.max_tokens={budget} is less than a single completion with its prompt takes: such a completion "
                "goes through the model alone",
            )
        return [[*pieces, *[[]] * (needed - len(pieces))] for pieces in found]

    def _planned(
        self, micro: Batch, here: Sequence[Sequence[Row]], places: Sequence[Sequence[Sequence[int]]], process: int
    ) -> Batch:
        pieces = [[[rows[p] for p in piece] for piece in theirs] for rows, theirs in zip(here, places, strict=True)]
        mine = pieces[process]
        pictures = any(key in micro for key in _PICTURES)
        if stand_ins := mine.count([]):
            micro = dress_stand_ins(micro, stand_ins, keeps_prompt=pictures)
        plan = plan_of(
            pieces,
            [row for rows in here for row in rows],
            process,
            weights=[self._loss.weight(rows, here[process]) for rows in mine],
            multiple_of=self._multiple,
            stand_in_prompt=micro["prompt_ids"].shape[1] if pictures else 1,
        )
        prompt, completion = (max(widths) for widths in zip(*plan["widths"], strict=True))
        return {**narrow(micro, prompt, completion), PLAN: plan}

    def _say(self, topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            logger.warning("%s.", text)


def batching_for(speed: SpeedConfig, args: Any, model: torch.nn.Module, *, router_loss: bool) -> Batching:
    """How a run cuts its batches.

    Args:
        speed: what is asked for.
        args: the run's GRPOConfig.
        model: to be trained.
        router_loss: whether a mixture of experts adds its load-balancing loss.

    Raises:
        ConfigError: a token budget does not go with the rest.
    """
    loss = Loss(
        loss_type=args.loss_type,
        entropy_bonus=args.entropy_coef != 0 or args.use_adaptive_entropy,
        router_loss=router_loss,
        top_entropy_quantile=args.top_entropy_quantile,
        by_sequence=args.importance_sampling_level == "sequence",
    )
    check_token_budget(speed.max_tokens, loss, str(getattr(args.optim, "value", args.optim)))
    return Batching(
        speed,
        loss,
        num_generations=args.num_generations,
        micro_batches=args.steps_per_generation,
        accumulation=args.gradient_accumulation_steps,
        multiple_of=args.pad_to_multiple_of,
        cuts_prompts=positions_are_relative(model),
    )


def positions_are_relative(model: torch.nn.Module) -> bool:
    """Whether only distances between tokens matter to the model, so that padding on the left can go without a trace.

    Without position ids, transformers counts positions from the first column, padding included. A model with a learned
    vector for every position (GPT-2) would then read other vectors than when the row was scored.
    """
    config = getattr(model, "config", None)
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if positions is None:
        return True
    words = model.get_input_embeddings() if isinstance(model, PreTrainedModel | PeftModel) else None
    return not any(
        isinstance(module, torch.nn.Embedding)
        and module is not words
        and positions <= module.num_embeddings <= positions + 2  # OPT keeps two more
        for module in model.modules()
    )


def _take(batch: Batch, rows: Sequence[int]) -> Batch:
    def rows_of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[torch.tensor(rows, device=value.device)] if value.ndim else value
        return [value[row] for row in rows] if isinstance(value, (list, tuple)) else value

    return {key: rows_of(value) for key, value in batch.items()}
